// Forms that are sent to the API as JSON: <form data-send="POST /path">. Numbers are numbers, empty ones null, checkboxes true or false.
(() => {
  const values = (form) => {
    const found = {};
    for (const field of form.elements) {
      if (!field.name || field.disabled) continue;
      if (field.type === "checkbox") found[field.name] = field.checked;
      else if (field.type === "number") found[field.name] = field.value === "" ? null : Number(field.value);
      else found[field.name] = field.value;
    }
    return found;
  };

  // A path of this site: browsers read // and /\ as another site's, and skip tabs and line breaks.
  const isOwnPath = (path) => /^\/(?![/\\])[^\x00-\x20\\]*$/.test(path ?? "");

  document.addEventListener("submit", async (event) => {
    const form = event.target.closest("form[data-send]");
    if (!form) return;
    event.preventDefault();
    const problem = form.querySelector(".problem");
    const button = form.querySelector("[type=submit]");
    const [method, path] = form.dataset.send.split(" ");
    button.disabled = true;
    if (problem) problem.hidden = true;
    try {
      const content = await studio.request(method, path, values(form));
      if (content?.token) showToken(form, content.token);
      else studio.follow(isOwnPath(form.dataset.next) ? { ...content, open: form.dataset.next } : content);
    } catch (error) {
      if (!problem) return studio.toast(error.message, true);
      problem.textContent = error.message;
      problem.hidden = false;
      form.querySelector("[type=password]")?.select();
    } finally {
      button.disabled = false;
    }
  });

  // A token is shown once, in the place of the form that made it.
  const showToken = (form, token) => {
    const place = form.parentElement.querySelector("[data-token]");
    place.querySelector("code").textContent = token;
    place.hidden = false;
    form.hidden = true;
  };

  document.addEventListener("click", (event) => {
    const show = event.target.closest("[data-show]");
    if (show) {
      const field = document.getElementById(show.dataset.show);
      field.type = field.type === "password" ? "text" : "password";
      show.textContent = field.type === "password" ? "Show" : "Hide";
    }
    const copy = event.target.closest("[data-copy]");
    if (copy) navigator.clipboard?.writeText(copy.closest("[data-token]").querySelector("code").textContent).then(() => studio.toast("Copied."));
    const change = event.target.closest("[data-switch]");
    if (change) switchWay(change);
  });

  // Sign in by name and password, or by a token.
  const switchWay = (button) => {
    const way = button.dataset.switch;
    for (const part of button.form.querySelectorAll("[data-way]")) {
      part.hidden = part.dataset.way !== way;
      part.querySelector("input").disabled = part.hidden;
    }
    button.dataset.switch = way === "token" ? "name" : "token";
    button.querySelector("span").textContent = way === "token" ? "Use name and password" : "Use a token";
    button.form.querySelector(`[data-way=${way}] input`).focus();
  };

  // <input data-filter="ID"> hides the rows of a table that do not hold its words.
  document.addEventListener("input", (event) => {
    if (!event.target.dataset?.filter) return;
    const words = event.target.value.toLowerCase().split(/\s+/);
    for (const row of document.querySelectorAll(`#${event.target.dataset.filter} tbody tr`))
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
})();
