// Sends an image that was chosen on the Layers tab, and tells the page its name.
document.addEventListener("change", async (event) => {
  const input = event.target.closest("input[type=file][data-upload]");
  if (!input?.files.length) return;
  const run = input.dataset.upload.split("/").map(encodeURIComponent).join("/");
  const form = new FormData();
  form.append("image", input.files[0]);
  input.value = "";
  const answer = await fetch(`${studio.base}/api/v1/networks/${run}/images?checkpoint=${input.dataset.checkpoint}`, { method: "POST", headers: { "X-Weft-Studio": "1" }, body: form });
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) return studio.toast(studio.errorText(content, answer.status), true);
  const told = document.querySelector("[data-uploaded]");
  told.value = content.image;
  told.dispatchEvent(new Event("change", { bubbles: true }));
});

// A slider says its epoch while it moves: the network is loaded meanwhile.
document.addEventListener("input", (event) => {
  const slider = event.target.closest("input[data-epochs]");
  if (!slider) return;
  const told = slider.parentElement.querySelector("output");
  told.textContent = slider.dataset.epochs.split(",")[slider.value];
  slider.setAttribute("aria-valuetext", `epoch ${slider.parentElement.querySelector(".num").textContent}`);
});
