"""What the tests on a device share: graphs run as one program, networks that are trained, and how much memory is in use."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import nn, optim, zoo
from weft.graph import Graph

DEVICE = os.environ.get("WEFT_GPU_TESTS_DEVICE") or "cuda"
IS_GPU = DEVICE.startswith("cuda")


def run_graphs(graphs: Sequence[Graph], arrays: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """What graphs give on the device, all as one program: one compilation, many checks."""

    def run(groups: Any) -> Any:
        parts = zip(graphs, groups, strict=True)
        return [weft.control.inline(g, [weft.asarray(x) for x in inputs]) for g, inputs in parts]

    found = weft.jit(run)([list(group) for group in arrays])
    return [[tensor.numpy() for tensor in group] for group in found]


def run_graph(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return run_graphs([graph], [arrays])[0]


# --- networks that are trained ----------------------------------------------------------------------------------------------------


class Last(nn.Module):
    """A recurrent network that names the class of a sequence from its last output."""

    def __init__(self) -> None:
        self.lstm, self.top = nn.LSTM(6, 16), nn.Linear(16, 4)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        outputs, _ = self.lstm(x)
        return self.top(outputs[:, -1])


class Tokens(nn.Module):
    """A small transformer that names the class of a row of tokens."""

    def __init__(self) -> None:
        self.gpt = zoo.gpt(11, context=12, features=16, heads=2, layers=2, dropout=0.1)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return self.gpt(x)[:, -1, :4]


def residual() -> nn.Module:
    return nn.Sequential(zoo.resnet((1, 1), classes=16, width=8, stem="cifar"), nn.Dropout(0.2), nn.Linear(16, 4))


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 11, shape)


def sgd(model: nn.Module) -> Any:
    return optim.sgd(model, 0.02, momentum=0.9)


def adam(model: nn.Module) -> Any:
    return optim.adam(model, optim.schedules.cosine(3e-3, 40), clip_norm=1.0)


# name -> (network, inputs, optimizer)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], np.ndarray, Callable[[nn.Module], Any]]] = {
    "mlp": (lambda: zoo.mlp(20, 32, 16, 4), floats(24, 20), sgd),
    "lenet": (lambda: zoo.lenet5_classic(4, size=16), floats(12, 1, 16, 16), sgd),
    "residual": (residual, floats(12, 3, 12, 12), sgd),
    "transformer": (Tokens, tokens(12, 10), adam),
    "lstm": (Last, floats(12, 9, 6), adam),
}


class Trained:
    """A network of the table, on the device of the settings, and the compiled step that trains it.

    It sets the seed of the stream that all share: of two that are compared, one is trained before the other is made.
    """

    def __init__(self, name: str, precision: str | None = None) -> None:
        make, inputs, optimizer = NETWORKS[name]
        weft.seed(5)
        self.model = make()
        self.x = weft.asarray(inputs)
        self.y = weft.asarray(np.random.default_rng(4).integers(0, 4, len(inputs)))
        self.optimizer = optimizer(self.model)
        self.step = weft.jit(self._step, precision=precision)

    def _step(self, x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(self.model(x), y)
        self.optimizer.minimize(loss)
        return loss

    def steps(self, count: int) -> list[float]:
        """Their losses, looked at when all steps are on their way."""
        losses = [self.step(self.x, self.y) for _ in range(count)]
        return [loss.item() for loss in losses]

    def state(self) -> dict[str, np.ndarray]:
        return {name: t.numpy() for name, t in self.model.named_tensors().items()}

    def bits(self) -> dict[str, bytes]:
        return {name: array.tobytes() for name, array in self.state().items()}


# --- memory -------------------------------------------------------------------------------------------------------------------------


def device_bytes() -> int:
    """The memory of the device that this process has in use: what the pool has given out, not what it keeps for later."""
    if not IS_GPU:
        return host_bytes()
    from cuda.bindings import driver

    number = int((DEVICE.split(":") + ["0"])[1])
    pool = _checked(driver.cuDeviceGetDefaultMemPool(_checked(driver.cuDeviceGet(number))))
    used = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    return int(_checked(driver.cuMemPoolGetAttribute(pool, used)))


def _checked(answer: Sequence[Any]) -> Any:
    assert not answer[0], answer[0]
    return answer[1]


def host_bytes() -> int:
    """The memory of the host that this process has in use."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def wait() -> None:
    """Until the device has done all work."""
    if IS_GPU:
        weft.runtime.cuda.synchronize()
