// A pad for drawing. Strokes are kept as lines, so that they can be undone, and centred as training pictures are.
"use strict";

class DrawingPad {
  /** `changed` is called after every change. `paper` and `pencil` are the colours of the training pictures. */
  constructor(canvas, { width, height, paper, pencil }, changed) {
    this.canvas = canvas;
    this.aspect = width / height;
    this.colours = { paper, pencil };
    this.changed = changed;
    this.strokes = []; // each {width, points}; sizes are shares of the height
    this.pen = 0.085;
    this.cursor = { x: this.aspect / 2, y: 0.5, isDown: false };
    canvas.height = 640;
    canvas.width = Math.round(640 * this.aspect);
    canvas.addEventListener("pointerdown", (event) => this.begin(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    this.paint();
  }

  get isEmpty() {
    return this.strokes.length === 0;
  }

  clear() {
    this.strokes = [];
    this.cursor.isDown = false;
    this.update();
  }

  undo() {
    this.strokes.pop();
    this.cursor.isDown = false;
    this.update();
  }

  begin(event) {
    event.preventDefault();
    this.canvas.focus({ focusVisible: false });
    this.canvas.setPointerCapture(event.pointerId);
    this.strokes.push({ width: this.pen, points: [this.position(event)] });
    this.update();
  }

  move(event) {
    if (!this.canvas.hasPointerCapture(event.pointerId)) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const each of events.length ? events : [event]) this.strokes.at(-1).points.push(this.position(each));
    this.update();
  }

  position(event) {
    const { left, top, height } = this.canvas.getBoundingClientRect();
    return { x: (event.clientX - left) / height, y: (event.clientY - top) / height };
  }

  /** Arrow keys move the pen, Space lowers and lifts it. */
  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const cursor = this.cursor;
    if (step) {
      cursor.x = Math.min(this.aspect, Math.max(0, cursor.x + step[0] / 28));
      cursor.y = Math.min(1, Math.max(0, cursor.y + step[1] / 28));
      cursor.isShown = true;
      if (cursor.isDown) this.strokes.at(-1).points.push({ x: cursor.x, y: cursor.y });
    } else if (event.key === " ") {
      cursor.isDown = !cursor.isDown;
      if (cursor.isDown) this.strokes.push({ width: this.pen, points: [{ x: cursor.x, y: cursor.y }] });
    } else {
      return;
    }
    event.preventDefault();
    this.update();
  }

  update() {
    this.paint();
    this.changed();
  }

  paint() {
    const context = this.canvas.getContext("2d");
    paintStrokes(context, this.strokes, this.colours, { scale: this.canvas.height, x: 0, y: 0 });
    const { x, y, isShown } = this.cursor;
    if (!isShown) return;
    context.strokeStyle = "#2B4ACB";
    context.lineWidth = 4;
    context.beginPath();
    context.arc(x * this.canvas.height, y * this.canvas.height, 14, 0, 2 * Math.PI);
    context.stroke();
  }

  /** The drawing as a picture of `height` pixels; centred: its longer side takes 20 of 28 parts, its centre of mass is in the middle. */
  picture(height, isCentred) {
    const canvas = document.createElement("canvas");
    canvas.height = height;
    canvas.width = Math.round(height * this.aspect);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    if (!isCentred) {
      paintStrokes(context, this.strokes, this.colours, { scale: height, x: 0, y: 0 });
      return canvas;
    }
    const fit = this.fitted(canvas);
    paintStrokes(context, fit.strokes, this.colours, fit.place);
    const mass = centreOfMass(context, canvas, this.colours.paper);
    fit.place.x += canvas.width / 2 - mass.x;
    fit.place.y += canvas.height / 2 - mass.y;
    paintStrokes(context, fit.strokes, this.colours, fit.place);
    return canvas;
  }

  /** Strokes of the pen's width at a place and scale so that they fill the middle of a canvas. */
  fitted(canvas) {
    const points = this.strokes.flatMap((stroke) => stroke.points);
    const [left, right] = [Math.min(...points.map((p) => p.x)), Math.max(...points.map((p) => p.x))];
    const [top, bottom] = [Math.min(...points.map((p) => p.y)), Math.max(...points.map((p) => p.y))];
    const pen = Math.max(...this.strokes.map((stroke) => stroke.width));
    const inner = 20 / 28 - pen; // between the centres of the outermost lines
    const grow = Math.min(inner / Math.max((right - left) / this.aspect, bottom - top, 0.05), 4);
    const scale = canvas.height * grow;
    return {
      strokes: this.strokes.map((stroke) => ({ ...stroke, width: stroke.width / grow })),
      place: { scale, x: canvas.width / 2 - ((left + right) / 2) * scale, y: canvas.height / 2 - ((top + bottom) / 2) * scale },
    };
  }
}

function paintStrokes(context, strokes, { paper, pencil }, { scale, x, y }) {
  context.fillStyle = paper;
  context.fillRect(0, 0, context.canvas.width, context.canvas.height);
  context.strokeStyle = pencil;
  context.lineCap = context.lineJoin = "round";
  for (const { width, points } of strokes) {
    context.lineWidth = width * scale;
    context.beginPath();
    context.moveTo(x + points[0].x * scale, y + points[0].y * scale);
    for (const point of points) context.lineTo(x + point.x * scale, y + point.y * scale);
    context.stroke();
  }
}

function centreOfMass(context, { width, height }, paper) {
  const { data } = context.getImageData(0, 0, width, height);
  const blank = paper === "black" ? 0 : 255;
  let [sum, x, y] = [0, 0, 0];
  for (let at = 0, i = 0; at < data.length; at += 4, i++) {
    const mass = Math.abs(data[at] - blank);
    sum += mass;
    x += mass * (i % width);
    y += mass * Math.floor(i / width);
  }
  return sum ? { x: x / sum + 0.5, y: y / sum + 0.5 } : { x: width / 2, y: height / 2 };
}
