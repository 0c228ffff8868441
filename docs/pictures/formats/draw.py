"""Draws the pictures of docs/number-formats.md: `python docs/pictures/formats/draw.py`. A test fails when one is out of date."""

from pathlib import Path

import numpy as np

import weft
from weft import data, nn, optim
from weft.formats.pictures import density, magnitudes, number_line, radix_point
from weft.formats.tensor_fit import exponent_counts

SCALE = 2.0**15  # what weft.LossScale begins with


def small_gradients() -> np.ndarray:
    """The gradients of a small network after some training: of its activations and its weights, in a batch of 256 digits."""
    weft.random.seed(0)
    first, second = nn.Linear(64, 128, activation="relu"), nn.Linear(128, 10)
    model = nn.Sequential(first, second)
    optimizer = optim.adam(model, rate=1e-2)
    digits = data.open_dataset("digits").train
    x, y = digits.inputs(np.arange(256)).reshape(256, 64), digits.labels[:256]

    @weft.jit
    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    @weft.jit
    def backward(x: weft.Tensor, y: weft.Tensor, moved: weft.Tensor) -> list[weft.Tensor]:
        def loss(moved: weft.Tensor) -> weft.Tensor:
            return weft.cross_entropy(second(first(x) + moved), y)

        by_weights = weft.gradients(weft.cross_entropy(model(x), y), [first.weight, second.weight])
        return [*by_weights, weft.grad(loss)(moved)]

    for _ in range(60):
        step(x, y)
    found = backward(x, y, np.zeros((256, 128), np.float32))
    return np.concatenate([one.numpy().reshape(-1) for one in found])


def gradients() -> str:
    found = small_gradients()
    rows = {"gradients": exponent_counts(found), "gradients x 2¹⁵": exponent_counts(SCALE * found)}
    title = "Gradients of a small network on digits"
    return magnitudes(rows, ["float16", "bfloat16"], title, against="float16", note="purple: 0 in float16")


PICTURES = {
    "number-line": lambda: number_line(["float8_e4m3", "float8_e5m2", "q3.4", "int8"], 8.0, "All numbers from 0 to 8 in four formats of 8 bits"),
    "density": lambda: density(
        ["float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2", "q7.8"], -30, 20, "Relative distance of neighbouring numbers"
    ),
    "radix-point": lambda: radix_point(0b01011010, ["q7.0", "q3.4", "q0.7"], "One byte, three radix points"),
    "gradients": gradients,
}  # fmt: skip

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(picture(), encoding="utf-8")
