"""Builds the parts of a training (loss, metrics, optimizer, steps) from its settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from .. import optim
from ..errors import UserError
from ..graph.node import Type
from ..nn.losses import loss as find_loss
from ..nn.module import Module
from ..ops.convert import parameter
from ..ops.creation import zeros
from ..precision import LossScale
from ..records import dataclass
from ..report.text_format import counted
from ..tensor import Tensor
from ..tracing.jit import jit
from .folder import DescribedNetwork
from .forecast import forecast, input_types, output_types
from .names import Loss, Metrics
from .network_split import SplitNetwork
from .pipeline_options import PipelineOptions
from .pipeline_steps import PipelineSteps
from .places import TensorPlaces
from .ranks import Ranks
from .server_steps import ServerSteps
from .stage_times import StageCuts, stage_cuts
from .state import Training
from .steps import StepParts, Steps
from .task import makers_of, task_of

NO_PIPELINE = PipelineOptions()
PROBE = (64, 64)  # shape of the parameter with which the state of an optimizer is measured


@dataclass(frozen=True)
class TrainingPlan:
    """How a network is trained: everything but the network, the data and the stopping criteria."""

    optimizer: str | Callable[..., optim.Optimizer] = "adam"
    rate: Any = None
    loss: str | Loss | None = None
    metrics: Metrics | None = None
    prepare: Module | None = None
    precision: str | None = None
    body: Sequence[str] = ()  # parameters that were trained before
    body_rate: float = 0.1  # factor of their learning rate
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the optimizer
    label_smoothing: float = 0.0  # of the training loss
    mix: Module | None = None  # MixUp or CutMix: from (x, y) to (x, y) in training
    bias_rate: float = 1.0  # factor of the learning rate of biases, and of scales and shifts of norms
    memory: int | str | None = None  # limit of a training step; see `jit`

    def check(self) -> None:
        """Check everything that does not need network or data."""
        if self.loss is not None:
            find_loss(self.loss)
        self.training_loss(find_loss(self.loss or "cross_entropy"))
        makers_of(self.metrics or ())
        self._check_bias_rate()
        jit(lambda x: x, precision=self.precision, memory=self.memory)
        self.optimizer_share()

    def _check_bias_rate(self) -> None:
        if isinstance(self.bias_rate, bool) or not self.bias_rate > 0:
            raise UserError("fit", f"bias_rate is a number above 0, got {self.bias_rate!r}.")
        if self.bias_rate != 1 and (self.body or self.rate is None):
            raise UserError("fit", "bias_rate requires a learning rate to scale, and no body of pretrained parameters.")

    def training_loss(self, loss: Loss) -> Loss:
        """The training loss, with label smoothing if there is any. Validation uses the plain loss."""
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UserError("fit", f"label_smoothing in [0, 1) is required, got {self.label_smoothing}.")
        if not self.label_smoothing:
            return loss
        if "label_smoothing" not in inspect.signature(loss).parameters:
            raise UserError(
                "fit", "label_smoothing requires the loss cross_entropy, or one that takes label_smoothing."
            )
        smoothing: dict[str, Any] = {"label_smoothing": self.label_smoothing}
        return partial(loss, **smoothing)

    @property
    def is_grouped(self) -> bool:
        """Whether parameters differ in their learning rates."""
        return bool(self.body) or self.bias_rate != 1

    def optimizer_of(self, parameters: Any) -> optim.Optimizer:
        rate = {} if self.rate is None else {"rate": self.rate}
        return optim.find(self.optimizer)(parameters, **rate, **self.settings)

    def optimizer_share(self) -> float:
        """Bytes of optimizer state per byte of parameters, measured on a small parameter; unknown for an optimizer given as a function."""
        if not isinstance(self.optimizer, str):
            return 0.0
        small = parameter(zeros(PROBE))
        state = self.optimizer_of([small]).named_state().values()
        return sum(prod(t.shape) * t.dtype.itemsize for t in state if t.ndim) / (prod(PROBE) * small.dtype.itemsize)


def make(
    model: Module, train: Any, plan: TrainingPlan, ranks: Ranks | None = None, *, describe: bool = False,
    tell: Callable[[str], None] | None = None, pipeline: PipelineOptions = NO_PIPELINE, cuts: Sequence[str] | None = None,
) -> tuple[Training, Steps]:  # fmt: skip
    """The network, its optimizer and its meters, ready for the first step. Several processes split the network; `tell` is called with a description of how.
    `cuts`: those of the checkpoint that is continued, of a pipeline."""
    task = task_of(np.asarray(train.dataset.labels[:1]), plan.loss, plan.metrics)
    prepare = plan.prepare or Same()
    example = train.dataset.inputs(np.arange(1))
    foreseen = forecast(lambda: model, lambda m: output_types(m, prepare, example), plan.optimizer_share())
    foreseen.check(lambda: "Take a smaller network or smaller inputs, or an optimizer with less state.")
    outputs = output_types(model, prepare, example)  # initializes lazy parameters
    if plan.loss is None:
        _check_outputs(outputs[0], train.dataset)
    _check_body(model, plan)
    ranks, groups = ranks or Ranks(), partial(_groups, plan, bool(set(model.named_parameters()) - set(plan.body)))
    ranks.start_alike(model)
    described = DescribedNetwork.of(model, *input_types(prepare, example)) if describe and ranks.leads else None
    input = input_types(prepare, example)[0]
    micro_batch = Type((train.batch // ranks.micro_batches, *input.shape[1:]), input.dtype)
    piped = ranks.sizes.pipeline > 1
    where = stage_cuts(model, micro_batch, ranks, pipeline, cuts, plan.precision) if piped else StageCuts("")
    network = SplitNetwork(model, input, train, ranks, tell or (lambda text: None))
    meters, checks = task.meters(), task.meters()
    scale = LossScale() if plan.precision == "float16" else None
    parts = StepParts(
        network.model, prepare, task.loss, meters, checks, plan.precision, scale, plan.training_loss(task.loss), plan.mix,
        network.multiple, plan.memory,
    )  # fmt: skip
    if piped:
        if plan.memory:
            raise UserError(
                "fit",
                "memory= limits a step that is one program, not the stages of a pipeline. Use more micro_batches.",
            )
        steps: Steps = PipelineSteps(
            parts, lambda own: plan.optimizer_of(groups(own)), train, ranks, pipeline, where, network.tell
        )
    else:
        optimizer = plan.optimizer_of(groups(network.model.named_parameters()) if plan.is_grouped else network.model)
        served = ranks.sizes.server
        steps = (
            ServerSteps(parts, optimizer, ranks, ranks.staleness, network.tell) if served else Steps(parts, optimizer)
        )
    places = TensorPlaces(network.model, steps.optimizer, network.parts, steps.stages)
    training = Training(
        network.model,
        steps.optimizer,
        train,
        meters,
        scale,
        ranks=ranks,
        described=described,
        given_places=places,
        cuts=steps.cuts,
    )
    return training, steps


def _check_outputs(prediction: Type, dataset: Any) -> None:
    classes = len(getattr(dataset, "classes", ()))
    if classes and prediction.shape[-1] < classes:
        raise UserError(
            "fit",
            f"the network gives {counted(prediction.shape[-1], 'number')}, and the data has {classes} classes.",
        )


def _check_body(model: Module, plan: TrainingPlan) -> None:
    known = set(plan.body).intersection(model.named_parameters())
    if plan.body and (not known or plan.rate is None):
        raise UserError("fit", "body= requires names of parameters of the network and a learning rate to scale.")


def _groups(plan: TrainingPlan, has_head: bool, parameters: Mapping[str, Tensor]) -> Any:
    """Parameters in two groups if some of the network are pretrained: those get a smaller learning rate."""
    if plan.bias_rate != 1:
        return _groups_by_rank(plan, list(parameters.values()))
    if not plan.body:
        return list(parameters.values())
    body = [p for n, p in parameters.items() if n in set(plan.body)]
    head = [p for n, p in parameters.items() if n not in set(plan.body)]
    slow = {"parameters": body, "rate": _part(plan.rate, plan.body_rate)}
    return [slow, {"parameters": head}] if has_head else [slow]


def _groups_by_rank(plan: TrainingPlan, parameters: Sequence[Tensor]) -> Any:
    """Biases in a group of their own. Their weight decay, which the rate multiplies, is as large a step as that of the others."""
    weights, biases = ([p for p in parameters if (p.ndim > 1) is wide] for wide in (True, False))
    if not weights or not biases:
        raise UserError("fit", "bias_rate requires a network with weights and biases.")
    own: dict[str, Any] = {"parameters": biases, "rate": _part(plan.rate, plan.bias_rate)}
    if plan.settings.get("weight_decay"):
        own["weight_decay"] = plan.settings["weight_decay"] / plan.bias_rate
    return [{"parameters": weights}, own]


def _part(rate: Any, factor: float) -> Any:
    return (lambda done: rate(done) * factor) if callable(rate) else rate * factor


class Same(Module):
    """y = x"""

    def forward(self, x: Tensor) -> Tensor:
        return x
