// The map of a run's images: points in the colours of their classes, pictures under the pointer, images of a selection beside it.
(() => {
  const RADIUS = innerWidth < 640 ? 2.6 : 3.6, REACH = 12, MOST = 120;
  const make = (tag, attributes = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...children);
    return made;
  };
  const icon = (name) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    made.setAttribute("class", "i s");
    made.setAttribute("aria-hidden", "true");
    const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
    use.setAttribute("href", `#i-${name}`);
    made.append(use);
    return made;
  };
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // A circle; where the eight colours repeat, a square, then a diamond, then a triangle.
  const trace = (pen, shape, x, y, r) => {
    pen.beginPath();
    if (shape === 0) pen.arc(x, y, r, 0, 7);
    else if (shape === 1) pen.rect(x - r, y - r, 2 * r, 2 * r);
    else if (shape === 2) (pen.moveTo(x, y - 1.4 * r), pen.lineTo(x + 1.4 * r, y), pen.lineTo(x, y + 1.4 * r), pen.lineTo(x - 1.4 * r, y), pen.closePath());
    else (pen.moveTo(x, y - 1.3 * r), pen.lineTo(x + 1.2 * r, y + r), pen.lineTo(x - 1.2 * r, y + r), pen.closePath());
  };

  const start = async (root) => {
    const answer = await fetch(root.dataset.address);
    if (!answer.ok) return void root.replaceChildren(make("div", { className: "problem", textContent: "The map cannot be read. Make it again." }));
    const data = await answer.json(), count = data.labels.length, classes = data.classes;
    const wrong = data.labels.map((label, i) => classes.length > 0 && label !== data.predicted[i]);
    const name = (i, value) => (classes.length ? classes[value] : (+[value].flat()[0]).toPrecision(3));
    const view = { places: "tsne", onlyWrong: false, hidden: new Set(), selected: [], hover: -1 };

    // --- elements -------------------------------------------------------------------------------------------------------------
    const canvas = make("canvas", { tabIndex: 0, ariaLabel: `Map of ${count} ${data.split} images, ${wrong.filter(Boolean).length} of them predicted wrongly` });
    canvas.setAttribute("role", "img");
    const tip = make("div", { className: "map-tip", hidden: true }), box = make("div", { className: "map-box", hidden: true });
    const plot = make("div", { className: "map-plot" }, canvas, tip, box);
    const segment = make("span", { className: "seg" }, ...[["tsne", "t-SNE"], ["pca", "PCA"]].map(([key, title]) => {
      const button = make("button", { type: "button", textContent: title, ariaPressed: String(key === view.places) });
      button.addEventListener("click", () => {
        view.places = key;
        [...segment.children].forEach((one) => (one.ariaPressed = String(one === button)));
        draw();
      });
      return button;
    }));
    segment.setAttribute("role", "group");
    segment.ariaLabel = "Projection";
    const only = make("input", { type: "checkbox", className: "check" });
    only.addEventListener("change", () => ((view.onlyWrong = only.checked), draw()));
    const head = make("div", { className: "chead" }, make("h2", { textContent: "Map" }), make("span", { className: "tiny faint", textContent: `${count.toLocaleString("en")} ${data.split} images` }), make("span", { className: "end map-view" }, make("label", { className: "sw" }, only, `Only mistakes (${wrong.filter(Boolean).length})`), segment));
    const legend = make("div", { className: "map-legend" }, ...classes.map((title, i) => {
      const mark = make("canvas", { width: 24, height: 24 });
      const button = make("button", { type: "button", ariaPressed: "true", title: `Show or hide ${title}` }, mark, title);
      button.addEventListener("click", () => {
        view.hidden.has(i) ? view.hidden.delete(i) : view.hidden.add(i);
        button.ariaPressed = String(!view.hidden.has(i));
        draw();
      });
      return button;
    }));
    const foot = make("div", { className: "cfoot" }, legend, make("span", { className: "end", textContent: "Rings are mistakes. Drag to select." }));
    const list = make("div", { className: "cbody map-list", tabIndex: 0 }), listTitle = make("h2"), listNote = make("span", { className: "tiny faint" });
    const clear = make("button", { type: "button", className: "btn small ghost", textContent: "Clear", hidden: true });
    clear.addEventListener("click", () => select([]));
    const map = make("section", { className: "card", ariaLabel: "Map" }, head, plot, foot);
    const side = make("section", { className: "card", ariaLabel: "Selected images" }, make("div", { className: "chead" }, listTitle, listNote, make("span", { className: "end" }, clear)), list);
    root.replaceChildren(make("div", { className: "cols map" }, map, side));

    // --- drawing --------------------------------------------------------------------------------------------------------------
    const colour = (i) => (classes.length ? variable(`--s${(data.labels[i] % 8) + 1}`) : variable(`--q${Math.round(1 + 6 * share[i])}`));
    const values = data.labels.map((v) => +[v].flat()[0]);
    const low = Math.min(...values), high = Math.max(...values), share = values.map((v) => (v - low) / (high - low || 1));
    const visible = (i) => !(view.onlyWrong && !wrong[i]) && !(classes.length && view.hidden.has(data.labels[i]));
    let at = [];
    const draw = () => {
      const scale = devicePixelRatio, width = plot.clientWidth, height = plot.clientHeight;
      if (!width) return;
      Object.assign(canvas, { width: width * scale, height: height * scale });
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      const points = data[view.places], edge = 20;
      const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
      const left = Math.min(...xs), top = Math.min(...ys), wide = Math.max(...xs) - left || 1, high_ = Math.max(...ys) - top || 1;
      const zoom = Math.min((width - 2 * edge) / wide, (height - 2 * edge) / high_);
      const dx = (width - zoom * wide) / 2, dy = (height - zoom * high_) / 2;
      at = points.map(([x, y]) => [dx + zoom * (x - left), height - dy - zoom * (y - top)]);
      const chosen = new Set(view.selected), ink = variable("--ink"), paper = variable("--surface");
      const order = at.map((_, i) => i).filter(visible).sort((a, b) => wrong[a] - wrong[b]);
      for (const i of order) {
        const [x, y] = at[i];
        pen.globalAlpha = chosen.size && !chosen.has(i) ? 0.25 : 0.9;
        trace(pen, classes.length ? Math.floor(data.labels[i] / 8) % 4 : 0, x, y, RADIUS);
        pen.fillStyle = colour(i);
        pen.fill();
        if (wrong[i]) {
          pen.lineWidth = 1.6;
          pen.strokeStyle = ink;
          pen.beginPath();
          pen.arc(x, y, RADIUS + 2.4, 0, 7);
          pen.stroke();
        }
      }
      pen.globalAlpha = 1;
      if (view.hover >= 0) {
        const [x, y] = at[view.hover];
        pen.lineWidth = 2;
        pen.strokeStyle = paper;
        trace(pen, 0, x, y, RADIUS + 1.5);
        pen.stroke();
        pen.strokeStyle = ink;
        trace(pen, 0, x, y, RADIUS + 3.5);
        pen.stroke();
      }
      [...legend.children].forEach((button, i) => {
        const dot = button.firstChild.getContext("2d");
        dot.clearRect(0, 0, 24, 24);
        dot.fillStyle = variable(`--s${(i % 8) + 1}`);
        trace(dot, Math.floor(i / 8) % 4, 12, 12, 7);
        dot.fill();
      });
    };

    // --- pointer ----------------------------------------------------------------------------------------------------------------
    const place = (event) => {
      const bounds = canvas.getBoundingClientRect();
      return [event.clientX - bounds.left, event.clientY - bounds.top];
    };
    const nearest = ([x, y]) => {
      let best = -1, distance = REACH ** 2;
      at.forEach(([px, py], i) => {
        const d = (px - x) ** 2 + (py - y) ** 2;
        if (d < distance && visible(i)) (best = i), (distance = d);
      });
      return best;
    };
    const source = (i) => `${root.dataset.address}/${i}.png?v=${root.dataset.stamp}`;
    const picture = (i) => {
      const made = make("img", { alt: `${name(i, data.labels[i])}, predicted ${name(i, data.predicted[i])}`, loading: "lazy" });
      made.addEventListener("load", () => made.naturalWidth <= 32 && made.classList.add("small"));
      made.src = source(i);
      return made;
    };
    const hover = (i) => {
      if (i === view.hover) return;
      view.hover = i;
      tip.hidden = i < 0;
      if (i >= 0) {
        const sure = data.probability[i] == null ? "" : `, ${Math.round(100 * data.probability[i])} %`;
        const said = make("span", { textContent: `says ${name(i, data.predicted[i])}${sure}` });
        if (wrong[i]) said.style.color = "var(--bad)";
        tip.replaceChildren(picture(i), make("div", {}, make("b", { textContent: name(i, data.labels[i]) }), make("br"), said, make("br"), make("span", { className: "faint", textContent: `${data.split} image ${data.index[i]}` })));
        const [x, y] = at[i];
        tip.style.left = `${x > plot.clientWidth / 2 ? Math.max(0, x - tip.offsetWidth - 14) : x + 14}px`;
        tip.style.top = `${Math.max(0, Math.min(plot.clientHeight - tip.offsetHeight, y - tip.offsetHeight / 2))}px`;
      }
      draw();
    };
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      from = place(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const to = place(event);
      if (!from || Math.hypot(to[0] - from[0], to[1] - from[1]) < 4) return hover(nearest(to));
      hover(-1);
      box.hidden = false;
      Object.assign(box.style, { left: `${Math.min(from[0], to[0])}px`, top: `${Math.min(from[1], to[1])}px`, width: `${Math.abs(to[0] - from[0])}px`, height: `${Math.abs(to[1] - from[1])}px` });
    });
    canvas.addEventListener("pointerup", (event) => {
      const to = place(event);
      if (!box.hidden) select(at.map((_, i) => i).filter((i) => visible(i) && (at[i][0] - from[0]) * (at[i][0] - to[0]) <= 0 && (at[i][1] - from[1]) * (at[i][1] - to[1]) <= 0));
      else if (nearest(to) >= 0) select([nearest(to)]);
      else select([]);
      box.hidden = true;
      from = null;
    });
    canvas.addEventListener("pointercancel", () => ((box.hidden = true), (from = null)));
    canvas.addEventListener("pointerleave", () => hover(-1));

    // --- the list: what is selected, else the mistakes -------------------------------------------------------------------------------
    const select = (chosen) => {
      view.selected = chosen;
      clear.hidden = !chosen.length;
      const mistakes = at.map((_, i) => i).filter((i) => wrong[i]);
      const shown = (chosen.length ? chosen : mistakes).slice().sort((a, b) => wrong[b] - wrong[a] || (data.probability[b] ?? 0) - (data.probability[a] ?? 0));
      listTitle.textContent = chosen.length ? `${chosen.length.toLocaleString("en")} selected` : "Mistakes";
      const bad = shown.filter((i) => wrong[i]).length;
      listNote.textContent = chosen.length ? (classes.length ? `${bad} wrong` : "") : `${bad}, the most confident first`;
      const thumbs = make("div", { className: "thumbs" }, ...shown.slice(0, MOST).map((i) => {
        const label = make("span", { className: wrong[i] ? "clip wrong" : "clip", textContent: name(i, data.predicted[i]), title: `true: ${name(i, data.labels[i])}` });
        const mark = wrong[i] ? make("span", { className: "wrong" }, icon("cross")) : icon("check");
        const made = make("figure", { className: "thumb" }, picture(i), make("figcaption", {}, ...(classes.length ? [mark] : []), label));
        made.addEventListener("pointerenter", () => hover(i));
        made.addEventListener("pointerleave", () => hover(-1));
        return made;
      }));
      list.replaceChildren(shown.length ? thumbs : make("p", { className: "small mute", textContent: classes.length ? "No mistakes among these images." : "Drag over the map to see images." }));
      if (shown.length > MOST) list.append(make("p", { className: "tiny mute next", textContent: `and ${(shown.length - MOST).toLocaleString("en")} more` }));
      draw();
    };
    draw();
    select([]);
    new ResizeObserver(draw).observe(plot);
    window.addEventListener("themechange", draw);
    canvas.addEventListener("keydown", (event) => event.key === "Escape" && select([]));
  };

  const started = new WeakMap();
  const look = () =>
    document.querySelectorAll("[data-embedding]").forEach((root) => {
      if (started.get(root) === root.dataset.stamp) return;
      started.set(root, root.dataset.stamp);
      start(root);
    });
  new MutationObserver(look).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-stamp"] });
  look();
})();
