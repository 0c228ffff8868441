// The page of imports: a file is sent as it is, or a path of the server is named; the answer says where the network is shown.
(() => {
  document.addEventListener("change", (event) => {
    const input = event.target.closest("[data-import] input[type=file]");
    if (input) document.querySelector("[data-chosen]").textContent = input.files[0]?.name ?? "Choose a file";
  });
  document.addEventListener("submit", async (event) => {
    const form = event.target.closest("[data-import]");
    if (!form) return;
    event.preventDefault();
    const said = form.querySelector("[data-said]");
    const go = form.querySelector("[data-go]");
    const file = form.querySelector("input[type=file]").files[0];
    const { path, name } = Object.fromEntries(new FormData(form));
    if (!file && !path.trim()) return (said.textContent = "Choose a file, or name one of the server.");
    go.disabled = true;
    said.textContent = "Reading the file";
    try {
      const made = file ? await upload(file, name) : await studio.request("POST", "/designs/import-path", { path, name: name || null });
      location.assign(studio.base + made.open);
    } catch (error) {
      said.textContent = "";
      studio.toast(error.message, true);
    } finally {
      go.disabled = false;
    }
  });
  const upload = async (file, name) => {
    const query = new URLSearchParams({ filename: file.name, ...(name ? { name } : {}) });
    const answer = await fetch(`${studio.base}/api/v1/designs/import?${query}`, { method: "POST", headers: { "X-Weft-Studio": "1" }, body: file });
    const content = await answer.json();
    if (!answer.ok) throw new Error(studio.errorText(content, answer.status));
    return content;
  };
})();
