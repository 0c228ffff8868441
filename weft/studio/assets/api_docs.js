// The page of the API: examples with the address of this studio, and a button that copies them.
(() => {
  const start = (root) => {
    root.querySelectorAll("[data-curl]").forEach((one) => (one.textContent = one.textContent.replace("HERE", location.origin + studio.base)));
    root.addEventListener("click", async (event) => {
      const button = event.target.closest("[data-copy]");
      if (button) (await navigator.clipboard.writeText(button.parentElement.querySelector("[data-curl]").textContent), studio.toast("Copied"));
    });
    const named = location.hash && document.getElementById(location.hash.slice(1));
    if (named) ((named.open = true), named.scrollIntoView());
  };
  const wait = () => (document.querySelector("[data-api]") ? start(document.querySelector("[data-api]")) : setTimeout(wait, 50));
  wait();
})();
