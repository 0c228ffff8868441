"""Programs compiled ahead of time, called in this process as C calls them."""

import ctypes
from functools import cache

import numpy as np

import weft
from weft import nn
from weft.aot.compile import CompiledLibrary, aligned
from weft.compiler.cpu.engine import Loaded


class NativeLibrary:
    """A compiled library in this process. The workspace is filled with garbage before every call."""

    def __init__(self, library: CompiledLibrary) -> None:
        self.library, self.loaded = library, Loaded(library.object)
        self.workspace, self.state = aligned(max(1, library.workspace)), aligned(max(1, library.state))
        if library.state:
            self.loaded.function(f"{library.name}_init", [ctypes.c_void_p])(self.state.ctypes.data)

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        library = self.library
        given = [np.array(x, p.dtype.numpy, order="C") for x, p in zip(inputs, library.inputs, strict=True)]
        outputs = [np.full(p.shape, 77, p.dtype.numpy) for p in library.outputs]
        memory = [*given, *outputs, *([self.state] if library.state else []), self.workspace]
        self.workspace[:] = 255
        code = self.call(*(array.ctypes.data for array in memory))
        if code:
            raise RuntimeError(library.errors[code - 1] if code > 0 else "misaligned")
        return outputs

    def call(self, *addresses: int) -> int:
        run = self.loaded.function(self.library.function, [ctypes.c_void_p] * len(addresses), ctypes.c_int32)
        return int(run(*addresses))


class LastOfSequence(nn.Module):
    """A recurrent classifier."""

    def __init__(self) -> None:
        self.rnn, self.head = nn.LSTM(8, 16), nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def convolutions() -> nn.Module:
    """Batch norm, depthwise, pointwise and strided convolutions, both ways of pooling."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.BatchNorm2d(16), nn.Conv2d(16, 20, 1), nn.AvgPool2d(2), nn.Conv2d(20, 24, 3, stride=2), nn.SiLU(),
        nn.Conv2d(24, 16, 3, padding=1), nn.MaxPool2d(3, stride=2), nn.Flatten(), nn.Linear(16, 7),
    )  # fmt: skip


NETWORKS = {
    "lenet": (lenet, (1, 1, 28, 28)),
    "convolutions": (convolutions, (3, 3, 16, 16)),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, 20), nn.GELU(), nn.Linear(20, 3)),
        (5, 20),
    ),
    "lstm": (LastOfSequence, (2, 7, 8)),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2), (2, 9, 16)),
}


@cache
def network(name: str):
    """A network with its input, as arrays, and what the compiled network gives on one thread."""
    weft.seed(1)
    make, shape = NETWORKS[name]
    model, x = make().eval(), weft.random.normal(shape)
    model(x).numpy()
    with weft.knobs.set(threads=1):
        return model, x.numpy(), weft.jit(model)(x).numpy()
