"""Model parallel by layer: the processes along an axis of a mesh each train one stage of a network, on micro-batches that pass through.

def train(x, y):
    mesh = parallel.Mesh(stage=2)
    pipeline = parallel.Pipeline(
        zoo.resnet20(), weft.cross_entropy, partial(optim.sgd, rate=0.1), x.shape, micro_batches=8, schedule="1f1b"
    )
    for _ in range(100):
        loss = pipeline.step(x, y)
    print(pipeline.report())
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ..dtypes import DEFAULT_FLOAT, DTypeLike, uint64
from ..errors import UserError
from ..graph.node import Type
from ..mesh import mesh as meshes
from ..mesh.links import Neighbours
from ..nn.module import Module
from ..ops.collective import all_reduce
from ..optim import Optimizer
from ..random import default_generator
from ..tensor import ArrayLike, Tensor, as_tensor, number
from ..tracing.jit import jit
from .pipeline_cuts import cut, described, trace_network
from .pipeline_report import PipelineReport, StageEvent, StageRecord, gather_records
from .pipeline_schedule import FORWARD, Work, schedule
from .pipeline_stage import Loss, PipelineStage
from .pipeline_state import StageTensors, drop_others, owners
from .pipeline_sums import TreeSum

SLOTS = 2  # messages under way between two stages: 1F1B sends one before it receives one


class Pipeline:
    """The stage of this process, and the schedule by which it works; see the top of this file.

    `example` is a batch, or its shape. `optimizer` makes an optimizer of given parameters. Every process is given the whole batch: the
    first stage uses its inputs, the last one its targets. Afterwards the model has the values of its own stage only.
    """

    def __init__(
        self,
        model: Module,
        loss: Loss,
        optimizer: Callable[[list[Tensor]], Optimizer],
        example: Any,
        *,
        axis: str = "stage",
        data: str | None = None,
        micro_batches: int = 8,
        schedule: str = "1f1b",
        recompute: bool = False,
        costs: Mapping[str, float] | None = None,
        precision: DTypeLike | None = None,
    ) -> None:
        """`data`: an axis of the mesh along which batches differ; gradients are averaged. `recompute`: store the inputs of stages only, and
        compute them again in backward passes. `costs`: seconds of layers by path, as measured by `weft.profile`."""
        self.mesh, self.axis, self.data = meshes.current(), axis, data
        self.stages, self.number = self.mesh.size(axis), self.mesh.index(axis)
        self.micro_batches, self.schedule = micro_batches, schedule
        self.model = model.train()
        self.work = _checked(schedule, self.number, self.stages, micro_batches)
        self.network = trace_network(model, self._micro_type(example), costs)
        self.cuts = cut(self.network, self.stages)
        stages_of = owners(model, self.network, self.cuts)
        drop_others(model, {name for name, stages in stages_of.items() if self.number in stages})
        self.tensors = StageTensors(model, self.mesh, axis, stages_of)
        if not self.tensors.parameters:
            raise UserError(
                "Pipeline", f"stage {self.number} has no parameters to train. Use fewer stages, or give costs."
            )
        ends = [None, *self.cuts, None]
        self.stage = PipelineStage(
            model, self.network, ends[self.number], ends[self.number + 1], loss,
            list(self.tensors.parameters.values()), list(self.tensors.state.values()), recompute=recompute, precision=precision,
        )  # fmt: skip
        self.optimizer = optimizer(list(self.tensors.parameters.values()))
        self._longest = self.optimizer.common.clip_norm  # of the gradients of all stages, not of this one alone
        self.optimizer.common = replace(self.optimizer.common, clip_norm=None)
        self._add, self._squares, self._update = jit(_add, donate=("total",)), jit(self._sum_squares), jit(self._apply)
        self._links = Neighbours(self.mesh, axis, [c.nbytes for c in self.cuts], SLOTS) if self.stages > 1 else None
        self._record: StageRecord = StageRecord(self.number)

    def _micro_type(self, example: Any) -> Type:
        if isinstance(example, tuple) and all(isinstance(n, int) for n in example):
            batch = Type(example, DEFAULT_FLOAT)
        else:
            batch = as_tensor(example)._node.type
        return Type((_part_size(batch.shape[0], self.micro_batches), *batch.shape[1:]), batch.dtype)

    # --- training -----------------------------------------------------------------------------------------------------------------

    def step(self, x: ArrayLike, y: ArrayLike) -> float:
        """One update by a batch; the mean loss of its micro-batches, in every process."""
        self._record = StageRecord(self.number)
        xs, ys = self._parts(x), self._parts(y)
        first = int(default_generator.offset.item())
        passes = _Passes(self, xs, ys, first)
        for work in self.work:
            passes.run(work)
        default_generator.offset = number((first + self.micro_batches * self.network.drawn) % 2**64, uint64)
        with self._timed("update"):
            self._apply_gradients(passes.gradients.result())
        return self._mean_loss(passes.losses.result() if self.stage.end is None else np.zeros((), np.float32))

    def _parts(self, batch: ArrayLike) -> list[np.ndarray]:
        whole = np.asarray(batch.numpy() if isinstance(batch, Tensor) else batch)
        size = _part_size(len(whole), self.micro_batches)
        return [whole[i * size : (i + 1) * size] for i in range(self.micro_batches)]

    def _apply_gradients(self, total: list[Tensor]) -> None:
        total = self._sum_of_shared(total)
        factor = np.float32(1.0)
        if self._longest is not None:
            square = self._reduced(np.asarray(self._squares(total).numpy()))
            length = float(np.sqrt(square))
            factor = np.float32(min(1.0, self._longest / length) if length > 0.0 else 1.0)
        self._update(total, factor)

    def _sum_of_shared(self, total: list[Tensor]) -> list[Tensor]:
        """The derivative by a parameter that several stages use is the sum of theirs."""
        own = list(self.tensors.parameters)
        found = dict(zip(own, total, strict=True))
        for name in self.tensors.shared:
            tensor = self.tensors.whole[name]
            mine = np.asarray(found[name].numpy()) if name in found else np.zeros(tensor.shape, tensor.dtype.numpy)
            everyone = self._reduced(mine)
            if name in found:
                found[name] = as_tensor(everyone)
        return [found[name] for name in own]

    def _mean(self, total: Sequence[Tensor]) -> list[Tensor]:
        means = [g / float(self.micro_batches) for g in total]
        if self.data is None or self.mesh.size(self.data) == 1:
            return means
        return [all_reduce(g, self.data) / float(self.mesh.size(self.data)) for g in means]

    def _sum_squares(self, total: list[Tensor]) -> Tensor:
        """Of the gradients that are counted here: those of shared parameters by the first stage that has them."""
        names = list(self.tensors.parameters)
        counted = [
            g
            for name, g in zip(names, self._mean(total), strict=True)
            if self.tensors.stages_of[name][0] == self.number
        ]
        squares: Any = sum(((g * g).sum().astype("float32") for g in counted), as_tensor(0.0))
        return as_tensor(squares)

    def _apply(self, total: list[Tensor], factor: Tensor) -> None:
        gradients = self._mean(total)
        if self._longest is not None:
            gradients = [g * factor.astype(g.dtype) for g in gradients]
        self.optimizer.step(gradients)

    def _mean_loss(self, total: np.ndarray) -> float:
        value = np.asarray(total / np.float32(self.micro_batches))
        if self.stages > 1:
            value = meshes.run_collective("broadcast", value, self.axis, self.mesh.axes, self.stages - 1)
        if self.data is not None and self.mesh.size(self.data) > 1:
            value = meshes.run_collective("all_reduce", value, self.data, self.mesh.axes, "sum", "summed")
            value = value / np.float32(self.mesh.size(self.data))
        return float(value)

    def _reduced(self, value: np.ndarray) -> np.ndarray:
        """The sum over all stages."""
        if self.stages == 1:
            return value
        return meshes.run_collective("all_reduce", value, self.axis, self.mesh.axes, "sum", "summed")

    # --- prediction -----------------------------------------------------------------------------------------------------------------

    def predict(self, x: ArrayLike) -> np.ndarray:
        """What the network gives for a batch in evaluation mode, in every process."""
        results = []
        self.model.eval()
        try:
            for part in self._parts(x):
                given = part if self.stage.begin is None else self._receive(self.stage.begin.type, forward=True)
                results.append(np.asarray(as_tensor(self.stage.predict(given)).numpy()))
                self._send_forward(results[-1])
        finally:
            self.model.train()
        return self._from_last(np.concatenate(results))

    def _from_last(self, value: np.ndarray) -> np.ndarray:
        if self.stages == 1:
            return value
        shape = tuple(self.network.outputs[0].shape)
        if self.stage.end is not None:
            value = np.zeros((shape[0] * self.micro_batches, *shape[1:]), self.network.outputs[0].dtype.numpy)
        return meshes.run_collective("broadcast", value, self.axis, self.mesh.axes, self.stages - 1)

    # --- messages ---------------------------------------------------------------------------------------------------------------------

    def _receive(self, type: Type, *, forward: bool) -> np.ndarray:
        assert self._links is not None
        link = self._links.from_previous if forward else self._links.from_next
        assert link is not None
        return link.receive(type.shape, np.dtype(type.dtype.numpy))

    def _send_forward(self, y: np.ndarray) -> None:
        if self._links is not None and self._links.to_next is not None:
            self._links.to_next.send(y)

    def _send_backward(self, dx: np.ndarray) -> None:
        if self._links is not None and self._links.to_previous is not None:
            self._links.to_previous.send(dx)

    # --- checkpoints ------------------------------------------------------------------------------------------------------------------

    def named_tensors(self) -> dict[str, np.ndarray]:
        """All parameters and state of the whole network, in every process: all must call this."""
        return self.tensors.gather()

    def optimizer_state(self) -> dict[str, np.ndarray]:
        """The state of the optimizer by the names of one process, in every process: all must call this."""
        return self.tensors.gather_optimizer(self.optimizer)

    def load(self, values: Mapping[str, Any], optimizer: Mapping[str, Any] | None = None) -> None:
        """Load the stage from the tensors of a whole network, and its optimizer from the state of a whole one."""
        self.tensors.load(values)
        if optimizer is not None:
            self.tensors.load_optimizer(self.optimizer, optimizer)

    # --- what happened ------------------------------------------------------------------------------------------------------------------

    def report(self) -> PipelineReport:
        """Who did what when in the last step: all stages must call this."""
        records = gather_records(self._record, self.mesh, self.axis)
        return PipelineReport(self.schedule, self.micro_batches, records, *described(self.network, self.cuts))

    @contextmanager
    def _timed(self, phase: str, micro_batch: int = -1) -> Iterator[None]:
        begin = time.perf_counter_ns()
        yield
        self._record.events.append(StageEvent(phase, micro_batch, begin, time.perf_counter_ns()))


class _Passes:
    """The passes of one step: what they need from each other."""

    def __init__(self, pipeline: Pipeline, xs: list[np.ndarray], ys: list[np.ndarray], first: int) -> None:
        self.pipeline, self.stage, self.xs, self.ys, self.first = pipeline, pipeline.stage, xs, ys, first
        self.stored: dict[int, tuple[Any, ...]] = {}
        self.gradients: TreeSum[list[Tensor]] = TreeSum(pipeline._add)
        self.losses: TreeSum[np.ndarray] = TreeSum(np.add)

    def run(self, work: Work) -> None:
        (self._forward if work.phase == FORWARD else self._backward)(work.micro_batch)

    def _forward(self, m: int) -> None:
        pipeline, stage = self.pipeline, self.stage
        if stage.begin is None:
            x = self.xs[m]
        else:
            with pipeline._timed("wait", m):
                x = pipeline._receive(stage.begin.type, forward=True)
        target = self.ys[m] if stage.end is None else None
        offset = np.asarray((self.first + m * pipeline.network.drawn + stage.drawn_before) % 2**64, np.uint64)
        with pipeline._timed(FORWARD, m):
            y, residuals = stage.forward(x, target, offset)
            result = np.asarray(y.numpy())
        self._store(m, (x, target, offset) if stage.recompute else (target, residuals))
        if stage.end is None:
            self.losses.add(result)
        else:
            with pipeline._timed("wait", m):
                pipeline._send_forward(result)

    def _backward(self, m: int) -> None:
        pipeline, stage = self.pipeline, self.stage
        if stage.end is None:
            g = np.ones((), np.float32)
        else:
            with pipeline._timed("wait", m):
                g = pipeline._receive(stage.end.type, forward=False)
        with pipeline._timed("backward", m):
            found = stage.backward(*self.stored.pop(m), g)
            self.gradients.add(found.parameters)
        if found.input is not None:
            with pipeline._timed("wait", m):
                pipeline._send_backward(np.asarray(found.input.numpy()))

    def _store(self, m: int, values: tuple[Any, ...]) -> None:
        self.stored[m] = values
        held = sum(_nbytes(v) for kept in self.stored.values() for v in kept)
        record = self.pipeline._record
        record.stored = max(record.stored, len(self.stored))
        record.stored_bytes = max(record.stored_bytes, held)


def _nbytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_nbytes, value))
    if isinstance(value, Tensor):
        return int(np.prod(value.shape)) * value.dtype.itemsize
    return value.nbytes if isinstance(value, np.ndarray) else 0


def _add(total: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(total, more, strict=True)]


def _part_size(batch: int, micro_batches: int) -> int:
    if batch == 0 or batch % micro_batches:
        raise UserError(
            "Pipeline",
            f"a batch that {micro_batches} micro-batches of equal size make up is required, got {batch} examples.",
        )
    return batch // micro_batches


def _checked(name: str, stage: int, stages: int, micro_batches: Any) -> list[Work]:
    if not isinstance(micro_batches, int) or isinstance(micro_batches, bool) or micro_batches < 1:
        raise UserError("Pipeline", f"1 micro-batch or more is required, got {micro_batches!r}.")
    return schedule(name, stage, stages, micro_batches)
