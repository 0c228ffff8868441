"""A whole epoch as one program: the examples stay on the device, and each step of the loop gathers its batch from them.

Steps that take less than a millisecond are otherwise limited by the host, which has to read a batch, copy it and start a program for
each. The batches are those of the loader, so the result has the same bits as step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..data.loader import Loader
from ..dtypes import bool_
from ..errors import RunError, UserError
from ..ops.convert import asarray
from ..ops.elementwise import where
from ..ops.indexing import take
from ..ops.movement import flip, reshape
from ..runtime.free_memory import SHARE, free_bytes, size_text
from ..step_loops import scan_steps
from ..tensor import Tensor
from ..tracing.jit import Jit, jit
from .steps import Steps

Step = Callable[[Tensor, Tensor], Any]


class EpochProgram:
    """Calls step(x, y) for batches of examples that are on the device.

    With `mirror`, each image is mirrored in every other epoch (alternating flips, Jordan 2024), half of them in the first: two epochs
    show both sides of all images, whereas random flips show half of them the same side twice.

    >>> total = asarray(0.0, dtype="float32")
    >>> def step(x, y):
    ...     total.assign(total + x.sum())
    ...     return total + 0.0
    >>> epoch = EpochProgram(step, np.arange(6, dtype=np.float32), np.arange(6))
    >>> epoch(np.array([[5, 0], [1, 2]])).tolist()
    [5.0, 8.0]
    """

    def __init__(
        self,
        step: Step,
        x: np.ndarray,
        y: np.ndarray,
        *,
        mirror: bool = False,
        seed: int = 0,
        precision: str | None = None,
    ) -> None:
        self.step, self.x, self.y = step, asarray(x), asarray(y)
        self.sides: Tensor | None = None
        if mirror:
            if x.ndim != 4:
                raise UserError("fit", f"alternating flips require images (n, channels, height, width), got {x.shape}.")
            words = np.random.Philox(key=np.array([seed, 1], np.uint64)).random_raw(len(x))
            self.sides = asarray((words & 1).astype(np.int8))
        self.program: Jit[Any] = jit(self._run, precision=precision)

    def __call__(self, order: np.ndarray, epoch: int = 0) -> Any:
        """All steps of an epoch: each row of `order` holds the indices of a batch. The stacked results of the steps."""
        return self.program(order.astype(np.int32), np.int8(epoch % 2))

    def _run(self, order: Tensor, odd: Tensor) -> Any:
        return scan_steps(lambda index: self.step(self._inputs(index, odd), take(self.y, index, axis=0)), order)

    def _inputs(self, index: Tensor, odd: Tensor) -> Tensor:
        x = take(self.x, index, axis=0)
        if self.sides is None:
            return x
        mirrored = (take(self.sides, index, axis=0) ^ odd).astype(bool_)
        return where(reshape(mirrored, (-1, 1, 1, 1)), flip(x, axis=3), x)


class ResidentEpochs:
    """The epochs of a training whose examples are on the device; see the head of this file."""

    def __init__(self, steps: Steps, loader: Any, alternate_flips: bool) -> None:
        _check_loader(loader)
        self.loader, dataset = loader, loader.dataset
        x, y = np.asarray(dataset.inputs(np.arange(len(dataset)))), np.asarray(dataset.labels)
        self.program = EpochProgram(
            steps.loss_of_step, x, y, mirror=alternate_flips, seed=loader.seed, precision=steps.parts.precision
        )

    def check_memory(self, train: Any, accumulate: int, gradients: int) -> None:
        """Compile the program of an epoch, if it fits in memory."""
        program, free = self.program.program, free_bytes()
        order, odd = np.zeros((len(train), train.batch), np.int32), np.int8(0)
        program.lower(order, odd)
        wanted = program.memory(order, odd).total
        if free is not None and wanted > SHARE * free:
            raise RunError(
                "fit", f"an epoch on the device needs {size_text(wanted)}, and {size_text(free)} are free. Use a smaller batch, or leave out resident."
            )  # fmt: skip

    def run(self, epoch: int) -> tuple[Tensor, int, int]:
        """The rest of an epoch: the loss of its last step, and how many examples and steps it had."""
        order = self.loader.take_order()
        return self.program(order, epoch)[-1], order.size, len(order)


def _check_loader(loader: Any) -> None:
    if not isinstance(loader, Loader) or not loader.drop_last or loader.shard.micro_batches > 1:
        raise UserError(
            "fit", "resident=True requires one process and a weft.data.Loader that drops the last, smaller batch (drop_last)."
        )  # fmt: skip
