"""Pipeline parallelism: each process along an axis of a mesh trains one stage of a network, on micro-batches that pass through.

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
from typing import Any

import numpy as np

from ..dtypes import DEFAULT_FLOAT, DTypeLike, uint64
from ..errors import UserError
from ..graph.node import Type
from ..mesh import mesh as meshes
from ..mesh.links import Neighbours
from ..nn.module import Module
from ..optim import Optimizer
from ..precision import LossScale
from ..random import SUBSTREAM, default_generator
from ..tensor import ArrayLike, Tensor, as_tensor, number
from ..tree import flatten, unflatten
from .pipeline_cuts import cut, cut_after, cut_names, described, trace_network
from .pipeline_report import PipelineReport, StageEvent, StageRecord, gather_records
from .pipeline_schedule import FORWARD, Work, most_stored, schedule
from .pipeline_stage import BatchTask, Loss, PipelineStage
from .pipeline_state import StageTensors, drop_others, owners
from .pipeline_sums import TreeSum
from .pipeline_update import PipelineUpdate

SLOTS = 2  # messages in flight between two stages: 1F1B sends one before it receives one


class Pipeline:
    """Pipeline parallelism: the stage of this process, and its schedule.

    `example` is a batch, or its shape. `optimizer` creates an optimizer for given parameters. Every process gets the whole batch: the
    first stage uses its inputs, the last one its targets. Afterwards the model holds the values of its own stage only.
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
        cuts: Sequence[str] | None = None,
        precision: DTypeLike | None = None,
        scale: LossScale | None = None,
        around: BatchTask | None = None,
    ) -> None:
        """`data`: the data-parallel axis of the mesh; gradients are averaged along it. `recompute`: store only the inputs of stages, and
        recompute activations in backward passes. `costs`: seconds of layers by path, as measured by `weft.profile`. `cuts`: the last
        layer of each stage but the last, instead of those that balance the costs. `scale`: loss scale, for
        float16. `around`: computation before and after the network, instead of `loss` alone."""
        self.mesh, self.axis = meshes.current(), axis
        self.stages, self.number = self.mesh.size(axis), self.mesh.index(axis)
        self.micro_batches, self.schedule, self.scale = micro_batches, schedule, scale
        self.model = model.train()
        self.work = _checked(schedule, self.number, self.stages, micro_batches)
        self.task = around or BatchTask(self._micro_type(example), None, loss)
        self.network = trace_network(model, self.task.input, costs, self._before)
        self.cuts = cut(self.network, self.stages) if cuts is None else cut_after(self.network, self.stages, cuts)
        stages_of = owners(model, self.network, self.cuts)
        drop_others(model, {name for name, stages in stages_of.items() if self.number in stages})
        self.tensors = StageTensors(model, self.mesh, axis, stages_of)
        self.optimizer = optimizer(list(self.tensors.parameters.values()))
        if data is not None:
            self.optimizer.average_along(data)
        self.data = self.optimizer.common.axis
        self.replicas = self.optimizer.share.size
        self.tensors.note_groups(self.optimizer)
        ends = [None, *self.cuts, None]
        self.stage = PipelineStage(
            model, self.network, ends[self.number], ends[self.number + 1], self.task,
            list(self.tensors.parameters.values()), list(self.tensors.state.values()), recompute=recompute, precision=precision,
            collect=self.replicas > 1,
        )  # fmt: skip
        self._update = PipelineUpdate(self)
        self._links = Neighbours(self.mesh, axis, [c.nbytes for c in self.cuts], SLOTS) if self.stages > 1 else None
        self._record: StageRecord = StageRecord(self.number)

    def _micro_type(self, example: Any) -> Type:
        if isinstance(example, tuple) and all(isinstance(n, int) for n in example):
            batch = Type(example, DEFAULT_FLOAT)
        else:
            batch = as_tensor(example)._node.type
        return Type((_part_size(batch.shape[0], self.micro_batches), *batch.shape[1:]), batch.dtype)

    def _before(self, x: Tensor) -> Tensor:
        given = self.task.prepared(x, None)[0]
        assert given is not None
        return given

    # --- training -----------------------------------------------------------------------------------------------------------------

    def step(self, x: ArrayLike, y: ArrayLike) -> float:
        """Update the parameters with one batch; returns the mean loss of its micro-batches, in every process."""
        self._record = StageRecord(self.number)
        xs, ys = self._parts(x), self._parts(y)
        first = int(default_generator.offset.item())
        passes = _Passes(self, xs, ys, self._offsets(first))
        for work in self.work:
            passes.run(work)
        default_generator.offset = number((first + self.network.drawn) % 2**64, uint64)
        with self._timed("update"):
            self._update(passes.gradients.result(), passes.statistics)
        return self._mean_loss(passes.losses.result() if self.stage.end is None else np.zeros((), np.float32))

    def _offsets(self, first: int) -> list[int]:
        """The offset of each micro-batch in the random stream: it does not depend on how many processes share the micro-batches of a step."""
        if self.micro_batches * self.replicas == 1:
            return [first]
        begin = 0 if self.data is None else self.mesh.index(self.data) * self.micro_batches
        return [(first + (begin + m) * SUBSTREAM) % 2**64 for m in range(self.micro_batches)]

    def _parts(self, batch: ArrayLike) -> list[np.ndarray]:
        whole = np.asarray(batch.numpy() if isinstance(batch, Tensor) else batch)
        size = _part_size(len(whole), self.micro_batches)
        return [whole[i * size : (i + 1) * size] for i in range(self.micro_batches)]

    def _mean_loss(self, total: np.ndarray) -> float:
        value = np.asarray(total / np.float32(self.micro_batches))
        if self.stages > 1:
            value = meshes.run_collective("broadcast", value, self.axis, self.mesh.axes, self.stages - 1)
        if self.data is not None and self.replicas > 1:
            value = meshes.run_collective("all_reduce", value, self.data, self.mesh.axes, "sum", "summed")
            value = value / np.float32(self.replicas)
        return float(value)

    # --- prediction -----------------------------------------------------------------------------------------------------------------

    def predict(self, x: ArrayLike) -> np.ndarray:
        """The network's output for a batch in evaluation mode, in every process."""
        whole = np.asarray(x.numpy() if isinstance(x, Tensor) else x)
        self.model.eval()
        try:
            results = list(self.forward_parts(whole))
        finally:
            self.model.train()
        found = np.concatenate([np.asarray(r) for r in results]) if self.stage.end is None else None
        return self.from_last(found, len(whole))

    def forward_parts(self, x: np.ndarray) -> Iterator[Any]:
        """Pass a batch of any size through the stages in parts of the size of a micro-batch; the network's outputs in the last stage.

        The last part is padded with copies of an example, so that all have one shape.
        """
        size = self.task.input.shape[0]
        for begin in range(0, len(x), size):
            count = min(size, len(x) - begin)
            part = x[begin + np.minimum(np.arange(size), count - 1)]
            given = part if self.stage.begin is None else self._receive(self.stage.begin.type, forward=True)
            y = self.stage.predict(given)
            if self.stage.end is None:
                yield first_rows(y, count)
            else:
                self._send_forward(np.asarray(as_tensor(y).numpy()))

    def from_last(self, value: np.ndarray | None, count: int) -> np.ndarray:
        """An array of the last stage with `count` outputs of the network, in every process."""
        shape, dtype = self.network.outputs[0].shape, self.network.outputs[0].dtype.numpy
        given = np.zeros((count, *shape[1:]), dtype) if value is None else value
        if self.stages == 1:
            return given
        return meshes.run_collective("broadcast", given, self.axis, self.mesh.axes, self.stages - 1)

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
        """The optimizer state under the names that it has in a single process, in every process: all must call this."""
        return self.tensors.gather_optimizer(self.optimizer.whole_state())

    def load(self, values: Mapping[str, Any], optimizer: Mapping[str, Any] | None = None) -> None:
        """Load the stage from the tensors of the whole network, and its optimizer from the state of the whole optimizer."""
        self.tensors.load(values)
        if optimizer is not None:
            self.tensors.load_optimizer(self.optimizer, optimizer)

    # --- reports ------------------------------------------------------------------------------------------------------------------------

    def report(self) -> PipelineReport:
        """The timeline of the last step: all stages must call this."""
        records = gather_records(self._record, self.mesh, self.axis)
        return PipelineReport(self.schedule, self.micro_batches, records, *self.described())

    @property
    def cut_names(self) -> list[str]:
        """The last layer of each stage but the last: `cuts` of the same pipeline."""
        return cut_names(self.network, self.cuts)

    def described(self) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Descriptions of the layers of all stages, and their modelled costs."""
        return described(self.network, self.cuts)

    def memory(self) -> int:
        """The bytes that the stage needs in a step. Its programs are planned and compiled."""
        stage, task = self.stage, self.task
        x = _blank(stage.begin.type if stage.begin is not None else task.input)
        target = None if stage.end is not None or task.target is None else _blank(task.target)
        offset = np.zeros((), np.uint64)
        stage.forward.lower(x, target, offset)
        forward = stage.forward.memory(x, target, offset)
        return forward.total + (most_stored(self.work) - 1) * forward.results

    @contextmanager
    def _timed(self, phase: str, micro_batch: int = -1) -> Iterator[None]:
        begin = time.perf_counter_ns()
        yield
        self._record.events.append(StageEvent(phase, micro_batch, begin, time.perf_counter_ns()))


class _Passes:
    """The passes of one step, and the values that they pass on to each other."""

    def __init__(self, pipeline: Pipeline, xs: list[np.ndarray], ys: list[np.ndarray], offsets: list[int]) -> None:
        self.pipeline, self.stage, self.xs, self.ys, self.offsets = pipeline, pipeline.stage, xs, ys, offsets
        self.statistics: list[Tensor] = []
        self.stored: dict[int, tuple[Any, ...]] = {}
        self.gradients: TreeSum[list[Tensor]] = TreeSum(pipeline._update.add)
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
        offset = np.asarray(self.offsets[m], np.uint64)
        with pipeline._timed(FORWARD, m):
            y, residuals, statistics = stage.forward(x, target, offset)
            result = np.asarray(y.numpy())
        self.statistics += statistics
        self._store(m, (x, target, offset) if stage.recompute else (target, residuals))
        if stage.end is None:
            self.losses.add(result)
        else:
            with pipeline._timed("wait", m):
                pipeline._send_forward(result)

    def _backward(self, m: int) -> None:
        pipeline, stage = self.pipeline, self.stage
        if stage.end is None:
            g = np.ones((), np.float32) if pipeline.scale is None else np.asarray(pipeline.scale.scale.numpy())
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


def _blank(type: Type) -> np.ndarray:
    """An array of a type that allocates no memory."""
    return np.broadcast_to(np.zeros((), type.dtype.numpy), type.shape)


def _nbytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_nbytes, value))
    if isinstance(value, Tensor):
        return int(np.prod(value.shape)) * value.dtype.itemsize
    return value.nbytes if isinstance(value, np.ndarray) else 0


def first_rows(result: Any, count: int) -> Any:
    """The first rows of all tensors of a result."""
    leaves, structure = flatten(result)
    return unflatten(structure, [np.asarray(as_tensor(leaf).numpy())[:count] for leaf in leaves])


def _part_size(batch: int, micro_batches: int) -> int:
    if batch == 0 or batch % micro_batches:
        raise UserError(
            "Pipeline",
            f"a batch size that is a multiple of the {micro_batches} micro-batches is required, got {batch}.",
        )
    return batch // micro_batches


def _checked(name: str, stage: int, stages: int, micro_batches: Any) -> list[Work]:
    if not isinstance(micro_batches, int) or isinstance(micro_batches, bool) or micro_batches < 1:
        raise UserError("Pipeline", f"at least 1 micro-batch is required, got {micro_batches!r}.")
    return schedule(name, stage, stages, micro_batches)
