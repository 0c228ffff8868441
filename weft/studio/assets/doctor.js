// The data doctor: decisions go to the API, then the page reads them; keys press the buttons that show them.
(() => {
  const decide = async (decisions) => {
    const place = document.querySelector("[data-doctor]");
    try {
      await studio.request("PUT", `${place.dataset.doctor}/decisions`, decisions);
    } catch (error) {
      studio.toast(error.message, true);
      return;
    }
    const tell = place.querySelector("[data-emit=decided]");
    tell.dataset.value = JSON.stringify(decisions);
    tell.click();
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-decide]");
    if (button) decide(JSON.parse(button.dataset.decide));
  });
  document.addEventListener("change", (event) => {
    const field = event.target.closest("[data-relabel]");
    if (!field || !field.value) return;
    decide({ [field.dataset.relabel]: `relabel:${field.value}` });
    field.value = "";
  });
  document.addEventListener("change", async (event) => {
    const field = event.target.closest("[data-features]");
    if (!field) return;
    const body = { again: true, features: field.value || null };
    try {
      studio.toast((await studio.request("POST", document.querySelector("[data-doctor]").dataset.doctor, body)).message);
    } catch (error) {
      studio.toast(error.message, true);
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
    if (!/^[a-z]$/i.test(event.key)) return;
    const button = document.querySelector(`[data-key="${event.key.toLowerCase()}"]:not(:disabled)`);
    if (button?.checkVisibility()) button.click();
  });
})();
