// Fields for paths of the server: a list of completions below the field. Arrow keys choose, Enter or Tab takes one, Escape closes.
(() => {
  let list = null, field = null, chosen = -1, waiting = null, asked = 0, taken = "";

  const close = () => {
    list?.remove();
    list = null;
    chosen = -1;
    field?.setAttribute("aria-expanded", "false");
    field?.removeAttribute("aria-activedescendant");
  };
  const ask = async () => {
    const mine = ++asked, target = field;
    const query = new URLSearchParams({ typed: target.value, folders: String(target.dataset.paths === "folders") });
    const answer = await fetch(`${studio.base}/api/v1/paths?${query}`);
    if (!answer.ok || mine !== asked || document.activeElement !== target) return;
    show(await answer.json());
  };
  const show = (found) => {
    close();
    found = found.filter((one) => one.path !== field.value);
    if (!found.length) return;
    list = Object.assign(document.createElement("ul"), { className: "paths", id: "path-list" });
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Paths on the server");
    found.forEach((one, i) => {
      const row = Object.assign(document.createElement("li"), { id: `path-${i}` });
      row.setAttribute("role", "option");
      row.innerHTML = `<svg class="i" aria-hidden="true"><use href="#i-${one.path.endsWith("/") ? "folder" : "log"}"/></svg>`;
      const name = Object.assign(document.createElement("span"), { className: "mono clip" });
      const begun = one.path.startsWith(field.value) ? field.value.length : 0;
      name.append(Object.assign(document.createElement("b"), { textContent: one.path.slice(0, begun) }), one.path.slice(begun));
      row.append(name, Object.assign(document.createElement("em"), { textContent: one.about }));
      row.addEventListener("mousedown", (event) => (event.preventDefault(), take(one.path)));
      row.dataset.path = one.path;
      list.append(row);
    });
    const box = field.parentElement.getBoundingClientRect();
    Object.assign(list.style, { left: `${box.left}px`, top: `${box.bottom + 4}px`, width: `${box.width}px` });
    document.body.append(list);
    field.setAttribute("aria-expanded", "true");
    field.setAttribute("aria-controls", "path-list");
  };
  const choose = (next) => {
    const rows = [...list.children];
    chosen = (next + rows.length) % rows.length;
    rows.forEach((row, i) => row.setAttribute("aria-selected", String(i === chosen)));
    rows[chosen].scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", rows[chosen].id);
  };
  const take = (path) => {
    field.value = path;
    close();
    asked++; // an answer that is on its way is not shown
    taken = path;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };

  document.addEventListener("input", (event) => {
    if (!event.target.matches?.("[data-paths]")) return;
    field = event.target;
    clearTimeout(waiting);
    if (field.value !== taken) waiting = setTimeout(ask, 120);
  });
  document.addEventListener("focusin", (event) => {
    if (!event.target.matches?.("[data-paths]")) return;
    field = event.target;
    ask();
  });
  document.addEventListener("focusout", (event) => event.target === field && close());
  window.addEventListener("scroll", (event) => event.target !== list && close(), true);
  document.addEventListener("keydown", (event) => {
    if (event.target !== field) return;
    if (!list) return void (event.key === "ArrowDown" && ask());
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen < 0 ? -1 : chosen - 1);
    else if (event.key === "Escape") close();
    else if ((event.key === "Enter" || event.key === "Tab") && chosen >= 0) take(list.children[chosen].dataset.path);
    else return;
    event.preventDefault();
  });
})();
