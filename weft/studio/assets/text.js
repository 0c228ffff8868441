// Continuing a text: the form, and what the network writes, as it writes it.
(() => {
  const asked = (form) => {
    const given = [...new FormData(form)].filter(([, value]) => value !== "");
    return Object.fromEntries(given.map(([name, value]) => [name, name === "prompt" ? value : Number(value)]));
  };

  // The events of an answer: lines "event: NAME" and "data: JSON", with an empty line after each.
  async function* events(answer) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) yield [part.match(/^event: (.*)$/m)[1], JSON.parse(part.match(/^data: (.*)$/m)[1])];
    }
  }
  const send = async (form, signal) => {
    const network = form.dataset.text.split("/").map(encodeURIComponent).join("/");
    const answer = await fetch(`${studio.base}/api/v1/networks/${network}/text?checkpoint=${form.dataset.checkpoint}`, {
      method: "POST", headers: { "X-Weft-Studio": "1", "Content-Type": "application/json" }, body: JSON.stringify(asked(form)), signal,
    });
    if (answer.ok) return answer;
    const content = await answer.json().catch(() => null);
    throw new Error(studio.errorText(content, answer.status));
  };

  let going = null;
  const write = async (form) => {
    if (going || !form.reportValidity()) return;
    const find = (selector) => form.querySelector(selector);
    const text = find("[data-written]"), time = find("[data-time]"), problem = find("[data-problem]");
    const busy = (on) => ((find("[data-write]").disabled = on), (find("[data-stop-text]").hidden = !on), text.setAttribute("aria-busy", String(on)));
    going = new AbortController();
    busy(true);
    problem.hidden = true;
    time.textContent = "loading";
    text.replaceChildren(Object.assign(document.createElement("span"), { className: "mute", textContent: asked(form).prompt }));
    const new_text = document.createTextNode(""), start = performance.now();
    text.append(new_text);
    try {
      for await (const [type, facts] of events(await send(form, going.signal))) {
        if (type === "error") throw new Error(studio.errorText(facts));
        if (type === "text") {
          const below = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
          new_text.appendData(facts.text);
          if (below) text.scrollTop = text.scrollHeight; // follows, unless the reader has scrolled up
        }
        const seconds = facts.seconds ?? (performance.now() - start) / 1000;
        time.textContent = `${new_text.length.toLocaleString("en")} characters, ${seconds.toFixed(1)} s`;
      }
    } catch (error) {
      if (error.name === "AbortError") time.textContent = `stopped after ${new_text.length.toLocaleString("en")} characters`;
      else ((problem.textContent = error.message), (problem.hidden = false), (time.textContent = ""));
    } finally {
      going = null;
      busy(false);
      find("[data-copy-text]").hidden = !new_text.length;
    }
  };

  document.addEventListener("submit", (event) => event.target.matches("[data-text]") && write(event.target));
  document.addEventListener("keydown", (event) => {
    const form = event.target.closest?.("[data-text]");
    if (form && event.key === "Enter" && (event.ctrlKey || event.metaKey)) (event.preventDefault(), write(form));
  });
  document.addEventListener("click", async (event) => {
    if (event.target.closest("[data-stop-text]")) going?.abort();
    const copy = event.target.closest("[data-copy-text]");
    if (copy) (await navigator.clipboard.writeText(copy.closest("[data-text]").querySelector("[data-written]").textContent), studio.toast("Copied"));
  });
})();
