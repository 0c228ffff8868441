// Search on pages that are opened from the disk. Browsers start no worker from a file, so its script runs in a hidden frame instead.
// Material's offline plugin would load such a shim from another server; with this one, the site needs no network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = frame.contentWindow;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      scope.importScripts = (...urls) => Promise.all(urls.map(load));
      const started = load(url);
      this.postMessage = (data) => started.then(() => scope.dispatchEvent(new MessageEvent("message", { data })));
      this.terminate = () => frame.remove();

      function load(source) {
        return new Promise((resolve, reject) => {
          const script = scope.document.createElement("script");
          script.src = source;
          script.onload = resolve;
          script.onerror = reject;
          scope.document.body.append(script);
        });
      }
    }
  };
}
