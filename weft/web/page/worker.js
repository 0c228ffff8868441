// The network in a worker, so that the page stays responsive: decodes pictures, makes the input and runs the compiled code.
// The worker is started from the text of these functions, because pages opened as files may not load worker scripts.
"use strict";

function networkWorker(pipeline) {
  const MOST_PIXELS = 1 << 26;
  const ALIGNMENT = 64;
  let network; // the description, as network.js gives it
  let wasm;
  let place; // addresses in the memory of the module

  async function start(description, code) {
    network = description;
    wasm = await instantiated(code);
    let at = wasm.__heap_base.value;
    const take = (bytes) => {
      const address = Math.ceil(at / ALIGNMENT) * ALIGNMENT;
      at = address + bytes;
      return address;
    };
    const { input, output, workspace, weights } = network.memory;
    place = { input: take(input), output: take(output), workspace: take(workspace), weights: take(weights) };
    const missing = Math.ceil((at - wasm.memory.buffer.byteLength) / 65536);
    try {
      if (missing > 0) wasm.memory.grow(missing);
    } catch {
      throw new Error(`The network takes ${Math.ceil(at / 1e6)} MB of memory, more than this browser gives. Close other pages.`);
    }
  }

  async function instantiated(code) {
    try {
      return (await WebAssembly.instantiate(code, {})).instance.exports;
    } catch (error) {
      throw new Error(`This browser cannot run the network. Use one with WebAssembly and its 128-bit vectors. (${error.message})`);
    }
  }

  function store(offset, bytes) {
    new Uint8Array(wasm.memory.buffer, place.weights + offset, bytes.length).set(bytes);
  }

  async function pixels(image) {
    const bitmap = image instanceof ImageBitmap ? image : await decoded(image);
    const { width, height } = bitmap;
    if (width * height > MOST_PIXELS) throw new Error(`The picture has ${width} × ${height} pixels, which is too large.`);
    const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    context.fillStyle = "white"; // below transparent pixels
    context.fillRect(0, 0, width, height);
    context.drawImage(bitmap, 0, 0);
    bitmap.close();
    return { rgba: context.getImageData(0, 0, width, height).data, size: { width, height } };
  }

  async function decoded(file) {
    try {
      return await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
    } catch {
      throw new Error(`${file.name || "The picture"} cannot be decoded. Choose a PNG, JPEG, WebP, GIF or AVIF file.`);
    }
  }

  async function classify(image, invert) {
    const { rgba, size } = await pixels(image);
    const input = pipeline.networkInput(rgba, size, network.input);
    if (invert) input.forEach((value, i) => (input[i] = 255 - value));
    new Uint8Array(wasm.memory.buffer, place.input, input.length).set(input);
    const started = performance.now();
    const status = wasm[network.run](place.input, place.output, place.workspace, place.weights);
    const milliseconds = performance.now() - started;
    if (status !== 0) throw new Error(`The network failed: ${network.errors[status - 1] || `error ${status}`}`);
    const values = new Float32Array(wasm.memory.buffer, place.output, network.memory.output / 4).slice();
    return { values, input, milliseconds };
  }

  const handlers = {
    start: ({ description, code }) => start(description, code),
    store: ({ offset, bytes }) => store(offset, bytes),
    classify: ({ image, invert }) => classify(image, invert),
  };

  let last = Promise.resolve(); // messages are answered one after another
  self.onmessage = ({ data }) => {
    last = last.then(async () => {
      try {
        self.postMessage({ id: data.id, result: await handlers[data.action](data) });
      } catch (error) {
        self.postMessage({ id: data.id, error: error.message });
      }
    });
  };
}
