// The command palette (Ctrl K) finds pages, runs, networks and datasets by name; ? lists the keys.
(() => {
  const base = document.currentScript.dataset.base;
  const COMMANDS = [
    ["Home", "/", "Page"], ["Datasets", "/datasets", "Page"], ["Networks", "/networks", "Page"], ["Runs", "/runs", "Page"],
    ["Compare", "/compare", "Page"], ["Classify", "/classify", "Page"], ["Queue", "/queue", "Page"],
    ["Train", "/train", "Start"], ["New dataset", "/datasets/new", "Start"], ["Design a network", "/networks/new", "Start"],
  ].map(([title, path, kind]) => ({ title, path, kind })).filter(({ path }) => !window.studio.isDenied(base + path));
  COMMANDS.push({ title: "Light or dark", kind: "Change", run: () => window.studio.toggleTheme() });
  const KEYS = [
    ["Ctrl K", "Find a page, run, network or dataset"], ["G then H, D, N, R, C, Q", "Go to a page"], ...(window.studio.isDenied(`${base}/train`) ? [] : [["T", "Train"]]), ["/", "Search in the table"], ["Ctrl Enter", "Start what a form describes"],
    ["L", "Logarithmic scale"], ["S", "Smoothing"], ["?", "These keys"], ["Esc", "Close"],
  ];

  const element = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  const open = (label, ...content) => {
    document.querySelector("dialog.palette")?.close();
    const dialog = element("dialog", { className: "palette" }, ...content);
    dialog.setAttribute("aria-label", label);
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    return dialog;
  };

  const showKeys = () => {
    const rows = KEYS.map(([keys, what]) => element("div", {}, element("kbd", { textContent: keys }), element("span", { textContent: what })));
    open("Keys", element("h2", { textContent: "Keys" }), element("div", { className: "keys" }, ...rows));
  };

  const showPalette = () => {
    const input = element("input", { placeholder: "Page, run, network or dataset", autocomplete: "off", spellcheck: false });
    const list = element("ul", { id: "palette-list" });
    for (const [name, value] of [["role", "combobox"], ["aria-controls", "palette-list"], ["aria-expanded", "true"], ["aria-label", "Find"]]) input.setAttribute(name, value);
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Found");
    const dialog = open("Find", input, list);
    let found = [], chosen = 0, asked = 0, timer;

    const choose = (index) => {
      chosen = Math.max(0, Math.min(found.length - 1, index));
      [...list.children].forEach((row, i) => row.setAttribute("aria-selected", String(i === chosen)));
      input.setAttribute("aria-activedescendant", found.length ? `palette-${chosen}` : "");
      list.children[chosen]?.scrollIntoView({ block: "nearest" });
    };
    const follow = (one) => {
      dialog.close();
      if (one?.run) one.run();
      else if (one) location.assign(base + one.path);
    };
    const show = (results) => {
      found = results;
      list.replaceChildren(...found.map((one, i) => {
        const row = element("li", { id: `palette-${i}` }, element("span", { textContent: one.title }), element("small", { textContent: one.kind }));
        row.setAttribute("role", "option");
        row.addEventListener("click", () => follow(one));
        return row;
      }));
      if (!found.length) list.replaceChildren(element("li", { className: "none", textContent: "Nothing has this name." }));
      choose(0);
    };
    const search = async () => {
      const words = input.value.trim().toLowerCase(), number = ++asked;
      const own = COMMANDS.filter((one) => one.title.toLowerCase().includes(words));
      show(own);
      if (!words) return;
      const more = await window.studio.request("GET", `/search?words=${encodeURIComponent(words)}`).catch(() => []);
      if (number === asked) show([...own, ...more]);
    };
    input.addEventListener("input", () => (clearTimeout(timer), (timer = setTimeout(search, 80))));
    input.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) choose(chosen + step);
      else if (event.key === "Enter") follow(found[chosen]);
      else return;
      event.preventDefault();
    });
    search();
    input.focus();
  };

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      showPalette();
    } else if (event.key === "?" && !event.target.closest("input, textarea, select, [contenteditable]")) showKeys();
  });
  document.addEventListener("click", (event) => event.target.closest("[data-palette]") && showPalette());
})();
