// The header of the page that designs a network: save, train, start from another one; how many errors there are.
(() => {
  const one = (selector) => document.querySelector(selector);
  const editor = { text: null, errors: 0, saved: null };
  const name = () => one("[data-design-name]")?.value.trim() ?? one(".phead h1").textContent;
  const isNew = () => Boolean(one("[data-design-name]"));

  // The name of a new network follows the one in its text, until somebody writes another above it, or it is saved.
  // A copy begins with the name of its original in the text, which is not taken over.
  let follows = true, first = null;
  document.addEventListener("input", (event) => (follows &&= !event.target.matches("[data-design-name]")));
  const followText = (text) => {
    const named = /^name:\s*["']?([A-Za-z0-9_-]{1,60})["']?\s*(#.*)?$/m.exec(text);
    first ??= named?.[1] ?? "";
    if (follows && isNew() && named && named[1] !== first) one("[data-design-name]").value = named[1];
  };

  // the editor tells its text and its errors
  document.addEventListener("network-text", (event) => {
    editor.saved ??= isNew() ? "" : event.detail;
    editor.text = event.detail;
    followText(editor.text);
    if (!isNew() && editor.text !== editor.saved) one("[data-saved]").textContent = "changed, not saved";
  });
  document.addEventListener("network-problems", (event) => {
    editor.errors = event.detail;
    const errors = one("[data-errors]");
    errors.hidden = !editor.errors;
    errors.querySelector("span").textContent = editor.errors === 1 ? "1 error" : `${editor.errors} errors`;
    one("[data-valid]").hidden = Boolean(editor.errors);
    for (const button of [one("[data-train]"), one("[data-save]")]) {
      button.disabled = Boolean(editor.errors);
      button.title = editor.errors ? `Fix ${errors.textContent} first` : button.matches("[data-train]") ? "Save and train" : "Save (Ctrl S)";
    }
  });

  const save = async () => {
    if (!studio.mayChange) return;
    if (editor.errors) return studio.toast("The text has an error: it is saved when that is fixed.", true);
    try {
      const made = await studio.request("PUT", `/designs/${encodeURIComponent(name())}`, { text: editor.text });
      editor.saved = editor.text;
      follows = false;
      one("[data-saved]").textContent = `saved as version ${made.version}`;
      if (isNew()) history.replaceState(null, "", `${studio.base}/networks/${made.name}`);
      return made;
    } catch (error) {
      studio.toast(error.message, true);
    }
  };
  document.addEventListener("network-save", save);
  document.addEventListener("click", async (event) => {
    if (event.target.closest("[data-save]")) save();
    if (event.target.closest("[data-train]")) {
      const made = editor.text === editor.saved && !isNew() ? { name: name() } : await save();
      if (made) location.assign(`${studio.base}/train?model=${encodeURIComponent(made.name)}`);
    }
    const help = event.target.closest("[data-layer-help]");
    if (help) {
      const shown = one(".layerhelp").toggleAttribute("hidden");
      help.setAttribute("aria-expanded", String(!shown));
    }
  });
  document.addEventListener("change", (event) => {
    const start = event.target.closest("[data-start]");
    if (start?.value) location.assign(`${studio.base}/networks/new?from=${encodeURIComponent(start.value)}`);
  });
})();
