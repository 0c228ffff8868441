// The webcam: frames are given to a function one after another, as fast as it takes them.
"use strict";

class Camera {
  /** `aspect` is width / height of the network's input: frames are cropped to it, as the page shows them. */
  constructor(video, aspect) {
    this.video = video;
    this.aspect = aspect;
    this.stream = null;
  }

  get isOn() {
    return this.stream !== null;
  }

  /** Start the camera; an error says what to do. `frame` gets an ImageBitmap and may return a promise. */
  async start(frame) {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Error("This browser gives no camera to pages that are opened as files. Serve the folder: python -m http.server");
    }
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      throw new Error(CAMERA_ERRORS[error.name] ?? `The camera cannot be used: ${error.message}`);
    }
    const [track] = this.stream.getVideoTracks();
    this.video.classList.toggle("mirrored", track.getSettings().facingMode !== "environment");
    this.video.srcObject = this.stream;
    await this.video.play();
    this.run(frame, this.stream);
  }

  async run(frame, stream) {
    while (this.stream === stream) {
      const bitmap = await this.frame();
      if (this.stream !== stream) return;
      await frame(bitmap);
      await new Promise(requestAnimationFrame);
    }
  }

  frame() {
    const { videoWidth: width, videoHeight: height } = this.video;
    const [w, h] = [Math.min(width, Math.round(height * this.aspect)), Math.min(height, Math.round(width / this.aspect))];
    return createImageBitmap(this.video, (width - w) >> 1, (height - h) >> 1, w, h);
  }

  stop() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = null;
    this.video.srcObject = null;
  }
}

const CAMERA_ERRORS = {
  NotAllowedError: "The camera is not allowed for this page. Allow it in the browser's settings of this page, then start it again.",
  NotFoundError: "No camera was found. Connect one, then start it again.",
  NotReadableError: "The camera is used by another program. Close that program, then start it again.",
};
