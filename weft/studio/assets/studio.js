// What every page needs: requests to the API from buttons, the theme, toasts and keys.
(() => {
  const { base, denied } = document.currentScript.dataset;
  const root = document.documentElement;

  // --- theme: chosen here, else the system's -------------------------------------------------------------------------------
  const chosen = new URLSearchParams(location.search).get("theme") ?? localStorage.getItem("theme");
  const setTheme = (theme) => {
    root.dataset.theme = theme;
    window.dispatchEvent(new CustomEvent("themechange"));
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  setTheme(chosen ?? (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => localStorage.getItem("theme") ?? setTheme(system.matches ? "dark" : "light"));
  const toggleTheme = () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
    localStorage.setItem("theme", root.dataset.theme);
  };

  // --- toasts: at the bottom for five seconds; errors stay until they are closed ---------------------------------------------
  const toast = (text, isError = false, undo = null) => {
    let place = document.querySelector(".toasts");
    if (!place) {
      place = Object.assign(document.createElement("div"), { className: "toasts" });
      place.setAttribute("role", "status");
      document.body.append(place);
    }
    const made = Object.assign(document.createElement("div"), { className: isError ? "toast bad" : "toast" });
    made.append(Object.assign(document.createElement("span"), { textContent: text }));
    const close = Object.assign(document.createElement("button"), { textContent: "Close" });
    close.addEventListener("click", () => made.remove());
    if (undo) {
      const back = Object.assign(document.createElement("button"), { textContent: "Undo" });
      back.addEventListener("click", () => (made.remove(), run(() => request(undo.method, undo.path, undo.body))));
      made.append(back);
    }
    made.append(close);
    place.append(made);
    if (!isError) setTimeout(() => made.remove(), 5000);
  };

  // What an answer says of an error, as a sentence: the API's own begins with a small letter, as the errors of commands do.
  const errorText = (content, status) => {
    const text = content?.message ?? content?.detail ?? `The server answered ${status}.`;
    return text[0].toUpperCase() + text.slice(1);
  };

  // --- requests ------------------------------------------------------------------------------------------------------------
  const request = async (method, path, body) => {
    const headers = { "X-Weft-Studio": "1" };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const answer = await fetch(`${base}/api/v1${path}`, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    const content = answer.headers.get("Content-Type")?.startsWith("application/json") ? await answer.json() : null;
    if (!answer.ok) throw new Error(errorText(content, answer.status));
    return content;
  };
  // What an answer asks for: a message, with a request that takes the change back, and another page or this one anew. The message is shown there.
  const follow = (content) => {
    if (content?.message && !content.open && !content.reload) toast(content.message, false, content.undo);
    else if (content?.message) sessionStorage.setItem("toast", content.message);
    if (content?.open) location.assign(base + content.open);
    else if (content?.reload) location.reload();
  };
  document.addEventListener("DOMContentLoaded", () => {
    const kept = sessionStorage.getItem("toast");
    sessionStorage.removeItem("toast");
    if (kept) toast(kept);
  });
  const run = async (work) => {
    try {
      follow(await work());
    } catch (error) {
      toast(error.message, true);
    }
  };
  const send = async (button) => {
    const [method, path] = button.dataset.request.split(" ");
    if (button.dataset.confirm && !(await confirmed(button.dataset.confirm, button.dataset.do))) return;
    button.disabled = true;
    try {
      await run(() => request(method, path, button.dataset.body && JSON.parse(button.dataset.body)));
    } finally {
      button.disabled = false;
    }
  };
  const confirmed = (text, what) =>
    new Promise((resolve) => {
      const dialog = Object.assign(document.createElement("dialog"), { className: "confirm" });
      dialog.append(Object.assign(document.createElement("p"), { textContent: text }));
      const row = Object.assign(document.createElement("div"), { className: "row" });
      const keep = Object.assign(document.createElement("button"), { className: "btn", textContent: "Keep", autofocus: true });
      const go = Object.assign(document.createElement("button"), { className: "btn bad", textContent: what ?? "Delete" });
      keep.addEventListener("click", () => dialog.close(""));
      go.addEventListener("click", () => dialog.close("yes"));
      dialog.addEventListener("close", () => (dialog.remove(), resolve(dialog.returnValue === "yes")));
      row.append(keep, go);
      dialog.append(row);
      document.body.append(dialog);
      dialog.showModal();
    });

  // A text that is asked for, or one of several; null if nothing is to be done.
  const asked = (title, label, button, choices = null) =>
    new Promise((resolve) => {
      const dialog = Object.assign(document.createElement("dialog"), { className: "confirm" });
      dialog.innerHTML = `<form method="dialog"><h2></h2><div class="fld next"><label for="asked"></label><div class="field">${choices ? '<select id="asked" class="asked"></select>' : '<input id="asked" class="asked" autocomplete="off">'}</div></div><div class="row"><button class="btn" value="" formnovalidate>Cancel</button><button class="btn pri" value="ok"></button></div></form>`;
      dialog.querySelector("h2").textContent = title;
      dialog.querySelector("label").textContent = label;
      dialog.querySelector(".pri").textContent = button;
      const field = dialog.querySelector(".asked");
      field.append(...(choices ?? []).map((one) => new Option(one, one)));
      field.addEventListener("keydown", (event) => {
        if (event.key === "Enter") (event.preventDefault(), dialog.close("ok"));
      });
      dialog.addEventListener("close", () => (dialog.remove(), resolve(dialog.returnValue === "ok" ? field.value.trim() : null)));
      document.body.append(dialog);
      dialog.showModal();
      field.focus();
    });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-request]");
    if (button) send(button);
    if (event.target.closest("[data-theme-toggle]")) toggleTheme();
  });
  document.addEventListener("change", (event) => event.target.matches("select[data-go]") && location.assign(event.target.value));

  // --- menus close when something else is clicked, or with Escape, which goes back to what opened them --------------------------
  const closeMenus = (except) => {
    for (const menu of document.querySelectorAll("details:is(.menu, .chooser, .networks, [name=bar])[open]")) if (menu !== except) menu.open = false;
  };
  document.addEventListener("click", (event) => event.target.isConnected && closeMenus(event.target.closest("details")));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    event.target.closest?.("details:is(.menu, .chooser, .networks, [name=bar])[open]")?.querySelector("summary").focus();
    closeMenus(null);
  });

  // --- viewers: links to pages that the server denies them are not shown (pictures stay, without their link), nor can jobs be moved -------
  const isDenied = denied ? ((pattern) => (path) => pattern.test(path.slice(base.length)))(new RegExp(`^(${denied})$`)) : () => false;
  if (denied)
    new MutationObserver(() => {
      for (const link of document.querySelectorAll("a[href]:not([hidden])"))
        if (link.origin === location.origin && isDenied(link.pathname)) link.querySelector("img") ? link.removeAttribute("href") : (link.hidden = true);
      for (const row of document.querySelectorAll("[data-movable]")) row.removeAttribute("data-movable"), row.removeAttribute("draggable");
      for (const field of document.querySelectorAll("[data-priority]:enabled, [data-notes]:enabled")) field.disabled = true;
    }).observe(root, { childList: true, subtree: true, attributes: true, attributeFilter: ["href", "hidden", "draggable", "disabled"] });

  // --- keys: G and a letter go to a page, T trains, / searches -----------------------------------------------------------------
  const PAGES = { h: "/", d: "/datasets", n: "/networks", r: "/runs", c: "/compare", q: "/queue" };
  let afterG = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, [contenteditable]")) return;
    const key = event.key.toLowerCase();
    if (afterG && PAGES[key]) location.assign(base + PAGES[key]);
    else if (key === "t" && !isDenied(`${base}/train`)) location.assign(`${base}/train`);
    else if (key === "/") (document.querySelector("[data-search]")?.focus(), event.preventDefault());
    afterG = key === "g" && !afterG;
  });

  // A slider whose steps have names: <input type=range data-texts="10 k|…|no limit"><output>.
  document.addEventListener("input", ({ target }) => {
    if (target.dataset?.texts) target.nextElementSibling.value = target.dataset.texts.split("|")[target.value - target.min];
  });

  // Ctrl Enter presses the button that a form is for.
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") document.querySelector("[data-primary]:not(:disabled)")?.click();
  });

  window.studio = { base, isDenied, mayChange: !denied, request, errorText, follow, run, toast, asked, confirmed, toggleTheme };
})();
