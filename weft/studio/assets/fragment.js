// A piece of server-rendered HTML. `morph` changes only what differs, so that focus, selection and hover survive an update.
const unsaid = new Set(); // fragments whose form has changed since the server was told

export default {
  template: `<component :is="tag"></component>`,
  props: { html: String, tag: String },
  mounted() {
    this.$el.innerHTML = this.html;
    this.$el.querySelectorAll(".tabs > [aria-current]").forEach(reveal);
    this.$el.addEventListener("click", this.clicked);
    this.$el.addEventListener("change", this.changed);
    this.$el.addEventListener("input", this.typed);
  },
  methods: {
    morph(html) {
      const next = this.$el.cloneNode(false);
      next.innerHTML = html;
      morphChildren(this.$el, next);
    },
    set_field(name, value) {
      const field = this.$el.querySelector(`[name="${name}"]`);
      if (field && document.activeElement !== field) field.value = value; // a typed value is a property: morph changes attributes
    },
    // Fields that somebody else fills in; those that were out of sight are shown.
    fill(values) {
      for (const [name, value] of Object.entries(values)) {
        const field = this.$el.querySelector(`[name="${name}"]`);
        if (!field) continue;
        field.value = value;
        const more = field.closest("details");
        if (more) more.open = true;
      }
    },
    // What is known of settings: a text below a field instead of its help, whether it is a mistake, and the value if it stays empty.
    hints(known) {
      for (const place of this.$el.querySelectorAll("[data-setting]")) {
        const { text, bad, placeholder } = known[place.dataset.setting] ?? {};
        const help = place.querySelector(".help"), input = place.querySelector("input, select");
        if (help) {
          help.dataset.help ??= help.textContent;
          help.textContent = text ?? help.dataset.help;
          help.classList.toggle("bad", !!bad);
        }
        place.querySelector(".field").classList.toggle("wrong", !!bad);
        bad ? input.setAttribute("aria-invalid", "true") : input.removeAttribute("aria-invalid");
        input.dataset.placeholder ??= input.placeholder ?? "";
        if (input.nodeName === "INPUT") input.placeholder = placeholder ?? input.dataset.placeholder;
      }
    },
    clicked(event) {
      const target = event.target.closest("[data-emit]");
      if (target && !target.matches("input, select")) this.send(target, target.dataset.value ?? "");
    },
    changed(event) {
      const target = event.target.closest("input[data-emit]:not([type=range]), select[data-emit]");
      if (target) this.send(target, target.dataset.value ?? (target.type === "checkbox" ? String(target.checked) : target.value));
    },
    typed(event) {
      if (event.target.matches("input[type=range][data-emit]")) this.send(event.target, event.target.value);
      const form = event.target.closest("form[data-form]");
      if (!form) return;
      clearTimeout(this.waiting);
      this.tell = () => {
        unsaid.delete(this);
        clearTimeout(this.waiting);
        this.$emit("emit", { name: form.dataset.form, value: Object.fromEntries(new FormData(form)) });
      };
      unsaid.add(this);
      this.waiting = setTimeout(this.tell, 150);
    },
    send(target, value) {
      for (const one of [...unsaid]) one.tell(); // a button acts on what was typed, also in the last moment
      this.$emit("emit", { name: target.dataset.emit, value });
    },
  },
};

// Tabs that do not fit scroll sideways: the selected one is brought to the middle.
function reveal(tab) {
  const row = tab.parentElement, at = tab.getBoundingClientRect(), place = row.getBoundingClientRect();
  row.scrollLeft += at.left + at.width / 2 - place.left - place.width / 2;
}

function morphChildren(from, to) {
  const keyed = new Map();
  for (const child of from.children) if (child.id) keyed.set(child.id, child);
  let place = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const known = wanted.id ? keyed.get(wanted.id) : null;
    if (known && known !== place) from.insertBefore(known, place);
    const here = known ?? place;
    if (here && canMorph(here, wanted) && (known || !here.id || here.id === wanted.id)) {
      place = here.nextSibling;
      morph(here, wanted);
    } else {
      from.insertBefore(wanted, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function canMorph(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName;
}

function morph(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  if (from.hasAttribute("data-keep")) return; // a script of the page owns what is inside
  if (from.nodeName === "DETAILS" && from.open) to.setAttribute("open", "");
  const chosen = from.nodeName === "OPTION" && to.hasAttribute("selected") && !from.hasAttribute("selected");
  for (const { name, value } of [...to.attributes]) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  for (const { name } of [...from.attributes]) if (!to.hasAttribute(name)) from.removeAttribute(name);
  if (chosen) from.selected = true; // what the server says now; else the choice is the user's
  if (from.nodeName === "INPUT" && from.type === "range" && from !== document.activeElement) from.value = to.getAttribute("value"); // not under the pointer
  if (from.nodeName === "INPUT" && from.type === "checkbox") from.checked = to.hasAttribute("checked");
  morphChildren(from, to);
}
