"""int8 after training: how often the most probable class is that of the network in float32, on photos.

    python -m benchmarks.int8_agreement mobilenet_v2 mobilenet_v2-b0353104.pth FOLDER [fold=0] [float_share=0.5] [seed=0] [save=FILE.weft]
    python -m benchmarks.int8_agreement efficientnet_lite0 efficientnet-lite0-57934424.pth FOLDER

FOLDER has photos, in folders by class or not. Shuffled by the seed, they go to one of two folds in turn: the network is calibrated on 128 crops of one, which also choose the
layers that stay in float, and measured on four crops of each photo of the other, two of them mirrored. Labels are not used.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import weft
from benchmarks.int8_networks import best_times
from weft import compress, io, nn, zoo

SIZE, CALIBRATION, BATCH = 224, 128, 25
PHOTOS = (".jpg", ".jpeg", ".png")
SETTINGS: dict[str, Any] = {
    "weight_method": "minmax", "weight_rounding": "feedback", "correct_bias": True,
}  # fmt: skip


def crop(path: Path, rng: np.random.Generator, mirrored: bool) -> np.ndarray:
    """A random square of 224 pixels of a photo whose shorter side has 256, channels first, from 0 to 1."""
    image = Image.open(path).convert("RGB")
    factor = 256 / min(image.size)
    image = image.resize((round(factor * image.width), round(factor * image.height)), Image.Resampling.BILINEAR)
    left, top = (int(rng.integers(side - SIZE + 1)) for side in image.size)
    pixels = np.asarray(image.crop((left, top, left + SIZE, top + SIZE)), np.float32) / 255
    return pixels.transpose(2, 0, 1)[:, :, ::-1] if mirrored else pixels.transpose(2, 0, 1)


def batches(images: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(images), BATCH):
        yield images[start : start + BATCH]


def outputs(model: nn.Module, images: np.ndarray) -> np.ndarray:
    call = weft.jit(lambda x: model(x))
    return np.concatenate([call(weft.asarray(batch)).numpy() for batch in batches(images)])


def main(words: list[str]) -> None:
    (name, weights, folder), given = words[:3], dict(word.split("=") for word in words[3:])
    fold, share, seed = int(given.get("fold", 0)), float(given.get("float_share", 0.5)), int(given.get("seed", 0))
    model = getattr(zoo, name)()
    loaded = zoo.load_published(model, name, io.load_weights(weights))
    model = model.eval()
    if loaded.statistics is None:
        raise SystemExit(f"{name} has no published mean and deviation of its images.")
    mean, deviation = (np.asarray(part, np.float32).reshape(-1, 1, 1) for part in loaded.statistics)
    rng = np.random.default_rng(seed)
    files = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in PHOTOS)
    photos = [files[i] for i in rng.permutation(len(files))]
    known, others = photos[fold::2], photos[1 - fold :: 2]
    shown = np.stack([crop(known[i % len(known)], rng, bool(i & 1)) for i in range(CALIBRATION)])
    tested = np.stack([crop(path, rng, bool(i & 1)) for path in others for i in range(4)])
    shown, tested = (np.ascontiguousarray((images - mean) / deviation) for images in (shown, tested))
    expected = outputs(model, tested)
    begun = time.process_time()
    eight = copy.deepcopy(model)
    compress.int8(eight, list(batches(shown)), float_share=share, **SETTINGS)
    integers = compress.to_int8(eight)
    seconds = time.process_time() - begun
    found = outputs(integers, tested)
    if "save" in given:
        weft.save(given["save"], integers, weft.TensorSpec((1, 3, SIZE, SIZE)))
    same = int((found.argmax(1) == expected.argmax(1)).sum())
    ratio = 10 * np.log10(np.square(expected).sum() / np.square(found - expected).sum())
    one = tested[:1]
    calls = {"float32": weft.jit(lambda x: model(x)), "int8": weft.jit(lambda x: integers(x))}
    with weft.knobs.set(threads=1):
        times = best_times({key: partial(_call, call, one) for key, call in calls.items()}, time.process_time, 3.0)
    print(
        f"{name}, fold {fold}, float_share {share}: {same} of {len(tested)} agree ({100 * same / len(tested):.1f} %), "
        f"SQNR {ratio:.1f} dB, {len(integers.float_layers)} layers in float, "
        f"quantized in {seconds:.0f} CPU s, "
        f"{times['float32'] / times['int8']:.2f} x as fast as float32 ({times['int8']:.1f} ms)"
    )


def _call(function: Any, x: np.ndarray) -> None:
    function(x).numpy()


if __name__ == "__main__":
    main(sys.argv[1:])
