// Uploads: files, folders or a zip file, dropped or chosen. They are streamed to the server; the field gets the name of the upload.
(() => {
  const AT_ONCE = 4;
  const UNKNOWN = (status) => `The server gave an answer (${status}) that the studio does not know: it, or a proxy before it, has a problem. Send the files again.`;
  const parsed = (text) => {
    try {
      return JSON.parse(text || "{}");
    } catch {
      return null; // a page of a proxy, for example
    }
  };
  const send = (path, body, onProgress) =>
    new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("PUT", `${studio.base}/api/v1${path}`);
      request.setRequestHeader("X-Weft-Studio", "1");
      request.setRequestHeader("Content-Type", "application/octet-stream");
      request.upload.onprogress = (event) => onProgress(event.loaded);
      request.onerror = () => reject(new Error("The connection was lost. Send the files again."));
      request.onload = () => {
        const content = parsed(request.responseText);
        if (request.status < 300 && content) resolve(content);
        else reject(new Error(content ? studio.errorText(content, request.status) : UNKNOWN(request.status)));
      };
      request.onabort = request.onerror;
      request.send(body);
    });
  const size = (bytes) => (bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`);

  // --- what was dropped: files with their paths --------------------------------------------------------------------------------
  const entries = (reader) => new Promise((resolve, reject) => reader.readEntries(resolve, reject));
  const fileOf = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));
  const walk = async (entry, found) => {
    if (entry.isFile) return void found.push([entry.fullPath.replace(/^\//, ""), await fileOf(entry)]);
    const reader = entry.createReader();
    for (let part = await entries(reader); part.length; part = await entries(reader)) for (const one of part) await walk(one, found);
  };
  const dropped = async (transfer) => {
    const found = [], roots = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    if (!roots.length) return [...transfer.files].map((file) => [file.name, file]);
    for (const root of roots) await walk(root, found);
    return found;
  };

  // --- sending -------------------------------------------------------------------------------------------------------------------
  const upload = async (zone, files) => {
    files = files.filter(([path]) => !path.split("/").some((part) => part.startsWith(".")));
    if (!files.length) return;
    const said = zone.querySelector("[data-said]"), bar = zone.querySelector(".bar"), field = zone.querySelector("input[type=hidden]");
    const total = files.reduce((sum, [, file]) => sum + file.size, 0), sent = new Map();
    const show = () => {
      const now = [...sent.values()].reduce((a, b) => a + b, 0);
      bar.style.setProperty("--v", `${(100 * now) / Math.max(1, total)}%`);
      bar.setAttribute("aria-valuenow", String(Math.round((100 * now) / Math.max(1, total))));
      said.textContent = `${size(now)} of ${size(total)}, ${files.length.toLocaleString("en")} ${files.length === 1 ? "file" : "files"}`;
    };
    bar.hidden = false;
    zone.dataset.state = "busy";
    try {
      const name = (await studio.request("POST", "/uploads"))?.upload;
      if (!name) throw new Error(UNKNOWN(200));
      const waiting = [...files];
      const worker = async () => {
        for (let next = waiting.shift(); next; next = waiting.shift()) {
          const [path, file] = next;
          const isZip = files.length === 1 && path.toLowerCase().endsWith(".zip");
          const to = isZip ? `/uploads/${name}/archive` : `/uploads/${name}/files/${path.split("/").map(encodeURIComponent).join("/")}`;
          await send(to, file, (loaded) => (sent.set(path, loaded), show(), isZip && loaded === file.size && (said.textContent = "Unpacking")));
          sent.set(path, file.size);
          show();
        }
      };
      await Promise.all(Array.from({ length: AT_ONCE }, worker));
      said.textContent = `${files.length === 1 ? files[0][0] : `${files.length.toLocaleString("en")} files`}, ${size(total)}, received`;
      field.value = name;
      field.dispatchEvent(new Event("input", { bubbles: true }));
      zone.dataset.state = "done";
    } catch (error) {
      zone.dataset.state = "failed";
      said.textContent = error.message;
    }
  };

  document.addEventListener("dragover", (event) => {
    const zone = event.target.closest?.("[data-upload]");
    document.querySelectorAll("[data-upload].over").forEach((one) => one !== zone && one.classList.remove("over"));
    if (!zone) return;
    event.preventDefault();
    zone.classList.add("over");
  });
  document.addEventListener("drop", async (event) => {
    const zone = event.target.closest?.("[data-upload]");
    if (!zone) return;
    event.preventDefault();
    zone.classList.remove("over");
    upload(zone, await dropped(event.dataTransfer));
  });
  document.addEventListener("change", (event) => {
    const zone = event.target.matches?.("[data-upload] input[type=file]") && event.target.closest("[data-upload]");
    if (zone) upload(zone, [...event.target.files].map((file) => [file.webkitRelativePath || file.name, file]));
  });
})();
