"""Writes the programs in tests/saved. Run once for each version of the format, never again: `python tests/make_saved.py v1`."""

import sys
from pathlib import Path

import numpy as np

import weft
from weft import nn


def networks():
    yield (
        "cnn",
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm(2), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(18, 3)),
        (1, 5, 5),
    )
    yield "attention", nn.TransformerEncoderLayer(8, 2), (5, 8)


def main(version):
    folder = Path(__file__).parent / "saved"
    for name, net, shape in networks():
        x = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
        y = net.eval()(x).numpy()
        if version == "v1":
            weft.save(folder / f"{name}-{version}.weft", net, x, labels=["a", "b", "c"], licence="MIT")
        else:  # packed weights
            weft.compress.pack(net, folder / f"{name}-{version}.weft", x, labels=["a", "b", "c"], licence="MIT")
        np.savez(folder / f"{name}-{version}.npz", x0=x, y=y)


if __name__ == "__main__":
    main(sys.argv[1])
