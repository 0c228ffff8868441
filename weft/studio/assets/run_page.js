// The page of a run and that of comparisons: menus, dialogs with a form, tags and notes, keys, copying the address.
(() => {
  const { base, request, toast } = window.studio;

  // --- dialogs: data-dialog names a template; its form is sent as JSON to data-send ---------------------------------------------
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    if (!opener) return;
    const dialog = document.getElementById(opener.dataset.dialog).content.firstElementChild.cloneNode(true);
    for (const [name, value] of Object.entries(JSON.parse(opener.dataset.fill ?? "{}"))) {
      const field = dialog.querySelector(`[name="${name}"]`);
      if (field) field.value = value;
    }
    dialog.addEventListener("close", () => dialog.remove());
    dialog.addEventListener("click", (e) => (e.target === dialog || e.target.closest("[data-close]")) && dialog.close());
    dialog.querySelector("form").addEventListener("submit", (e) => (e.preventDefault(), send(dialog)));
    document.body.append(dialog);
    dialog.showModal();
  });
  const send = async (dialog) => {
    const form = dialog.querySelector("form"), [method, path] = form.dataset.send.split(" ");
    try {
      const answer = await request(method, path, bodyOf(form));
      dialog.close();
      if (answer?.message) toast(answer.message);
      if (answer?.open) location.assign(base + answer.open);
    } catch (error) {
      const place = dialog.querySelector("[data-error]");
      place.textContent = error.message;
      place.hidden = false;
    }
  };
  // Fields named settings.rate become {settings: {rate: ...}}, those with data-list a list of what commas separate; empty fields are left out.
  const bodyOf = (form) => {
    const body = {};
    for (const [name, text] of new FormData(form)) {
      if (text === "") continue;
      const field = form.elements[name], [first, second] = name.split(".");
      const value = field.type === "number" ? Number(text) : "list" in field.dataset ? text.split(",") : text;
      if (second) (body[first] ??= {})[second] = value;
      else body[first] = value;
    }
    return body;
  };

  // --- tags and notes: read from the API, changed in place ------------------------------------------------------------------------
  const path = (place) => `/runs/${place.dataset.annotations.split("/").map(encodeURIComponent).join("/")}`;
  const annotate = async (place, change) => {
    try {
      show(place, await request("PATCH", `${path(place)}/annotations`, change));
    } catch (error) {
      toast(error.message, true);
    }
  };
  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const show = (place, known) => {
    if (!Array.isArray(known.tags)) return;
    const tags = known.tags.map((tag) => {
      if (!window.studio.mayChange) return element("span", { className: "tag" }, tag);
      const away = element("button", { className: "away", textContent: "×", ariaLabel: `Remove the tag ${tag}`, onclick: () => annotate(place, { remove_tags: [tag] }) });
      return element("span", { className: "tag" }, tag, away);
    });
    const add = element("button", { className: "tag add", textContent: "+ tag", ariaLabel: "Add a tag" });
    add.onclick = () => {
      const field = element("input", { className: "tag-field", placeholder: "tag", ariaLabel: "New tag" });
      let done = false;
      const finish = (save) => {
        if (done) return;
        done = true;
        if (save && field.value.trim()) annotate(place, { add_tags: [field.value.trim()] });
        else show(place, known);
      };
      field.addEventListener("keydown", (e) => e.key === "Enter" ? finish(true) : e.key === "Escape" && finish(false));
      field.onblur = () => finish(true);
      add.replaceWith(field);
      field.focus();
    };
    const star = element("button", { className: "tag add", textContent: known.starred ? "★" : "☆", ariaLabel: known.starred ? "Remove the star" : "Mark with a star", onclick: () => annotate(place, { starred: !known.starred }) });
    if (window.studio.mayChange) place.replaceChildren(star, ...tags, add);
    else place.replaceChildren(...(known.starred ? [element("span", { className: "tag", textContent: "★", title: "Starred" })] : []), ...tags);
    const notes = document.querySelector("[data-notes]");
    if (notes && document.activeElement !== notes) {
      notes.value = known.notes;
      notes.closest("[data-notes-card]").hidden = false;
      notes.onchange = () => annotate(place, { notes: notes.value });
    }
  };
  const load = async () => {
    for (const place of document.querySelectorAll("[data-annotations]:not([data-loaded])")) {
      place.dataset.loaded = "";
      show(place, await request("GET", path(place)).catch(() => ({})));
    }
  };
  new MutationObserver(load).observe(document.documentElement, { childList: true, subtree: true });

  // --- small things -----------------------------------------------------------------------------------------------------------------
  document.addEventListener("input", (event) => {
    if (event.target.matches("input[type=range]")) event.target.parentElement.querySelector("output")?.replaceChildren(event.target.value);
    if (event.target.matches("[data-find]")) {
      const words = event.target.value.toLowerCase();
      let shown = 0;
      for (const line of document.querySelectorAll("[data-line]")) {
        line.hidden = !line.textContent.toLowerCase().includes(words);
        shown += !line.hidden;
      }
      document.querySelector("[data-found]")?.replaceChildren(words ? `${shown} lines` : "");
    }
  });
  document.addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) navigator.clipboard.writeText(location.href).then(() => toast("The address was copied."), () => toast("The address could not be copied: the browser forbids it.", true));
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const key = event.key.toLowerCase();
    if (key === "l") document.querySelector("[data-chart=log]")?.click();
    if (key === "s") document.querySelector("[data-chart-smoothing]")?.focus();
  });
})();

// Parallel coordinates: dragging along an axis shows only the runs that pass there; a click shows all again.
(() => {
  const filters = new Map();
  const apply = (box) => {
    for (const line of box.querySelectorAll("[data-run]")) {
      const places = line.dataset.places.trim().split(" ").map(Number);
      const kept = [...filters].every(([axis, [low, high]]) => !axis.isConnected || (places[axis.dataset.axis] >= low && places[axis.dataset.axis] <= high));
      line.classList.toggle("off", !kept);
    }
  };
  document.addEventListener("mousedown", (event) => {
    const axis = event.target.closest("[data-axis]");
    if (!axis) return;
    event.preventDefault();
    const box = axis.getBoundingClientRect(), mark = axis.querySelector(".pcb");
    const at = (e) => Math.min(Math.max((e.clientY - box.top) / box.height, 0), 1);
    const start = at(event);
    const move = (e) => {
      const [top, bottom] = [start, at(e)].sort((a, b) => a - b);
      mark.hidden = bottom - top < 0.02;
      Object.assign(mark.style, { top: `${100 * top}%`, height: `${100 * (bottom - top)}%` });
      if (mark.hidden) filters.delete(axis);
      else filters.set(axis, [1 - bottom - 1e-6, 1 - top + 1e-6]);
      apply(axis.closest("[data-parallel]"));
    };
    const end = (e) => (move(e), window.removeEventListener("mousemove", move), window.removeEventListener("mouseup", end));
    window.addEventListener("mousemove", move);
    window.addEventListener("mouseup", end);
  });
})();
