// Parallel coordinates of a sweep: dragging along an axis filters the lines and the table, pointing at a line or a row marks the trial everywhere.
// The server changes the chart while trials run, so that marks are kept here and set again after each change.
(() => {
  const brushes = new Map(); // number of the axis -> [low, high], from 0 (below) to 1
  let hot = null; // number of the trial under the pointer

  const chart = () => document.querySelector("[data-brushes]");
  const set = (element, name, on) => element.classList.contains(name) !== on && element.classList.toggle(name, on);

  const refresh = () => {
    const box = chart();
    if (!box) return;
    const kept = new Map();
    let shown = 0;
    for (const line of box.querySelectorAll("[data-places]")) {
      const places = line.dataset.places.split(" ").map(Number);
      const on = [...brushes].every(([axis, [low, high]]) => places[axis] >= low - 1e-6 && places[axis] <= high + 1e-6);
      kept.set(line.dataset.trial, on);
      shown += on;
      set(line, "off", !on);
    }
    for (const one of document.querySelectorAll("a[data-trial], tr[data-trial]")) {
      if (one.matches("tr")) set(one, "off", kept.get(one.dataset.trial) === false);
      set(one, "hot", one.dataset.trial === hot);
    }
    tell(box, shown, kept.size);
  };
  const tell = (box, shown, all) => {
    const place = document.querySelector("[data-readout]");
    const line = hot && box.querySelector(`[data-places][data-trial="${hot}"]`);
    const text = line ? line.dataset.text : brushes.size ? `${shown} of ${all} trials, click an axis to show all` : place.dataset.hint;
    if (place.textContent !== text) place.textContent = text;
  };

  const show = (axis, range) => {
    const mark = axis.querySelector(".pcb"), number = Number(axis.dataset.axis);
    if (range) brushes.set(number, range);
    else brushes.delete(number);
    mark.hidden = !range;
    if (range) Object.assign(mark.style, { bottom: `${100 * range[0]}%`, height: `${100 * (range[1] - range[0])}%` });
    axis.setAttribute("aria-valuetext", range ? `${Math.round(100 * range[0])} to ${Math.round(100 * range[1])} percent of the axis` : "all");
    refresh();
  };

  document.addEventListener("pointerdown", (event) => {
    const axis = event.target.closest("[data-brushes] [data-axis]");
    if (!axis || event.button !== 0) return;
    event.preventDefault();
    const box = axis.getBoundingClientRect();
    const at = (e) => Math.min(Math.max((box.bottom - e.clientY) / box.height, 0), 1);
    const start = at(event);
    const move = (e) => {
      const range = [start, at(e)].sort((a, b) => a - b);
      show(axis, range[1] - range[0] < 0.02 ? null : range);
    };
    const end = (e) => (move(e), window.removeEventListener("pointermove", move), window.removeEventListener("pointerup", end));
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", end);
  });

  // The keyboard: up and down move the filter, with Shift they change its height, Escape removes it.
  document.addEventListener("keydown", (event) => {
    const axis = event.target.closest?.("[data-brushes] [data-axis]");
    if (!axis || !["ArrowUp", "ArrowDown", "Escape"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Escape") return show(axis, null);
    const [low, high] = brushes.get(Number(axis.dataset.axis)) ?? [0.75, 1], step = event.key === "ArrowUp" ? 0.05 : -0.05;
    if (!brushes.has(Number(axis.dataset.axis))) return show(axis, [low, high]);
    if (event.shiftKey) return show(axis, [low, Math.min(1, Math.max(low + 0.05, high + step))]);
    const by = Math.min(Math.max(step, -low), 1 - high);
    show(axis, [low + by, high + by]);
  });

  document.addEventListener("pointerover", (event) => {
    const found = event.target.closest?.("[data-trial]")?.dataset.trial ?? null;
    if (found !== hot) ((hot = found), refresh());
  });

  new MutationObserver(refresh).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["class", "data-places"] });
})();
