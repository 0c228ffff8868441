// The table of runs: which columns it has, and what is done with the selected runs.
(() => {
  const { base, request, toast } = window.studio;

  // --- columns: checked ones in their order, kept in this browser ------------------------------------------------------------
  const save = (list) => {
    const keys = [...list.children].filter((item) => item.querySelector("input").checked).map((item) => item.dataset.column);
    const text = keys.join("|");
    document.cookie = `run_columns=${encodeURIComponent(text)}; path=${base || "/"}; max-age=31536000; samesite=strict`;
    const field = list.closest(".chooser").querySelector("[data-emit=columns]");
    field.value = text;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  };
  document.addEventListener("change", (event) => {
    const list = event.target.closest?.("[data-columns]");
    if (list) save(list);
  });
  document.addEventListener("input", (event) => {
    if (!event.target.matches?.("[data-column-search]")) return;
    const wanted = event.target.value.toLowerCase();
    for (const item of event.target.closest(".panel").querySelectorAll("[data-column]"))
      item.hidden = !item.textContent.toLowerCase().includes(wanted);
  });
  let dragged = null;
  document.addEventListener("dragstart", (event) => {
    dragged = event.target.closest?.("[data-columns] > li") ?? null;
    if (dragged) event.dataTransfer.effectAllowed = "move";
  });
  document.addEventListener("dragover", (event) => {
    const over = event.target.closest?.("[data-columns] > li");
    if (!dragged || !over) return;
    event.preventDefault();
    const box = over.getBoundingClientRect();
    if (over !== dragged) over.parentNode.insertBefore(dragged, event.clientY > box.top + box.height / 2 ? over.nextSibling : over);
  });
  document.addEventListener("dragend", () => {
    if (dragged) save(dragged.parentNode);
    dragged = null;
  });
  document.addEventListener("keydown", (event) => {
    const item = event.target.closest?.("[data-columns] > li");
    if (!item || !event.altKey || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    const up = event.key === "ArrowUp";
    const neighbour = up ? item.previousElementSibling : item.nextElementSibling;
    if (!neighbour) return;
    item.parentNode.insertBefore(item, up ? neighbour : neighbour.nextElementSibling);
    item.focus();
    save(item.parentNode);
  });

  // --- selected runs ---------------------------------------------------------------------------------------------------------
  const { asked } = studio;
  const count = (runs) => `${runs.length} run${runs.length === 1 ? "" : "s"}`;
  const split = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
  const ACTIONS = {
    async tag(runs) {
      const text = await asked(`Tag ${count(runs)}`, "Tags to add, separated by commas; a minus before a tag removes it", "Tag");
      if (!text) return;
      const all = split(text);
      const remove = all.filter((tag) => tag.startsWith("-")).map((tag) => tag.slice(1));
      return request("POST", "/runs/annotate", { runs, add_tags: all.filter((tag) => !tag.startsWith("-")), remove_tags: remove });
    },
    async group(runs) {
      const text = await asked(`Group ${count(runs)}`, "Name of the group; empty takes them out of theirs", "Group");
      if (text !== null) return request("POST", "/runs/annotate", { runs, group: text });
    },
    async export(runs) {
      location.assign(`${base}/api/v1/runs/export?runs=${encodeURIComponent(runs.join(","))}`);
    },
    async delete(runs, names) {
      const shown = names.slice(0, 5).join(", ") + (names.length > 5 ? ` and ${names.length - 5} more` : "");
      const text = `Delete ${shown}? They go to the trash with their weights and charts, and can be restored from there.`;
      if (await window.studio.confirmed(text, names.length === 1 ? `Delete ${names[0]}` : `Delete ${count(names)}`))
        return request("POST", "/runs/delete", { runs });
    },
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-bulk]");
    if (!button) return;
    const bar = button.closest("[data-runs]");
    try {
      const answer = await ACTIONS[button.dataset.bulk](JSON.parse(bar.dataset.runs), JSON.parse(bar.dataset.names));
      if (answer) window.studio.follow(answer);
      if (button.dataset.bulk === "delete" && answer) bar.querySelector("[data-emit=clear]")?.click();
    } catch (error) {
      toast(error.message, true);
    }
  });
})();
