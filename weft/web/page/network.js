// The network of this folder: loads the compiled code and the weights from script files, which pages opened as files may do, and
// classifies pictures. `new Network(description)` can be used by other pages as well.
"use strict";

class Network {
  constructor(description) {
    const { code, ...rest } = description;
    this.description = rest;
    this.code = code;
    this.waiting = new Map(); // answers that the worker owes
    this.count = 0;
    const source = `(${networkWorker})((${imagePipeline})())`;
    this.worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    this.worker.onmessage = ({ data }) => this.settle(data);
    this.worker.onerror = (event) => this.fail(event.message || "The worker could not be started.");
  }

  /** Load code and weights; `progress` is called with the share that is done. */
  async load(progress = () => {}) {
    const code = bytesOf(this.code);
    this.code = null;
    await this.ask({ action: "start", description: this.description, code: code.buffer }, [code.buffer]);
    let offset = 0;
    for (const part of this.description.parts) {
      const bytes = bytesOf(await scriptText(part));
      const { length } = bytes;
      await this.ask({ action: "store", offset, bytes }, [bytes.buffer]);
      offset += length;
      progress(offset / this.description.memory.weights);
    }
    if (offset !== this.description.memory.weights) {
      throw new Error("The weights are not complete. Copy the whole folder, with all of its files.");
    }
  }

  /** Values of the classes, the input as the network saw it, and the time, for a file or an ImageBitmap. */
  classify(image, { invert = false } = {}) {
    const moved = image instanceof ImageBitmap ? [image] : [];
    return this.ask({ action: "classify", image, invert }, moved);
  }

  ask(message, moved) {
    const id = this.count++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, ...message }, moved);
    });
  }

  settle({ id, result, error }) {
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    if (error === undefined) resolve(result);
    else reject(new Error(error));
  }

  fail(message) {
    for (const { reject } of this.waiting.values()) reject(new Error(message));
    this.waiting.clear();
  }
}

const scriptParts = new Map(); // texts that scripts of weights left, by file name

/** Called by the scripts of weights. */
function weightsPart(name, text) {
  scriptParts.set(name, text);
}

/** The text that a script of weights holds. The script is removed at once, so that memory holds one of them at a time. */
async function scriptText(name) {
  const script = document.createElement("script");
  script.src = name;
  await new Promise((resolve, reject) => {
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${name} is missing. Copy the whole folder, with all of its files.`));
    document.head.append(script);
  });
  script.remove();
  const text = scriptParts.get(name);
  scriptParts.delete(name);
  return text;
}

/** Base64 as bytes. */
function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}
