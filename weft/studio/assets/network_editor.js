// The editor of a network's text: YAML in CodeMirror with completion of layers and arguments, and problems under their lines with a Fix button.
import * as CM from "nicegui-codemirror";

const WAIT = 120; // milliseconds after the last key

const setProblems = CM.StateEffect.define();
class ProblemWidget extends CM.WidgetType {
  constructor(problem, fix) {
    super();
    this.problem = problem;
    this.fix = fix;
  }
  eq(other) {
    return JSON.stringify(other.problem) === JSON.stringify(this.problem);
  }
  toDOM() {
    const box = Object.assign(document.createElement("div"), { className: "diag" });
    box.setAttribute("role", "alert");
    box.innerHTML = '<svg class="i s" aria-hidden="true"><use href="#i-cross"/></svg>';
    const text = document.createElement("div");
    text.append(Object.assign(document.createElement("b"), { textContent: this.problem.message }), " ", this.problem.hint);
    box.append(text);
    if (this.problem.fix) {
      const button = Object.assign(document.createElement("button"), { className: "btn small", textContent: "Fix", title: this.problem.fix.title, type: "button" });
      button.addEventListener("click", () => this.fix(this.problem.fix));
      box.append(button);
    }
    return box;
  }
  ignoreEvent() {
    return true;
  }
}

const problemField = (fix) =>
  CM.StateField.define({
    create: () => CM.Decoration.none,
    update(marks, transaction) {
      marks = marks.map(transaction.changes);
      for (const effect of transaction.effects) if (effect.is(setProblems)) marks = marksOf(transaction.state.doc, effect.value, fix);
      return marks;
    },
    provide: (field) => CM.EditorView.decorations.from(field),
  });

function offset(doc, line, column) {
  const found = doc.line(Math.max(1, Math.min(line, doc.lines)));
  return Math.min(found.to, found.from + Math.max(0, column - 1));
}

function marksOf(doc, problems, fix) {
  const marks = [];
  const lines = new Set();
  for (const problem of problems) {
    const line = doc.line(Math.max(1, Math.min(problem.line, doc.lines)));
    if (!lines.has(line.number)) marks.push(CM.Decoration.line({ class: "badline" }).range(line.from));
    lines.add(line.number);
    const from = offset(doc, problem.line, problem.column);
    const to = problem.end_line === problem.line ? offset(doc, problem.end_line, problem.end_column) : line.to;
    if (to > from) marks.push(CM.Decoration.mark({ class: "squiggle" }).range(from, to));
    marks.push(CM.Decoration.widget({ widget: new ProblemWidget(problem, fix), side: 1, block: true }).range(line.to));
  }
  return CM.Decoration.set(marks, true);
}

// --- completion: what can stand at the cursor follows from the text before it on the line, and from the layer that encloses it -----------
function completions(vocabulary) {
  const layers = new Map(vocabulary.layers.map((one) => [one.name, one]));
  const common = [{ name: "name", help: "name that later layers read" }, { name: "from", help: "earlier layer that this one reads" }];
  const option = (label, detail, apply) => ({ label, detail, apply: apply ?? label });
  const inOrder = (options) => options.map((one, index) => ({ ...one, boost: -index })); // not by the alphabet
  const ofLayers = () => vocabulary.layers.map((one) => ({ ...option(one.name, one.about.slice(0, 60)), section: one.group }));
  const ofArguments = (layer) => [...layer.arguments, ...common].map((one) => option(one.name, one.help, `${one.name}: `));
  const ofValues = (argument) => {
    const words = argument.type === "count" && argument.choices.length ? Object.entries(vocabulary.words).map(([word, help]) => option(word, help)) : argument.choices.map((word) => option(word, word === argument.default ? "default" : ""));
    return words;
  };
  return (context) => {
    const line = context.state.doc.lineAt(context.pos);
    const before = line.text.slice(0, context.pos - line.from);
    const word = context.matchBefore(/[A-Za-z_][\w]*/);
    if (!word && !context.explicit) return null;
    const start = word ? word.from : context.pos;
    const head = before.slice(0, start - line.from);
    const found = optionsAt(head);
    return found.length ? { from: start, options: inOrder(found), validFor: /^\w*$/ } : null;

    function optionsAt(head) {
      const inside = innermost(head);
      if (inside) {
        const layer = layers.get(inside.layer);
        if (!layer) return [];
        const value = /([A-Za-z_]\w*):\s*$/.exec(inside.rest);
        if (!value) return ofArguments(layer);
        const argument = layer.arguments.find((one) => one.name === value[1]);
        return argument ? ofValues(argument) : [];
      }
      const main = /([A-Za-z_]\w*):\s*$/.exec(head);
      if (main && layers.has(main[1])) {
        const layer = layers.get(main[1]);
        const argument = layer.arguments.find((one) => one.name === layer.main);
        return argument ? ofValues(argument) : [];
      }
      if (/(-|\[|,)\s*$/.test(head)) return ofLayers();
      if (/^\s*$/.test(head)) return head ? blockArguments(head.length) : vocabulary.settings.map((one) => option(one, "", `${one}: `));
      return [];
    }
    // {layer, rest} of the braces that are open at the end of a line
    function innermost(head) {
      let depth = 0;
      for (let i = head.length - 1; i >= 0; i--) {
        if (head[i] === "}" || head[i] === "]") depth++;
        else if (head[i] === "[" && depth === 0) return null;
        else if (head[i] === "{" || head[i] === "[") {
          if (depth > 0) depth--;
          else {
            const name = /([A-Za-z_]\w*):\s*$/.exec(head.slice(0, i));
            return name ? { layer: name[1], rest: head.slice(i + 1).split(",").at(-1) } : null;
          }
        }
      }
      return null;
    }
    // arguments on lines of their own, below `- residual:`
    function blockArguments(indent) {
      for (let number = line.number - 1; number >= 1; number--) {
        const text = context.state.doc.line(number).text;
        const own = /^\s*/.exec(text)[0].length;
        const layer = /^(\s*)- ([A-Za-z_]\w*):\s*$/.exec(text);
        if (layer && layer[1].length + 2 < indent && layers.has(layer[2])) return ofArguments(layers.get(layer[2]));
        if (text.trim() && own < indent - 2) return [];
      }
      return [];
    }
  };
}

export default {
  template: `<div class="neteditor"></div>`,
  props: { text: String, vocabulary: Object },
  mounted() {
    this.number = 0;
    const fix = (change) => this.apply(change);
    const language = new CM.Compartment();
    const data = [{ autocomplete: completions(this.vocabulary), commentTokens: { line: "#" } }]; // one source: CodeMirror compares them
    this.view = new CM.EditorView({
      parent: this.$el,
      state: CM.EditorState.create({
        doc: this.text,
        extensions: [
          CM.basicSetup,
          CM.keymap.of([{ key: "Mod-s", preventDefault: true, run: () => (this.flush(), document.dispatchEvent(new CustomEvent("network-save")), true) }, CM.indentWithTab]),
          CM.indentUnit.of("  "),
          CM.EditorState.tabSize.of(2),
          language.of([]),
          problemField(fix),
          CM.EditorState.languageData.of(() => data),
          CM.EditorView.contentAttributes.of({ "aria-label": "Network definition", spellcheck: "false" }),
          CM.EditorView.updateListener.of((update) => this.updated(update)),
        ],
      }),
    });
    const yaml = CM.languages.find((one) => one.name === "YAML");
    yaml.load().then((support) => this.view.dispatch({ effects: language.reconfigure(support) }));
    this.place();
    document.addEventListener("click", this.clicked);
    this.tell();
  },
  beforeUnmount() {
    document.removeEventListener("click", this.clicked);
    this.view.destroy();
  },
  methods: {
    updated(update) {
      if (update.selectionSet || update.docChanged) this.place();
      if (!update.docChanged) return;
      this.number += 1;
      clearTimeout(this.waiting);
      this.waiting = setTimeout(this.flush, WAIT);
    },
    flush() {
      clearTimeout(this.waiting);
      this.tell();
    },
    tell() {
      const text = this.view.state.doc.toString();
      document.dispatchEvent(new CustomEvent("network-text", { detail: text }));
      this.$emit("edited", { text, number: this.number });
    },
    showProblems(problems, number) {
      if (number !== this.number) return;
      this.view.dispatch({ effects: setProblems.of(problems) });
      document.dispatchEvent(new CustomEvent("network-problems", { detail: problems.length }));
      this.place();
    },
    setText(text) {
      this.view.dispatch({ changes: { from: 0, to: this.view.state.doc.length, insert: text } });
    },
    apply(change) {
      const doc = this.view.state.doc;
      const from = offset(doc, change.line, change.column);
      this.view.dispatch({ changes: { from, to: Math.max(from, offset(doc, change.end_line, change.end_column)), insert: change.text }, effects: setProblems.of([]) });
      this.flush();
      this.view.focus();
    },
    // where the cursor is, in the foot of the card; the box of that line is marked in the picture
    place() {
      const head = this.view.state.selection.main.head;
      const line = this.view.state.doc.lineAt(head);
      const foot = document.querySelector("[data-cursor]");
      if (foot) foot.textContent = `Line ${line.number}, column ${head - line.from + 1}`;
      for (const box of document.querySelectorAll(".netbox")) box.classList.toggle("on", box.dataset.lines.split(" ").includes(String(line.number)));
    },
    clicked(event) {
      const target = event.target.closest(".netbox[data-lines], [data-line], [data-editor]");
      if (!target) return;
      if (target.dataset.editor === "undo") CM.undo(this.view);
      else if (target.dataset.editor === "redo") CM.redo(this.view);
      else if (target.dataset.editor === "copy") navigator.clipboard?.writeText(this.view.state.doc.toString()).then(() => window.studio.toast("Copied"));
      else {
        const number = Number((target.dataset.lines ?? target.dataset.line).split(" ")[0]);
        if (!number) return;
        const line = this.view.state.doc.line(Math.min(number, this.view.state.doc.lines));
        this.view.dispatch({ selection: { anchor: line.from + /^\s*/.exec(line.text)[0].length }, scrollIntoView: true });
      }
      this.view.focus();
    },
  },
};
