// Pixels as training saw them: the same integers that weft's preprocessing (Pillow) computes, so that the page predicts what
// `weft predict` predicts. The function is also the source of the worker, so it uses nothing from outside of itself.
"use strict";

function imagePipeline() {
  const PRECISION = 22; // bits of the fixed-point weights of Pillow's resampling

  /** Interleaved RGBA over white as planes: one of luma (ITU-R 601) or three of red, green and blue. */
  function planes(rgba, channels) {
    const count = rgba.length / 4;
    const result = Array.from({ length: channels }, () => new Uint8Array(count));
    for (let i = 0, at = 0; i < count; i++, at += 4) {
      if (channels === 1) {
        result[0][i] = (rgba[at] * 19595 + rgba[at + 1] * 38470 + rgba[at + 2] * 7471 + 0x8000) >>> 16;
      } else {
        for (let c = 0; c < 3; c++) result[c][i] = rgba[at + c];
      }
    }
    return result;
  }

  /** First source pixel and integer weights of each pixel of a triangle filter that covers [from, to) of a line. */
  function filterWeights(size, from, to, length) {
    const scale = Math.fround(to - from) / length;
    const support = Math.max(scale, 1);
    return Array.from({ length }, (_, i) => {
      const centre = from + (i + 0.5) * scale;
      const first = Math.max(0, Math.trunc(centre - support + 0.5));
      const end = Math.min(size, Math.trunc(centre + support + 0.5));
      const weights = [];
      for (let x = first; x < end; x++) weights.push(Math.max(0, 1 - Math.abs((x - centre + 0.5) / support)));
      const sum = weights.reduce((a, b) => a + b, 0);
      return { first, weights: Int32Array.from(weights, (w) => Math.trunc(0.5 + (sum ? w / sum : w) * 2 ** PRECISION)) };
    });
  }

  /** Resample lines of pixels: `step` between the pixels of a line, `next` between lines; the result has lines of `length`. */
  function resampled(source, lines, step, next, filters, targetStep, targetNext) {
    const result = new Uint8Array(lines * filters.length);
    for (let i = 0; i < filters.length; i++) {
      const { first, weights } = filters[i];
      for (let line = 0; line < lines; line++) {
        let sum = 1 << (PRECISION - 1);
        for (let k = 0, at = line * next + first * step; k < weights.length; k++, at += step) sum += source[at] * weights[k];
        result[line * targetNext + i * targetStep] = sum >> PRECISION;
      }
    }
    return result;
  }

  /** A box [left, top, right, bottom) of a plane, bilinear with antialiasing, as a plane of width x height. */
  function resizePlane(plane, size, box, target, tallFirst) {
    const [left, top, right, bottom] = box.map(Math.fround);
    let { width, height } = size;
    let result = plane;
    const across = () => {
      if (target.width === size.width && left === 0 && right === target.width) return;
      const filters = filterWeights(width, left, right, target.width);
      result = resampled(result, height, 1, width, filters, 1, target.width);
      width = target.width;
    };
    const down = () => {
      if (target.height === size.height && top === 0 && bottom === target.height) return;
      const filters = filterWeights(height, top, bottom, target.height);
      result = resampled(result, width, width, 1, filters, width, 1);
      height = target.height;
    };
    // From version 13 on Pillow begins with the height if that is reduced much more. Results differ by rounding.
    const less = height - target.height;
    const passes = tallFirst && less > 0 && less > 2 * (width - target.width) ? [down, across] : [across, down];
    passes.forEach((pass) => pass());
    return result;
  }

  const roundHalfToEven = (x) => {
    const floor = Math.floor(x);
    return x - floor === 0.5 ? floor + (floor % 2) : Math.round(x);
  };
  const clip = (length, most) => Math.max(1, Math.min(most, roundHalfToEven(length)));

  /** Which part of an image is visible, and where: `squash` stretches, the other modes keep the aspect ratio. */
  function placement(size, target, way) {
    const whole = { box: [0, 0, size.width, size.height], width: target.width, height: target.height, left: 0, top: 0 };
    if (way === "squash" || (size.width === target.width && size.height === target.height)) return whole;
    const across = size.width / target.width;
    const down = size.height / target.height;
    const scale = way === "crop" ? Math.min(across, down) : way === "fill" ? Math.max(across, down) : (across + down) / 2;
    const width = clip(size.width / scale, target.width);
    const height = clip(size.height / scale, target.height);
    const part = [Math.min(size.width, target.width * scale), Math.min(size.height, target.height * scale)];
    const left = (size.width - part[0]) / 2;
    const top = (size.height - part[1]) / 2;
    return {
      box: [left, top, left + part[0], top + part[1]], width, height,
      left: Math.floor((target.width - width) / 2), top: Math.floor((target.height - height) / 2),
    };
  }

  /** The input of the network: (channels, height, width) bytes of an image of RGBA pixels. */
  function networkInput(rgba, size, input) {
    const { channels, height, width } = input;
    const place = placement(size, input, input.resize);
    const result = new Uint8Array(channels * height * width); // what a mode leaves free is black
    planes(rgba, channels).forEach((plane, c) => {
      const small = resizePlane(plane, size, place.box, place, input.tallFirst);
      for (let y = 0; y < place.height; y++) {
        const row = small.subarray(y * place.width, (y + 1) * place.width);
        result.set(row, (c * height + y + place.top) * width + place.left);
      }
    });
    return result;
  }

  return { networkInput };
}
