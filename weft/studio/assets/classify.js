// The page that classifies one image: a drawing, a file, or a picture of the webcam.
(() => {
  const start = (root) => {
    const canvas = root.querySelector("canvas"), image = root.querySelector("img"), video = root.querySelector("video");
    const hint = root.querySelector("[data-pad] p"), said = root.querySelector("[data-said]"), pad = root.querySelector("[data-pad]");
    const pen = canvas.getContext("2d");
    let source = "draw", drawing = false, stream = null, busy = false, waiting = null;

    const clear = () => {
      pen.fillStyle = "#000";
      pen.fillRect(0, 0, canvas.width, canvas.height);
      image.hidden = true;
      hint.hidden = source !== "file";
      root.querySelectorAll("[data-network]").forEach((card) => show(card, null));
    };

    // --- sources --------------------------------------------------------------------------------------------------------------
    const choose = async (next) => {
      source = next;
      root.querySelectorAll("[data-source]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.source === source)));
      root.querySelector("[data-choose]").hidden = source !== "file";
      root.querySelector("[data-snap]").hidden = source !== "camera";
      canvas.hidden = source !== "draw";
      video.hidden = source !== "camera";
      stream?.getTracks().forEach((track) => track.stop());
      stream = null;
      said.textContent = "";
      clear();
      if (source !== "camera") return;
      try {
        stream = await navigator.mediaDevices.getUserMedia({ video: { width: 640, height: 640 } });
        video.srcObject = stream;
        await video.play();
      } catch (error) {
        said.textContent = "The webcam cannot be used: " + (error.name === "NotAllowedError" ? "allow it in the browser." : "none was found.");
      }
    };
    const take = (file) => {
      if (!file?.type.startsWith("image/")) return void (said.textContent = "An image file is required.");
      image.src = URL.createObjectURL(file);
      image.hidden = false;
      canvas.hidden = video.hidden = hint.hidden = true;
      ask(file);
    };
    root.addEventListener("click", (event) => {
      const button = event.target.closest("[data-source]");
      if (button) choose(button.dataset.source);
      if (event.target.closest("[data-clear]")) choose(source);
      if (event.target.closest("[data-snap]") && stream) snap();
    });
    const snap = () => {
      const side = Math.min(video.videoWidth, video.videoHeight);
      const shot = Object.assign(document.createElement("canvas"), { width: side, height: side });
      shot.getContext("2d").drawImage(video, (video.videoWidth - side) / 2, (video.videoHeight - side) / 2, side, side, 0, 0, side, side);
      shot.toBlob((blob) => take(new File([blob], "webcam.png", { type: "image/png" })));
    };
    root.querySelector("input[type=file]").addEventListener("change", (event) => take(event.target.files[0]));
    pad.addEventListener("dragover", (event) => event.preventDefault());
    pad.addEventListener("drop", (event) => (event.preventDefault(), choose("file"), take(event.dataTransfer.files[0])));
    document.addEventListener("paste", (event) => {
      const file = [...event.clipboardData.files][0];
      if (file) (choose("file"), take(file));
    });

    // --- drawing --------------------------------------------------------------------------------------------------------------
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [((event.clientX - box.left) * canvas.width) / box.width, ((event.clientY - box.top) * canvas.height) / box.height];
    };
    canvas.addEventListener("pointerdown", (event) => {
      drawing = true;
      canvas.setPointerCapture(event.pointerId);
      Object.assign(pen, { strokeStyle: "#fff", lineWidth: 22, lineCap: "round", lineJoin: "round" });
      pen.beginPath();
      pen.moveTo(...place(event));
      pen.lineTo(...place(event));
      pen.stroke();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drawing) return;
      pen.lineTo(...place(event));
      pen.stroke();
      later();
    });
    canvas.addEventListener("pointerup", () => ((drawing = false), later()));
    const later = () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => (busy ? later() : canvas.toBlob((blob) => ask(blob))), 120);
    };

    // --- predictions ------------------------------------------------------------------------------------------------------------
    const ask = async (blob) => {
      busy = true;
      await Promise.all([...root.querySelectorAll("[data-network]")].map(async (card) => {
        const form = new FormData();
        form.append("image", blob, "image.png");
        const run = card.dataset.network.split("/").map(encodeURIComponent).join("/");
        const answer = await fetch(`${studio.base}/api/v1/networks/${run}/classify`, { method: "POST", headers: { "X-Weft-Studio": "1" }, body: form });
        const content = await answer.json();
        if (answer.ok) show(card, content);
        else studio.toast(content.message ?? content.detail ?? `The server answered ${answer.status}.`, true);
      }));
      busy = false;
    };
    const show = (card, content) => {
      const best = content?.classes[0];
      card.querySelector("[data-answer]").textContent = best?.name ?? content?.numbers.map((v) => +v.toPrecision(4)).join(", ") ?? "–";
      card.querySelector("[data-sure]").textContent = best ? `${(100 * best.probability).toFixed(1)} % sure` : "";
      card.querySelector("[data-time]").textContent = content ? `${content.milliseconds.toFixed(1)} ms` : "";
      card.querySelector("[data-shares]").replaceChildren(...(content?.classes ?? []).map((one, i) => {
        const row = document.createElement("li");
        const name = Object.assign(document.createElement("span"), { textContent: one.name, className: i ? "clip" : "clip strong" });
        const bar = Object.assign(document.createElement("div"), { className: "bar" });
        bar.style.setProperty("--v", `${100 * one.probability}%`);
        if (i) bar.style.setProperty("--c", "var(--q3)");
        bar.append(document.createElement("i"));
        row.append(name, bar, Object.assign(document.createElement("b"), { textContent: `${(100 * one.probability).toFixed(1)} %` }));
        return row;
      }));
    };
    document.querySelectorAll("[data-here]").forEach((one) => (one.textContent = location.origin));
    choose(root.querySelector("[data-source][aria-pressed=true]").dataset.source);
  };

  // The page is mounted by a script that runs after this one.
  const found = () => document.querySelector("[data-classify]");
  const wait = () => (found() ? start(found()) : setTimeout(wait, 50));
  wait();
})();
