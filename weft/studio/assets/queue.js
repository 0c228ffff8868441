// The queue: rows that wait are dragged, or moved by Alt and the arrow keys; priorities are chosen from a list.
(() => {
  const { request, toast } = window.studio;
  const send = (path, body) => request("POST", path, body).catch((error) => toast(error.message, true));
  const rowOf = (event) => event.target.closest?.("[data-reorder] > tr[data-movable]");
  let dragged = null;

  const clear = () => document.querySelectorAll("tr.above, tr.below").forEach((row) => row.classList.remove("above", "below"));
  const isBelow = (row, event) => {
    const box = row.getBoundingClientRect();
    return event.clientY > box.top + box.height / 2;
  };

  document.addEventListener("dragstart", (event) => {
    dragged = rowOf(event);
    if (!dragged) return;
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setData("text/plain", dragged.dataset.name);
    dragged.classList.add("dragged");
  });
  document.addEventListener("dragover", (event) => {
    const row = rowOf(event);
    if (!dragged || !row) return;
    event.preventDefault();
    clear();
    if (row !== dragged) row.classList.add(isBelow(row, event) ? "below" : "above");
  });
  document.addEventListener("drop", (event) => {
    const row = rowOf(event);
    if (!dragged || !row) return;
    event.preventDefault();
    if (row !== dragged) drop(dragged, row, isBelow(row, event));
  });
  document.addEventListener("dragend", () => {
    clear();
    dragged?.classList.remove("dragged");
    dragged = null;
  });

  // The row goes to its new place at once; the server's answer confirms it or puts it back.
  const drop = (row, target, below) => {
    const before = below ? target.nextElementSibling : target;
    if (before === row) return;
    target.parentNode.insertBefore(row, before);
    move(row, before ? { before: Number(before.dataset.job) } : {});
  };
  const move = async (row, body) => {
    await send(`/jobs/${row.dataset.job}/move`, body);
    const rows = [...row.parentNode.children];
    announce(`${row.dataset.name} is at place ${rows.indexOf(row) + 1} of ${rows.length}`);
  };
  const announce = (text) => {
    let place = document.getElementById("announcement");
    if (!place) {
      place = Object.assign(document.createElement("div"), { id: "announcement", className: "away" });
      place.setAttribute("role", "status");
      document.body.append(place);
    }
    place.textContent = text;
  };

  document.addEventListener("keydown", (event) => {
    const row = rowOf(event);
    if (!row || !event.altKey || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    const up = event.key === "ArrowUp";
    const neighbour = up ? row.previousElementSibling : row.nextElementSibling;
    if (!neighbour) return;
    row.parentNode.insertBefore(row, up ? neighbour : neighbour.nextElementSibling);
    row.focus();
    move(row, { by: up ? -1 : 1 });
  });
  document.addEventListener("change", (event) => {
    const chosen = event.target.closest?.("select[data-priority]");
    if (chosen) send(`/jobs/${chosen.dataset.priority}/priority`, { priority: chosen.value });
  });
})();
