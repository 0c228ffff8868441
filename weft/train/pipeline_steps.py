"""Training steps of a pipeline: each process trains one stage of the network, on micro-batches that pass through all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import RunError
from ..graph.node import Type
from ..mesh.mesh import run_collective
from ..ops.convert import asarray
from ..optim import Optimizer
from ..parallel.forms import PIPELINE
from ..parallel.pipeline import Pipeline
from ..parallel.pipeline_stage import BatchTask
from ..parallel.pipeline_state import StageTensors
from ..runtime.free_memory import SHARE, free_bytes, size_text
from ..tensor import Tensor
from ..tracing.jit import jit
from .pipeline_options import PipelineOptions
from .ranks import Ranks
from .stage_times import StageCuts
from .steps import StepParts, Steps
from .task import match_target_shape, prediction_of

USUAL_SCHEDULE = "1f1b"  # as fast as gpipe, and stores less
REPORTED = 3  # the step whose idle time is told: the first ones compile
SHOWN = 64  # elements of a metric's tensor that are worth a message after every step
MakeOptimizer = Callable[[Mapping[str, Tensor]], Optimizer]  # of parameters by name


class PipelineSteps(Steps):
    """The steps of one stage; all processes of the pipeline call them together."""

    def __init__(
        self, parts: StepParts, optimizer: MakeOptimizer, train: Any, ranks: Ranks, options: PipelineOptions,
        cuts: StageCuts, tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._micro_batches = ranks.micro_batches // ranks.size
        x, y = train.dataset.inputs(np.arange(1)), np.asarray(train.dataset.labels[:1])
        size = train.batch // ranks.micro_batches
        given, target = (Type((size, *a.shape[1:]), asarray(a).dtype) for a in (x, y))
        around = BatchTask(given, target, self._loss, parts.inputs, parts.prepare, self._noted)
        names = {id(tensor): name for name, tensor in parts.model.named_parameters().items()}
        self.parts = parts
        self.pipeline = Pipeline(
            parts.model, self._loss, lambda own: optimizer({names[id(p)]: p for p in own}), None, axis=PIPELINE,
            micro_batches=self._micro_batches, precision=parts.precision, scale=parts.scale, around=around,
            schedule=options.schedule or USUAL_SCHEDULE, recompute=options.recompute, cuts=cuts.after,
        )  # fmt: skip
        super().__init__(parts, self.pipeline.optimizer)
        self._measure_check = jit(self._measured)
        self._tell, self._steps = tell, 0
        self._tell_stages(cuts, options.recompute)

    def _tell_stages(self, cuts: StageCuts, recompute: bool) -> None:
        layers, counted = self.pipeline.described()
        costs, what = (counted, "work") if cuts.seconds is None else (cuts.seconds, "time")
        shares = [f"  {number}: {text} ({cost / sum(costs):.0%} of the {what})" for number, (text, cost) in enumerate(zip(layers, costs, strict=True))]  # fmt: skip
        how = ", activations recomputed" if recompute else ""
        head = f"a pipeline of {len(layers)} stages and {self._micro_batches} micro-batches, {self.pipeline.schedule}{how}, {cuts.text}:"
        self._tell("\n".join([head, *shares]))

    @property
    def cuts(self) -> list[str]:
        """The last layer of each stage but the last."""
        return self.pipeline.cut_names

    @property
    def stages(self) -> StageTensors:
        return self.pipeline.tensors

    # --- training -----------------------------------------------------------------------------------------------------------------

    def step(self, x: Any, y: Any) -> Tensor:
        """Train on a batch; its mean loss, in all processes."""
        loss = self.pipeline.step(x, y)
        self._steps += 1
        if self._steps == REPORTED:
            self._tell(str(self.pipeline.report()))
        self._share_meters()
        return asarray(loss)

    def _share_meters(self) -> None:
        """Send the metrics so far from the last stage, which computes them, to all others: the first one shows them."""
        tensors = [
            t
            for meter in self.meters.values()
            for t in vars(meter).values()
            if isinstance(t, Tensor) and t.size <= SHOWN
        ]
        last, pipeline = self.pipeline.stage.end is None, self.pipeline
        parts = [np.asarray(t.numpy() if last else np.zeros(t.shape), np.float64).reshape(-1) for t in tensors]
        found = run_collective("broadcast", np.concatenate(parts), PIPELINE, pipeline.mesh.axes, pipeline.stages - 1)
        begin = 0
        for tensor in () if last else tensors:
            tensor.assign(asarray(found[begin : begin + tensor.size].reshape(tensor.shape), dtype=tensor.dtype))
            begin += tensor.size

    def _loss(self, result: Any, target: Tensor) -> Tensor:
        return self.parts.training_loss(match_target_shape(prediction_of(result), target), target)

    def _noted(self, result: Any, y: Tensor, loss: Tensor) -> None:
        self._note(match_target_shape(prediction_of(result), y), y, loss)

    def check_memory(self, train: Any, accumulate: int, gradients: int) -> None:
        """Compile the programs of this stage, if they fit in memory."""
        needed, free = self.pipeline.memory(), free_bytes()
        if free is not None and needed > SHARE * free:
            raise RunError(
                "fit",
                f"a stage with {self._micro_batches} micro-batches of {self.pipeline.task.input.shape[0]} examples needs "
                f"{size_text(needed)}, and {size_text(free)} are free. Use more micro_batches, or more stages.",
            )

    # --- validation ---------------------------------------------------------------------------------------------------------------

    def check(self, x: Any, y: Any, shown: bool = True) -> Any:
        """Measure a batch of validation data in the last stage; the predictions in all stages, if they are to be shown."""
        found, begin = [], 0
        for result in self.pipeline.forward_parts(np.asarray(x)):
            prediction = prediction_of(result)
            target = np.asarray(y)[begin : begin + len(prediction)]
            begin += len(prediction)
            found.append(self._measure_check(prediction, target).numpy())
        return asarray(self.pipeline.from_last(np.concatenate(found) if found else None, len(x))) if shown else None

    def _measured(self, prediction: Tensor, y: Tensor) -> Tensor:
        prediction = match_target_shape(prediction, y)
        self.parts.measure(self.checks, prediction, y, self.parts.loss(prediction, y))
        return prediction
