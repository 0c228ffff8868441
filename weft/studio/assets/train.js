// The form of a training: its settings are saved as a recipe.
(() => {
  document.addEventListener("click", async (event) => {
    if (!event.target.closest("[data-save-recipe]")) return;
    const name = await studio.asked("Save as recipe", "Name; a recipe that has it is replaced", "Save");
    if (!name) return;
    const { folds, ...settings } = Object.fromEntries(new FormData(document.querySelector("form[data-form=changed]"))); // folds are no setting of a training
    studio.run(() => studio.request("PUT", `/recipes/${encodeURIComponent(name)}`, { settings }));
  });
})();
