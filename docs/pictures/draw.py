"""Draws the pictures of the documentation: `python docs/pictures/draw.py`. A test fails when one is out of date."""

from pathlib import Path

import numpy as np

import weft
from weft import insight, nn, optim, tpu, zoo
from weft.graph import Type
from weft.insight.memory_timeline import MemoryTimeline


def a_plus_b_times_c() -> weft.Graph:
    a, b, c = weft.parameter(2.0), weft.parameter(3.0), weft.parameter(4.0)
    return (a + b * c).graph()


def score() -> weft.Graph:
    def score(w: weft.Tensor, x: weft.Tensor) -> weft.Tensor:
        return weft.tanh(x @ w).sum()

    return weft.make_graph(weft.grad(score), weft.zeros(3), weft.zeros((2, 3)))


def two_layers() -> weft.Graph:
    x = weft.asarray([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    w1, b1 = weft.parameter(weft.zeros((2, 8))), weft.parameter(weft.zeros(8))
    w2, b2 = weft.parameter(weft.zeros((8, 1))), weft.parameter(weft.zeros(1))
    return weft.sigmoid(weft.tanh(x @ w1 + b1) @ w2 + b2).graph()


def perceptron() -> weft.Graph:
    w, b = weft.asarray([0.5, -0.5]), weft.asarray(0.1)
    return weft.make_graph(lambda w, b, x: ((x @ w + b) > 0.0).astype("float32"), w, b, weft.zeros((4, 2)))


def linear_regression() -> weft.Graph:
    points = weft.zeros(200)
    return weft.make_graph(lambda m, c, x, y: weft.mse_loss(m * x + c, y), 3.0, -1.0, points, points)


def images(*shape: int) -> Type:
    return Type(shape, weft.float32)


def logistic_regression() -> weft.Graph:
    model = nn.Linear(64, 10)
    return weft.make_graph(lambda x, y: weft.cross_entropy(model(x), y), images(100, 64), Type((100,), weft.int64))


def convolutional_network() -> weft.Graph:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, activation="relu"), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, activation="relu"), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    return weft.make_graph(model, images(100, 1, 8, 8))


def lstm() -> weft.Graph:
    layer, answer = nn.LSTM(5, 32), nn.Linear(32, 5)
    return weft.make_graph(lambda x: answer(layer(x)[0][:, -1]), images(64, 6, 5))


def attention() -> weft.Graph:
    heads = [images(64, 4, 6, 8)] * 3
    return weft.make_graph(weft.dot_product_attention, *heads)


class SystolicArray:
    """The animation of a small array."""

    def svg(self) -> str:
        x = np.array([[1, 2, 0, 3], [4, 1, 2, 1], [0, 3, 1, 2], [2, 0, 1, 4]])
        w = np.array([[2, -1, 0, 1], [1, 3, -2, 0], [0, 1, 2, -1], [-1, 0, 1, 2]])
        return tpu.animate_systolic(x, w)


def memory_timeline() -> MemoryTimeline:
    model = zoo.gpt(65, context=64, features=128, heads=4, layers=4)
    optimizer = optim.adam(model, rate=1e-3)

    def step(tokens: weft.Tensor, targets: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(model(tokens), targets)
        optimizer.minimize(loss)
        return loss

    tokens = weft.zeros((16, 64), dtype="int64")
    return insight.memory_timeline(step, tokens, tokens)


PICTURES = {
    "a-plus-b-times-c": a_plus_b_times_c, "score": score, "two-layers": two_layers, "perceptron": perceptron,
    "linear-regression": linear_regression, "logistic-regression": logistic_regression,
    "convolutional-network": convolutional_network, "lstm": lstm, "attention": attention,
    "systolic-array": SystolicArray,
}  # fmt: skip

# Plans depend on the machine: these are not compared with what a test draws.
PLANNED = {"memory-timeline": memory_timeline}

if __name__ == "__main__":
    here = Path(__file__).parent
    for name, graph in PICTURES.items():
        (here / f"{name}.svg").write_text(graph().svg())
    for name, planned in PLANNED.items():
        (here / "planned" / f"{name}.svg").write_text(planned().svg())
