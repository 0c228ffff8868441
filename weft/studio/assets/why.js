// Fills elements with data-why: what a network's prediction depends on, and similar training images.
//   <div data-why data-network="RUN" data-checkpoint="best" data-image="test-12"></div>   an image that the studio knows
//   a "classified" event { network, checkpoint, content } from around a data-why element   an image that was just sent, or { paths: [..] }
(() => {
  const make = (tag, attributes = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...children);
    return made;
  };
  document.head.append(make("link", { rel: "stylesheet", href: `${studio.base}/assets/why.css` }));
  const encoded = (run) => run.split("/").map(encodeURIComponent).join("/");
  const small = (image) => image.addEventListener("load", () => image.classList.toggle("small", image.naturalWidth <= 64));
  const picture = (source, alt) => {
    const made = make("img", { alt });
    small(made);
    made.src = source;
    return made;
  };
  const figure = (source, title, note) => make("figure", {}, picture(source, `${title} ${note}`), make("figcaption", {}, make("b", { textContent: title, title }), make("span", { textContent: note, title: note })));

  const latest = new WeakMap(); // element -> number of its newest request: older answers are dropped
  const explain = async (element, request) => {
    const number = (latest.get(element) ?? 0) + 1;
    latest.set(element, number);
    element.firstElementChild?.classList.add("why-busy");
    try {
      const answer = await request();
      const content = await answer.json().catch(() => ({}));
      if (latest.get(element) !== number) return;
      if (!answer.ok) throw new Error(studio.errorText(content, answer.status));
      show(element, content, request);
    } catch (error) {
      if (latest.get(element) === number) element.replaceChildren(make("div", { className: "problem", textContent: error.message }));
    }
  };

  const show = (element, content, request) => {
    const name = element.dataset.network.split("/").at(-1);
    const says = content.classes[0]?.name;
    const title = says === undefined ? `Why ${name} gives this number` : says === content.target ? `Why ${name} says ${says}` : `What speaks for ${content.target} to ${name}`;
    const head = make("div", { className: "why-head" }, make("h2", { textContent: title }));
    if (content.classes.length > 1) {
      const select = make("select", { ariaLabel: "Class that is explained" }, ...content.classes.map((c) => make("option", { value: c.name, textContent: `${c.name}, ${(100 * c.probability).toFixed(1)} %`, selected: c.name === content.target })));
      select.addEventListener("change", () => explain(element, () => request(select.value)));
      head.append(make("span", { className: "field end" }, select));
    }
    const maps = make("div", { className: "why-maps" }, figure(content.input.picture, "Network input", content.input.size), ...content.maps.map((m) => figure(m.picture, m.title, m.note)));
    const near = make("div", { className: "why-near" }, make("h3", { textContent: "Nearest training images" }));
    if (content.similar.length)
      near.append(make("ul", {}, ...content.similar.map((s) => make("li", {}, figure(s.picture, s.label, s.similarity.toFixed(2))))));
    else if (!content.has_embedding) {
      const button = make("button", { type: "button", className: "btn small", textContent: "Embed the training images" });
      button.dataset.request = `POST /runs/${encoded(element.dataset.network)}/embedding`;
      button.dataset.body = JSON.stringify({ checkpoint: element.dataset.checkpoint || "best" });
      near.append(make("p", { className: "small mute", textContent: "They are found once the training images are embedded with these weights, which takes seconds to minutes." }));
      if (studio.mayChange) near.append(make("p", { className: "next" }, button));
    }
    element.replaceChildren(make("div", {}, head, make("div", { className: "why-body" }, maps, near)));
  };

  const PAUSE = 600, waiting = new WeakMap(); // milliseconds without a newer image; element -> its timer
  const address = (element, more) => `${studio.base}/api/v1/networks/${encoded(element.dataset.network)}/explain?${new URLSearchParams({ checkpoint: element.dataset.checkpoint || "best", ...more })}`;
  const known = (element) => explain(element, (target = "") => fetch(address(element, { image: element.dataset.image, target })));
  document.addEventListener("classified", (event) => {
    const element = event.target.querySelector?.("[data-why]");
    const { content } = event.detail;
    const path = typeof content === "string" ? JSON.parse(content).paths?.[0] : "";
    if (!element || path === undefined) return;
    clearTimeout(waiting.get(element)); // somebody may still be drawing
    waiting.set(element, setTimeout(() => explain(element, (target = "") => {
      const body = new FormData();
      if (typeof content !== "string") body.append("image", content, "image.png");
      return fetch(address(element, { target, path }), { method: "POST", headers: { "X-Weft-Studio": "1" }, body: typeof content === "string" ? undefined : body });
    }), PAUSE));
  });

  document.addEventListener("unclassified", (event) => {
    const element = event.target.querySelector?.("[data-why]");
    if (!element) return;
    clearTimeout(waiting.get(element));
    latest.set(element, (latest.get(element) ?? 0) + 1);
    element.replaceChildren();
  });

  const shown = new WeakMap(); // element -> the image that it shows
  const look = () =>
    document.querySelectorAll("[data-why][data-image]").forEach((element) => {
      const key = [element.dataset.network, element.dataset.checkpoint, element.dataset.image].join(" ");
      if (element.dataset.image && shown.get(element) !== key) (shown.set(element, key), known(element));
    });
  new MutationObserver(look).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-image", "data-checkpoint"] });
  look();
})();
