"""parallel="auto": the split of a training that a cost model predicts to be the fastest, and why (see weft/plan)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ..compiler.host import usable_cores
from ..errors import UserError
from ..graph.node import Type
from ..insight.profile_text import duration
from ..knobs import knobs
from ..mesh.connection import connection
from ..mesh.world import world
from ..nn.module import Module
from ..ops.convert import parameter
from ..ops.creation import zeros
from ..parallel.forms import DATA
from ..parallel.pipeline_cuts import cut, trace_network
from ..parallel.sizes import ParallelSizes
from ..plan.calibration import MeasuredCluster, default_ranks, here_or_measured
from ..plan.plan_text import explanation
from ..plan.scaling_plan import ScalingPlan, scaling_plan
from ..plan.splits import ParallelSplit
from ..plan.step_work import Step, measured_work
from ..records import dataclass
from ..report.text_format import counted
from ..runtime import device
from .forecast import input_types
from .making import Same, TrainingPlan, make
from .memory import arrays_like
from .network_split import layer_splits
from .ranks import PER_STAGE, broadcast_text, largest_divisor

Tell = Callable[[str], None]


@dataclass(frozen=True)
class ParallelChoice:
    """The chosen setting, with the stage of ZeRO that goes with it, and the reasons as text."""

    sizes: ParallelSizes
    zero: int
    why: str

    @property
    def parallel(self) -> str:
        return str(self.sizes)

    @property
    def zero_stage(self) -> int:
        """The stage of ZeRO; 0 if no ranks share batches, whatever was asked for."""
        return self.zero if self.sizes.data > 1 else 0


def choose_parallel(
    model: Module,
    train: Any,
    plan: TrainingPlan,
    processes: int | None = None,
    *,
    cluster: MeasuredCluster | None = None,
    refused: Sequence[str] = (),
    tell: Tell = lambda text: None,
) -> ParallelChoice:
    """Choose the fastest split of a training over this many processes of this machine; without a number, choose that as well.

    `refused` are axes that other settings rule out. A step is profiled on one thread; how much ranks slow each other down was measured before, or is measured now.
    """
    if not device().is_host_processor:
        raise UserError(
            "fit", f"parallel=auto is for CPUs, got {device().name}. Name a split, such as parallel=data:2."
        )
    counts = [processes] if processes is not None else _counts(train.batch)
    found = cluster or here_or_measured(counts, tell)
    found = replace(found, cores=max(found.cores, *counts))
    tell("profiling a training step")
    step = _step_of(model, train, plan)
    with knobs.set(threads=1):
        work = measured_work(step, train.batch)
    fits = PossibleSplits(model, train, plan, refused)
    made = scaling_plan(work, found, train.batch, counts, total=train.batch, possible=fits)
    if processes is None:
        return _against_one_process(made, _seconds(step, train.batch), usable_cores())
    return _chosen(made, processes, explanation(made))


def _counts(batch: int) -> list[int]:
    """Numbers of ranks to compare; each rank gets at least one example."""
    return [n for n in default_ranks(usable_cores()) if batch % n == 0]


def _chosen(made: ScalingPlan, ranks: int, why: str) -> ParallelChoice:
    split = made.best(ranks).split
    return ParallelChoice(ParallelSizes(split.data, split.pipeline, split.model), split.zero, why)


def _against_one_process(made: ScalingPlan, seconds: float, cores: int) -> ParallelChoice:
    """The fastest number of single-threaded processes, unless one process with all threads is as fast."""
    one, several = made.best(1), [made.best(n) for n in made.ranks if n > 1]
    alone = f"one process with {counted(cores, 'thread')} takes {duration(seconds)} a step, measured"
    if not several:
        return ParallelChoice(ParallelSizes(), 0, f"{alone}, and there is nothing to split")
    best = min(several, key=lambda row: (not made.fits(row), row.seconds))
    compared = f"{alone}, and {best.split} {duration(best.seconds)}, predicted"
    if seconds <= best.seconds and made.fits(one):
        return ParallelChoice(ParallelSizes(), 0, compared)
    shown = replace(made, limits={n: limit for n, limit in made.limits.items() if n <= best.split.ranks})
    return _chosen(made, best.split.ranks, f"{compared}\n{explanation(shown)}")


# --- time of a step -----------------------------------------------------------------------------------------------------------------


def _step_of(model: Module, train: Any, plan: TrainingPlan) -> Step:
    """The training step of one process, and arguments of any batch size. It is profiled, which changes nothing."""
    alone = replace(plan, settings={n: v for n, v in plan.settings.items() if n not in ("axis", "zero", "local_steps", "accumulate")})  # fmt: skip
    _, steps = make(model, train, alone)
    steps.set_mode(training=True)
    return lambda batch: (steps.train, tuple(np.array(a) for a in arrays_like(train.dataset, batch)))


def _seconds(step: Step, batch: int) -> float:
    """A step of one process with all of its threads."""
    return measured_work(step, batch).seconds(batch)


class PossibleSplits:
    """Which splits are possible: layers need rules and equal parts, stages need layers, and settings must allow it."""

    def __init__(self, model: Module, train: Any, plan: TrainingPlan, refused: Sequence[str] = ()) -> None:
        """`refused`: axes that other settings rule out."""
        self.model, self.batch, self.plan, self.refused = model, train.batch, plan, refused
        self.input = input_types(plan.prepare or Same(), train.dataset.inputs(np.arange(1)))[0]
        self._known: dict[Any, bool] = {}

    def __call__(self, split: ParallelSplit) -> bool:
        sizes = ParallelSizes(split.data, split.pipeline, split.model)
        if self.batch % split.data or any(getattr(sizes, axis) > 1 for axis in self.refused):
            return False
        micro_batch = self._micro_batch(sizes)
        return (
            self._allows_zero(split)
            and self._holds(("layers", sizes.model, micro_batch), lambda: layer_splits(self.model, micro_batch, sizes), sizes.model)
            and self._holds(("stages", sizes.pipeline), lambda: cut(trace_network(self.model, micro_batch), sizes.pipeline), sizes.pipeline)
        )  # fmt: skip

    def _micro_batch(self, sizes: ParallelSizes) -> Type:
        ranks = self.batch // sizes.data
        parts = largest_divisor(ranks, PER_STAGE * sizes.pipeline) if sizes.pipeline > 1 else 1
        return Type((ranks // parts, *self.input.shape[1:]), self.input.dtype)

    def _holds(self, key: Any, attempt: Callable[[], Any], size: int) -> bool:
        """Whether a check passes; results are kept, so that no check runs twice."""
        if size > 1 and key not in self._known:
            self._known[key] = False
            with suppress(UserError):
                attempt()
                self._known[key] = True
        return size == 1 or self._known[key]

    def _allows_zero(self, split: ParallelSplit) -> bool:
        given = self.plan.settings.get("zero", 0)
        if given or not split.zero:
            return split.zero == given or split.data == 1
        if not isinstance(self.plan.optimizer, str):
            return False
        chains = [group.chain for group in self.plan.optimizer_of([parameter(zeros((2, 2)))]).groups]
        return all(transform.elementwise for chain in chains for transform in chain)


# --- several processes ------------------------------------------------------------------------------------------------------------


def agreed_choice(choose: Callable[[], ParallelChoice]) -> ParallelChoice:
    """The choice of rank 0, sent to all other processes."""
    me = world()
    if me.size == 1:
        return choose()
    if connection().engine != "local":
        raise UserError("fit", "parallel=auto is for processes of one machine. Name a split; weft plan compares them on a cluster.")  # fmt: skip
    ParallelSizes(data=me.size).mesh()
    made = choose() if me.rank == 0 else ParallelChoice(ParallelSizes(), 0, "")
    text = json.dumps([made.sizes.data, made.sizes.pipeline, made.sizes.model, made.zero, made.why])
    *sizes, zero, why = json.loads(broadcast_text(text, [DATA]))
    return ParallelChoice(ParallelSizes(*sizes), zero, why)
