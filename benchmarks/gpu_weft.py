"""The contestants' work on a GPU as weft does it: networks of weft.zoo, one compiled function a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cases import with_weft
from cases.networks import Task
from gpu_measure import Contestant, Place

import weft
from weft.errors import WeftError


def settle(tf32: bool) -> None:
    """Everything from now on is on the device, with or without TF32."""
    weft.knobs.device = Place.device
    if "tf32" in weft.knobs.__dict__:
        weft.knobs.tf32 = int(tf32)


def wait() -> None:
    if Place.is_gpu():
        weft.runtime.cuda.synchronize()


def works() -> bool:
    """Whether the device can still be used in this process."""
    try:
        return bool(weft.asarray(np.arange(4.0, dtype=np.float32)).sum().item() == 6.0)
    except WeftError:
        return False


class Trained(with_weft.Trained):
    """A network with its parameters, and the step that trains it as one compiled function, perhaps in mixed precision."""

    def __init__(self, task: Task, precision: str | None = None) -> None:
        super().__init__(task)
        self.step = weft.jit(self._step, precision=precision)

    def values(self) -> list[np.ndarray]:
        """The losses of two steps, and how the first one changed all parameters, seen as one vector."""
        first = self.call().numpy()
        changes = [p.numpy() - s for p, s in zip(self.model.parameters(), self.start, strict=True)]
        return [np.stack([first, self.call().numpy()]), np.concatenate([c.reshape(-1) for c in changes])]

    def memory(self) -> float:
        return float(self.step.memory(*self.inputs).total)


def training(task: Task, precision: str | None = None) -> Contestant:
    made = Trained(task, precision)
    return Contestant(made.call, wait, made.values, made.memory)


def inference(task: Task, precision: str | None = None) -> Contestant:
    model, x = with_weft.model_of(task).eval(), weft.asarray(task.batch()[0]).astype(precision or "float32").realize()
    step = weft.jit(lambda x: model(x), precision=precision)
    return Contestant(lambda: step(x), wait, lambda: [step(x).numpy()], lambda: float(step.memory(x).total))


def tensor(pattern: np.ndarray, shape: Sequence[int], dtype: str) -> weft.Tensor:
    """A tensor of the shape, filled with the pattern over and over: large ones need not come from the host."""
    size = int(np.prod(shape))
    few = weft.asarray(pattern).astype(dtype)
    return weft.tile(few, (-(-size // few.size),))[:size].reshape(tuple(shape)).realize()


def function(f: Callable[..., Any], inputs: Sequence[weft.Tensor], look: Callable[[Any], Any]) -> Contestant:
    """A function of tensors that gives one; `look` takes the part of it that is compared."""
    compiled = weft.jit(f)
    return Contestant(lambda: compiled(*inputs), wait, lambda: [look(compiled(*inputs)).astype("float32").numpy()])
