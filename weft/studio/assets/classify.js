// The pages that use networks: one image (a drawing, a file, the webcam, a path, an address), many images, and examples of code.
(() => {
  const encoded = (run) => run.split("/").map(encodeURIComponent).join("/");
  const api = async (method, path, body, headers = {}) => {
    const answer = await fetch(`${studio.base}/api/v1${path}`, { method, headers: { "X-Weft-Studio": "1", ...headers }, body });
    const content = await answer.json();
    if (!answer.ok) throw new Error(studio.errorText(content, answer.status));
    return content;
  };
  const make = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const size = (bytes) => (bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`);

  // --- one image ---------------------------------------------------------------------------------------------------------------
  const one = (root) => {
    const canvas = root.querySelector("canvas"), image = root.querySelector("img"), video = root.querySelector("video");
    const hint = root.querySelector("[data-pad] p"), said = root.querySelector("[data-said]"), pad = root.querySelector("[data-pad]");
    const snapper = root.querySelector("[data-snap]");
    const pen = canvas.getContext("2d");
    const cards = [...root.querySelectorAll("[data-network]")].filter((card) => card.matches("section"));
    let source = "draw", strokes = [], stream = null, busy = false, waiting = null;

    const redraw = () => {
      pen.fillStyle = "#000";
      pen.fillRect(0, 0, canvas.width, canvas.height);
      for (const { width, points } of strokes) {
        Object.assign(pen, { strokeStyle: "#f4f4f4", lineWidth: width, lineCap: "round", lineJoin: "round" });
        pen.beginPath();
        pen.moveTo(...points[0]);
        for (const point of points) pen.lineTo(...point);
        pen.stroke();
      }
    };
    const clear = () => {
      strokes = [];
      redraw();
      image.hidden = true;
      snapper.textContent = "Take picture";
      hint.hidden = source === "draw" || source === "camera";
      said.textContent = "";
      cards.forEach(forget);
    };

    // --- sources ---------------------------------------------------------------------------------------------------------------
    const choose = async (next) => {
      source = next;
      root.querySelectorAll("[data-source]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.source === source)));
      root.querySelectorAll("[data-for]").forEach((row) => (row.hidden = row.dataset.for !== source));
      canvas.hidden = source !== "draw";
      video.hidden = source !== "camera";
      stream?.getTracks().forEach((track) => track.stop());
      stream = null;
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
    const view = (address) => {
      image.src = address;
      image.hidden = false;
      snapper.textContent = "Take another";
      canvas.hidden = video.hidden = hint.hidden = true;
    };
    image.addEventListener("error", () => (image.hidden = true)); // the message beside it says why
    const take = (file) => {
      if (!file) return;
      said.textContent = "";
      view(URL.createObjectURL(file));
      ask(file);
    };
    const snap = () => {
      const side = Math.min(video.videoWidth, video.videoHeight);
      const shot = make("canvas", { width: side, height: side });
      shot.getContext("2d").drawImage(video, (video.videoWidth - side) / 2, (video.videoHeight - side) / 2, side, side, 0, 0, side, side);
      shot.toBlob((blob) => take(new File([blob], "webcam.png", { type: "image/png" })));
    };
    root.addEventListener("click", (event) => {
      const button = event.target.closest("[data-source]");
      if (button) choose(button.dataset.source);
      if (event.target.closest("[data-clear]")) clear();
      if (event.target.closest("[data-undo]")) (strokes.pop(), redraw(), strokes.length ? later() : clear());
      if (event.target.closest("[data-snap]") && stream) image.hidden ? snap() : choose("camera");
    });
    root.addEventListener("submit", (event) => {
      event.preventDefault();
      const value = event.target.querySelector("input").value.trim();
      if (value) named(event.target.dataset.for, value);
    });
    const named = (kind, value) => {
      said.textContent = "";
      if (kind === "url") hint.textContent = value;
      else view(`${studio.base}/api/v1/predictions/file.jpg?path=${encodeURIComponent(value)}`);
      ask(JSON.stringify(kind === "url" ? { urls: [value] } : { paths: [value] }));
    };
    root.querySelector("input[type=file]").addEventListener("change", (event) => take(event.target.files[0]));
    pad.addEventListener("dragover", (event) => event.preventDefault());
    pad.addEventListener("drop", (event) => (event.preventDefault(), choose("file"), take(event.dataTransfer.files[0])));
    document.addEventListener("paste", (event) => {
      const file = [...event.clipboardData.files][0];
      if (file) (choose("file"), take(file));
    });

    // --- drawing ---------------------------------------------------------------------------------------------------------------
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [((event.clientX - box.left) * canvas.width) / box.width, ((event.clientY - box.top) * canvas.height) / box.height];
    };
    let drawing = false;
    canvas.addEventListener("pointerdown", (event) => {
      drawing = true;
      canvas.setPointerCapture(event.pointerId);
      strokes.push({ width: +root.querySelector("[data-pen]").value, points: [place(event), place(event)] });
      redraw();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drawing) return;
      strokes.at(-1).points.push(place(event));
      redraw();
      later();
    });
    canvas.addEventListener("pointerup", () => ((drawing = false), later()));
    const later = () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => (busy ? later() : canvas.toBlob((blob) => strokes.length && ask(blob))), 60);
    };

    // --- predictions -------------------------------------------------------------------------------------------------------------
    const ask = async (content) => {
      busy = true;
      await Promise.all(cards.filter((card) => !card.dataset.refused).map((card) => classify(card, content)));
      busy = false;
      showLoaded();
    };
    const post = (path, content) => {
      if (typeof content === "string") return api("POST", path, content, { "Content-Type": "application/json" });
      const form = new FormData();
      form.append("image", content, "image.png");
      return api("POST", path, form);
    };
    const classify = async (card, content) => {
      const path = `/networks/${encoded(card.dataset.network)}/classify?checkpoint=${card.dataset.checkpoint}`;
      try {
        const answer = await post(path, content);
        show(card, { ...answer.results[0], milliseconds: answer.milliseconds });
        settled(card, content, answer.results[0]);
        offerCorrection(card, content, answer.results[0]);
      } catch (error) {
        said.textContent = error.message;
        forget(card); // what it said was about another image
      }
    };
    // The image that a card is about, to be added to the dataset of its network under another class.
    const corrected = new WeakMap();
    const offerCorrection = (card, content, result) => {
      const place = card.querySelector(".correct");
      if (!place) return;
      place.hidden = !result?.classes.length;
      corrected.set(card, content);
    };
    root.addEventListener("click", async (event) => {
      const button = event.target.closest("[data-correct]");
      if (!button) return;
      const content = corrected.get(button.closest("[data-network]")), { correct: dataset, classes } = button.dataset;
      const label = await studio.asked(`Add to ${dataset}`, "The right class of this image", "Add", JSON.parse(classes));
      if (!label) return;
      try {
        studio.toast((await post(`/datasets/${encodeURIComponent(dataset)}/corrections?${new URLSearchParams({ label })}`, content)).message);
      } catch (error) {
        studio.toast(error.message, true);
      }
    });
    const forget = (card) => {
      show(card, null);
      offerCorrection(card, null, null);
      clearTimeout(resting.get(card));
      document.querySelector(`[data-why-of="${CSS.escape(card.dataset.key)}"]`).dispatchEvent(new CustomEvent("unclassified", { bubbles: true }));
    };
    // Explaining costs many predictions, so a drawing is explained when the pen rests.
    const resting = new Map();
    const settled = (card, content, result) => {
      const place = document.querySelector(`[data-why-of="${CSS.escape(card.dataset.key)}"]`);
      clearTimeout(resting.get(card));
      resting.set(card, setTimeout(() => {
        place.dispatchEvent(new CustomEvent("classified", { bubbles: true, detail: { network: card.dataset.network, checkpoint: card.dataset.checkpoint, content, result } }));
      }, source === "draw" ? 600 : 0));
    };
    const show = (card, result) => {
      const best = result?.classes[0];
      const answer = card.querySelector("[data-answer]");
      answer.textContent = best?.name ?? result?.numbers.slice(0, 8).map((v) => +v.toPrecision(4)).join(", ") ?? "–";
      answer.classList.toggle("long", answer.textContent.length > 4);
      card.querySelector("[data-sure]").textContent = best ? `${(100 * best.probability).toFixed(1)} % sure` : "";
      card.querySelector("[data-time]").textContent = result ? `${result.milliseconds < 10 ? result.milliseconds.toFixed(1) : Math.round(result.milliseconds)} ms` : "";
      card.querySelector("[data-shares]").replaceChildren(...(result?.classes ?? []).map((c, i) => {
        const bar = make("div", { className: "bar" }, make("i"));
        bar.style.setProperty("--v", `${100 * c.probability}%`);
        if (i) bar.style.setProperty("--c", "var(--q3)");
        return make("li", {}, make("span", { textContent: c.name, title: c.name, className: i ? "clip" : "clip strong" }), bar, make("b", { textContent: `${(100 * c.probability).toFixed(1)} %` }));
      }));
    };

    // --- networks in memory ------------------------------------------------------------------------------------------------------
    const load = async (card) => {
      try {
        const found = await api("POST", `/networks/${encoded(card.dataset.network)}/load?checkpoint=${card.dataset.checkpoint}`);
        card.querySelector("[data-device]").textContent = "CPU, loaded";
        card.querySelector("[data-memory]").textContent = size(found.nbytes);
        card.querySelector("[data-notes]").textContent = found.notes.join(" ");
      } catch (error) {
        card.dataset.refused = "1";
        card.querySelector("[data-device]").textContent = "not loaded";
        Object.assign(card.querySelector("[data-problem]"), { hidden: false, textContent: error.message });
      }
    };
    const showLoaded = async () => {
      const found = await api("GET", "/networks/loaded");
      const table = document.querySelector("[data-loaded]");
      table.hidden = !found.length;
      document.querySelector("[data-loaded-sum]").textContent = `${found.length} ${found.length === 1 ? "network" : "networks"}, ${size(found.reduce((sum, f) => sum + f.nbytes, 0))}`;
      table.querySelector("tbody").replaceChildren(...found.map((f) => {
        const release = make("button", { type: "button", className: "btn small", textContent: "Release" });
        release.setAttribute("aria-label", `Release ${f.id}`);
        release.addEventListener("click", async () => {
          await api("DELETE", `/networks/${encoded(f.id)}/loaded?checkpoint=${f.checkpoint}`);
          cards.filter((card) => card.dataset.network === f.id).forEach((card) => (card.querySelector("[data-device]").textContent = "CPU, released"));
          showLoaded();
        });
        const cell = (text, className = "") => make("td", { textContent: text, className });
        const used = new Date(1000 * f.used).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
        return make("tr", {}, cell(f.id, "strong"), cell(f.checkpoint || "–"), cell(size(f.nbytes), "r num"), cell(used), make("td", { className: "r" }, release));
      }));
    };
    Promise.all(cards.map(load)).then(showLoaded);
    choose(root.querySelector("[data-source][aria-pressed=true]").dataset.source);
    if (root.dataset.path) named("path", root.dataset.path);
  };

  // --- many images -------------------------------------------------------------------------------------------------------------
  const many = (root) => {
    const form = root.querySelector("form"), said = root.querySelector("[data-said]"), upload = root.querySelector("[data-upload]");
    let from = "path";
    root.addEventListener("click", (event) => {
      const button = event.target.closest("[data-from]");
      if (!button) return;
      from = button.dataset.from;
      root.querySelectorAll("[data-from]").forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
      root.querySelectorAll("[data-only]").forEach((f) => (f.hidden = f.dataset.only !== from));
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      said.textContent = "";
      const button = form.querySelector("button");
      const [network, checkpoint = "best"] = form.network.value.split("@");
      button.disabled = true;
      try {
        const made = from === "zip" ? await send(form.zip.files[0], network, checkpoint) : await studio.request("POST", "/predictions", { network, checkpoint, path: form.path.value });
        location.assign(studio.base + made.open);
      } catch (error) {
        said.textContent = error.message;
      } finally {
        button.disabled = false;
        upload.textContent = "";
      }
    });
    // XMLHttpRequest tells how much was sent.
    const send = (file, network, checkpoint) => new Promise((resolve, reject) => {
      if (!file) return reject(new Error("Choose a zip file."));
      const request = new XMLHttpRequest();
      request.open("POST", `${studio.base}/api/v1/predictions/upload?${new URLSearchParams({ network, checkpoint, name: file.name })}`);
      request.setRequestHeader("X-Weft-Studio", "1");
      request.setRequestHeader("Content-Type", "application/zip");
      request.upload.onprogress = (event) => (upload.textContent = `${Math.round((100 * event.loaded) / event.total)} % sent`);
      request.onload = () => {
        let content = null;
        try {
          content = JSON.parse(request.responseText);
        } catch {} // a page of a proxy, for example
        request.status < 300 && content ? resolve(content) : reject(new Error(studio.errorText(content, request.status)));
      };
      request.onerror = () => reject(new Error("The upload was interrupted."));
      request.send(file);
    });
  };

  // --- everything else -----------------------------------------------------------------------------------------------------------
  const code = (root) => {
    const shown = () => root.querySelector("[data-example]:not([hidden])");
    root.querySelectorAll("[data-here]").forEach((here) => (here.textContent = location.origin));
    root.addEventListener("click", async (event) => {
      const button = event.target.closest("[data-language]");
      if (button) {
        root.querySelectorAll("[data-language]").forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
        root.querySelectorAll("[data-example]").forEach((e) => (e.hidden = e.dataset.example !== button.dataset.language));
      }
      if (event.target.closest("[data-copy]")) (await navigator.clipboard.writeText(shown().textContent), studio.toast("Copied"));
    });
  };
  const networks = (menu) => {
    menu.addEventListener("input", (event) => {
      if (!event.target.matches("[data-search-networks]")) return;
      menu.querySelectorAll("li").forEach((row) => (row.hidden = !row.textContent.toLowerCase().includes(event.target.value.toLowerCase())));
    });
    menu.querySelector("[data-use-networks]").addEventListener("click", () => {
      const runs = [...menu.querySelectorAll("input:checked")].map((box) => box.value).join(",");
      const tab = new URLSearchParams(location.search).get("tab");
      location.assign(`${studio.base}/classify?${new URLSearchParams({ runs, ...(tab ? { tab } : {}) })}`);
    });
  };
  // The page is mounted by a script that runs after this one.
  const parts = [["[data-classify]", one], ["[data-many]", many], ["[data-code]", code], ["[data-networks]", networks]];
  const wait = () => {
    parts.forEach(([selector, start]) => document.querySelectorAll(`${selector}:not([data-started])`).forEach((root) => ((root.dataset.started = "1"), start(root))));
    if (!document.querySelector("[data-started]") || document.readyState !== "complete") setTimeout(wait, 50);
  };
  wait();
  addEventListener("load", () => setTimeout(wait, 300));
})();
