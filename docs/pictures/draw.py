"""Draws the pictures of the documentation: `python docs/pictures/draw.py`. A test fails when one is out of date."""

from pathlib import Path

import weft


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


PICTURES = {"a-plus-b-times-c": a_plus_b_times_c, "score": score, "two-layers": two_layers}

if __name__ == "__main__":
    for name, graph in PICTURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(graph().svg())
