// Pages of datasets: the bar of splits, the button that creates, the grid of images and the keys in it.
(() => {
  // --- shares: two borders between three parts, dragged or moved by arrow keys -------------------------------------------------------
  const shares = (bar) => ({ validation: +bar.querySelector("[name=validation]").value || 0, test: +bar.querySelector("[name=test]").value || 0 });
  const draw = (bar) => {
    const { validation, test } = shares(bar), parts = { train: 100 - validation - test, validation, test };
    const words = { train: "train", validation: "val", test: "test" };
    for (const part of bar.querySelectorAll("[data-part]")) {
      part.style.flexGrow = Math.max(parts[part.dataset.part], 0.01);
      part.textContent = parts[part.dataset.part] ? `${words[part.dataset.part]} ${parts[part.dataset.part]}` : "";
    }
    for (const border of bar.querySelectorAll("[data-border]")) {
      const at = border.dataset.border === "test" ? 100 - test : 100 - validation - test;
      border.setAttribute("aria-valuenow", String(at));
      border.setAttribute("aria-valuetext", `train ${parts.train}, val ${validation}, test ${test} percent`);
    }
    bar.dataset.drawn = `${validation},${test}`;
  };
  const move = (bar, border, at) => {
    const now = shares(bar), clamp = (value, low, high) => Math.round(Math.min(high, Math.max(low, value)));
    if (border === "test") {
      const test = clamp(100 - at, 0, now.validation + now.test);
      Object.assign(now, { validation: now.validation + now.test - test, test });
    } else now.validation = clamp(100 - now.test - at, 0, 95 - now.test);
    bar.querySelector("[name=validation]").value = now.validation;
    bar.querySelector("[name=test]").value = now.test;
    draw(bar);
    bar.querySelector("[name=test]").dispatchEvent(new Event("input", { bubbles: true }));
  };
  document.addEventListener("pointerdown", (event) => {
    const border = event.target.closest?.("[data-border]");
    if (!border) return;
    const bar = border.closest("[data-split]"), box = bar.getBoundingClientRect();
    border.setPointerCapture(event.pointerId);
    border.onpointermove = (to) => move(bar, border.dataset.border, (100 * (to.clientX - box.left)) / box.width);
    border.onpointerup = () => (border.onpointermove = null);
  });
  document.addEventListener("keydown", (event) => {
    const border = event.target.closest?.("[data-border]"), step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (!border || !step) return;
    event.preventDefault();
    move(border.closest("[data-split]"), border.dataset.border, +border.getAttribute("aria-valuenow") + step);
  });
  new MutationObserver(() => document.querySelectorAll("[data-split]:not([data-drawn])").forEach(draw)).observe(document, { childList: true, subtree: true });

  // --- create, change, delete: through the API -----------------------------------------------------------------------------------------
  const post = async (button, path, body) => {
    button.disabled = true;
    try {
      const content = await studio.request("POST", path, body);
      location.assign(studio.base + content.open);
    } catch (error) {
      studio.toast(error.message, true);
      button.disabled = false;
    }
  };
  document.addEventListener("click", (event) => {
    const create = event.target.closest("[data-create]");
    if (create) post(create, "/datasets", Object.fromEntries(new FormData(document.getElementById("dataset-form"))));
    const change = event.target.closest("[data-change]");
    if (change) {
      const body = JSON.parse(change.dataset.body ?? "{}"), form = change.closest("form");
      if (form) {
        const fields = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
        if (change.dataset.change.endsWith("#rename")) {
          body.rename = Object.fromEntries(Object.entries(fields).filter(([name, value]) => value.trim() !== name).map(([name, value]) => [name, value.trim()]));
          if (!Object.keys(body.rename).length) return void studio.toast("No name was changed.");
        } else Object.assign(body, fields.upload ? { upload: fields.upload } : { add: fields.add ?? "" });
      }
      post(change, change.dataset.change.split("#")[0], body);
    }
  });

  // --- the grid: arrows move, Enter opens, Space selects, [ and ] turn pages; in the opened image arrows step ------------------------------
  const press = (selector) => document.querySelector(selector)?.click();
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
    const viewer = document.querySelector(".viewer");
    if (viewer) {
      const button = { ArrowLeft: "[data-emit=previous]", ArrowRight: "[data-emit=next]", Escape: "[data-emit=close]", x: "[data-emit=remove-one]" }[event.key];
      if (button) (event.preventDefault(), viewer.querySelector(button)?.click());
      if (event.key === "Tab") {
        const stops = [...viewer.querySelectorAll("button, select, input")], last = event.shiftKey ? 0 : stops.length - 1;
        if (document.activeElement === stops[last]) (event.preventDefault(), stops[event.shiftKey ? stops.length - 1 : 0].focus());
      }
      return;
    }
    if (event.key === "[" || event.key === "]") return void press(event.key === "[" ? "[data-emit=page-back]" : "[data-emit=page-on]");
    const cell = event.target.closest?.("[data-image]");
    if (!cell) return;
    const cells = [...document.querySelectorAll("[data-image]")], here = cells.indexOf(cell);
    const top = (one) => Math.round(one.getBoundingClientRect().top), across = cells.filter((one) => top(one) === top(cells[0])).length;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key];
    if (step) (event.preventDefault(), cells[here + step]?.focus());
    if (event.key === " ") (event.preventDefault(), cell.closest("figure").querySelector("input").click());
  });
  // The opened image takes the focus, and gives it back to the one it was opened from.
  let from = null;
  new MutationObserver(() => {
    const viewer = document.querySelector(".viewer");
    if (viewer && !viewer.contains(document.activeElement)) {
      from ??= document.activeElement?.closest?.("[data-image]")?.id;
      viewer.querySelector("[data-emit=close]")?.focus();
    } else if (!viewer && from) {
      document.getElementById(from)?.focus();
      from = null;
    }
  }).observe(document, { childList: true, subtree: true });
})();
