// The page: sources of pictures at the left, the answer at the right.
"use strict";

const $ = (id) => document.getElementById(id);
const network = new Network(NETWORK);
const description = network.description;
const { input, labels } = description;
const isGrey = input.channels === 1;
const TOP = 5;
const PAD_PIXELS = 10; // of a drawing for each pixel of the network's input

// --- asking the network: while it is busy only the newest picture waits ---

let isReady = false;
let isBusy = false;
let waiting = null;
let cleared = 0; // answers to questions from before are dropped

/** Classify what `take` gives (a file or an ImageBitmap) as soon as the network is free. */
async function classify(take, options = {}) {
  waiting = { take, options };
  if (isBusy || !isReady) return;
  isBusy = true;
  while (waiting) {
    const [next, asked] = [waiting, cleared];
    waiting = null;
    try {
      const answer = await network.classify(await next.take(), next.options);
      if (asked === cleared) showAnswer(answer);
    } catch (error) {
      if (asked === cleared) showError(error.message);
    }
  }
  isBusy = false;
}

// --- the answer ---

function showAnswer({ values, input: pixels, milliseconds }) {
  $("error").hidden = true;
  if (labels) showClasses(values);
  else showNumbers(values);
  $("time").textContent = milliseconds < 10 ? `${milliseconds.toFixed(1)} ms` : `${Math.round(milliseconds)} ms`;
  showInput(pixels);
}

function showClasses(values) {
  const order = [...values.keys()].sort((a, b) => values[b] - values[a] || a - b).slice(0, TOP);
  $("bars").replaceChildren(...order.map((i) => barOf(labels[i], values[i])));
  const [best] = order;
  const sure = `${percent(values[best])} sure`;
  showLabel(labels[best], sure);
  const text = `${labels[best]}, ${sure}`;
  if (!camera.isOn || !$("announce").textContent.startsWith(`${labels[best]},`)) $("announce").textContent = text;
}

function showNumbers(values) {
  $("bars").classList.add("numbers");
  $("bars").replaceChildren(...Array.from(values, (value, i) => row(`Output ${i}`, value.toPrecision(5))));
  showLabel(values.length === 1 ? values[0].toPrecision(4) : `${values.length} numbers`, "");
}

function showLabel(text, sure) {
  document.body.classList.toggle("unanswered", text === "");
  $("label").textContent = text;
  $("label").classList.toggle("long", text.length > 10);
  $("sure").textContent = sure;
}

function barOf(name, share) {
  const line = row(name, percent(share));
  const bar = element("span", "bar");
  const fill = element("i");
  fill.style.setProperty("--value", `${100 * share}%`);
  bar.append(fill);
  line.children[0].after(bar);
  return line;
}

function row(name, text) {
  const line = element("li");
  const label = element("span", "clip", name);
  label.title = name;
  line.append(label, element("span", "share", text));
  return line;
}

function percent(share) {
  if (share > 0.9995) return "> 99.9 %";
  if (share < 0.0005) return "< 0.1 %";
  return `${(100 * share).toFixed(1)} %`;
}

function showError(message) {
  clearAnswer();
  $("sure").textContent = "";
  $("error").textContent = message;
  $("error").hidden = false;
}

function clearAnswer() {
  waiting = null;
  cleared++;
  $("bars").replaceChildren();
  showLabel("", isReady ? HINTS[source] : "");
  $("seen").getContext("2d").clearRect(0, 0, input.width, input.height);
  $("time").textContent = "–";
}

const HINTS = { draw: "Draw to see the answer here.", upload: "Choose a picture to see the answer here.", camera: "Start the camera to see the answer here." };

/** The pixels that the network was given. */
function showInput(pixels) {
  const { width, height } = input;
  const canvas = $("seen");
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = pixels[(isGrey ? 0 : c) * width * height + i];
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// --- sources: drawing, a file, the webcam ---

const colours = input.background === "black" ? { paper: "black", pencil: "white" } : { paper: "white", pencil: "black" };
const pad = new DrawingPad($("pad"), { width: input.width, height: input.height, ...colours }, classifyDrawing);
const camera = new Camera($("video"), input.width / input.height);
let picture = null; // the file that was chosen

function classifyDrawing() {
  $("pad-hint").hidden = !pad.isEmpty;
  if (pad.isEmpty) clearAnswer();
  else classify(() => createImageBitmap(pad.picture(PAD_PIXELS * input.height, $("centre").checked)));
}

function choose(file) {
  if (!file) return;
  select("upload");
  picture = file;
  URL.revokeObjectURL($("preview").src);
  $("preview").src = URL.createObjectURL(file);
  $("preview").alt = file.name;
  $("preview").hidden = false;
  $("drop-hint").hidden = true;
  $("file-name").textContent = file.name;
  classifyPicture();
}

function classifyPicture() {
  if (picture) classify(() => picture, { invert: $("invert").checked });
}

async function toggleCamera() {
  if (camera.isOn) {
    stopCamera();
    return;
  }
  $("error").hidden = true;
  try {
    await camera.start((bitmap) => classify(() => bitmap, { invert: $("invert").checked }));
    $("camera").textContent = "Stop the camera";
    $("video").hidden = false;
    $("camera-hint").hidden = true;
  } catch (error) {
    stopCamera();
    showError(error.message);
  }
}

function stopCamera() {
  camera.stop();
  $("camera").textContent = "Start the camera";
  $("video").hidden = true;
  $("camera-hint").hidden = false;
}

const SOURCES = isGrey ? ["draw", "upload", "camera"] : ["upload", "camera"];
const classifySource = { draw: classifyDrawing, upload: classifyPicture, camera: () => {} };
let source = null;

/** Show the panel of a source and classify what is in it. */
function select(name) {
  if (name === source) return;
  source = name;
  if (camera.isOn) stopCamera();
  $("error").hidden = true;
  clearAnswer();
  for (const each of SOURCES) {
    $(`tab-${each}`).ariaSelected = String(each === name);
    $(`tab-${each}`).tabIndex = each === name ? 0 : -1;
    $(`panel-${each}`).hidden = each !== name;
  }
  $("invert-row").hidden = !isGrey || name === "draw";
  classifySource[name]();
}

function moveTab(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const next = SOURCES[(SOURCES.indexOf(source) + step + SOURCES.length) % SOURCES.length];
  select(next);
  $(`tab-${next}`).focus();
}

function listen() {
  for (const name of ["draw", "upload", "camera"]) {
    $(`tab-${name}`).hidden = !SOURCES.includes(name);
    $(`tab-${name}`).addEventListener("click", () => select(name));
    $(`tab-${name}`).addEventListener("keydown", moveTab);
  }
  $("clear").addEventListener("click", () => pad.clear());
  $("undo").addEventListener("click", () => pad.undo());
  $("pen").addEventListener("input", () => (pad.pen = $("pen").value / 100));
  $("centre").addEventListener("change", classifyDrawing);
  $("invert").addEventListener("change", () => classifySource[source]());
  $("file").addEventListener("change", () => choose($("file").files[0]));
  $("camera").addEventListener("click", toggleCamera);
  $("theme").addEventListener("click", switchTheme);
  document.addEventListener("paste", (event) => choose(imageIn(event.clipboardData)));
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  document.addEventListener("dragleave", () => document.body.classList.remove("dragging"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    choose(imageIn(event.dataTransfer));
  });
}

function imageIn(transfer) {
  return [...transfer.files].find((file) => file.type.startsWith("image/"));
}

// --- the rest of the page ---

function describe() {
  document.title = description.title;
  $("title").textContent = description.title;
  $("subtitle").textContent = description.subtitle;
  $("version").textContent = description.weft;
  $("seen-text").textContent = `${input.width} × ${input.height}, ${isGrey ? "grey" : "colour"}`;
  [$("seen").width, $("seen").height] = [input.width, input.height];
  $("seen").classList.toggle("coarse", input.height <= 64);
  $("invert-text").textContent = `Invert: training pictures are ${colours.pencil} on ${colours.paper}`;
  $("facts").replaceChildren(...description.facts.map(([name, value]) => {
    const part = element("div");
    part.append(element("dt", "", name), element("dd", "", value));
    return part;
  }));
  const root = document.documentElement.style;
  root.setProperty("--aspect", input.width / input.height);
  root.setProperty("--paper", colours.paper);
  root.setProperty("--pencil", colours.pencil);
  const longest = labels ? Math.max(...labels.map((label) => label.length)) : 0;
  root.setProperty("--name", `${Math.min(Math.max(longest * 8, 24), 150)}px`);
}

function element(kind, name = "", text = "") {
  const made = document.createElement(kind);
  made.className = name;
  made.textContent = text;
  return made;
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  document.documentElement.dataset.theme = prefersDark.matches ? "dark" : "light";
}

function switchTheme() {
  const { dataset } = document.documentElement;
  dataset.theme = dataset.theme === "dark" ? "light" : "dark";
}

async function start() {
  applyTheme();
  prefersDark.addEventListener("change", applyTheme);
  describe();
  listen();
  select(SOURCES[0]);
  try {
    await network.load((share) => ($("progress").value = share));
    $("loading").hidden = true;
    isReady = true;
    clearAnswer();
    classifySource[source]();
  } catch (error) {
    $("loading").hidden = true;
    showError(error.message);
  }
}

start();
