"""Everything that a training consists of, made of what people say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import optim
from ..errors import UserError
from ..nn.module import Module
from ..ops.convert import asarray
from ..precision import LossScale
from ..tensor import Tensor
from .names import Loss, Metrics
from .state import Training
from .steps import Steps
from .task import prediction_of, task_of


@dataclass(frozen=True)
class Plan:
    """How a network is trained: everything but the network, the data and when to stop."""

    optimizer: str | Callable[..., optim.Optimizer] = "adam"
    rate: Any = None
    loss: str | Loss | None = None
    metrics: Metrics | None = None
    prepare: Module | None = None
    precision: str | None = None
    body: Sequence[str] = ()  # parameters that were trained before
    body_rate: float = 0.1  # of the rate, for them
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the optimizer


def make(model: Module, train: Any, plan: Plan) -> tuple[Training, Steps]:
    """The network, its optimizer and its meters, ready for the first step."""
    task = task_of(np.asarray(train.dataset.labels[:1]), plan.loss, plan.metrics)
    prepare = plan.prepare or Same()
    prepare.eval()
    first = model(
        prepare(asarray(train.dataset.inputs(np.arange(1))))
    )  # makes parameters whose sizes are not known yet
    if plan.loss is None:
        _check_outputs(prediction_of(first), train.dataset)
    rate = {} if plan.rate is None else {"rate": plan.rate}
    made = optim.find(plan.optimizer)(_groups(model, plan), **rate, **plan.settings)
    meters, checks = task.meters(), task.meters()
    scale = LossScale() if plan.precision == "float16" else None
    steps = Steps(model, prepare, task.loss, made, meters, checks, plan.precision, scale)
    return Training(model, made, train, meters, scale), steps


def _check_outputs(prediction: Tensor, dataset: Any) -> None:
    classes = len(getattr(dataset, "classes", ()))
    if classes and prediction.shape[-1] < classes:
        raise UserError(
            "fit", f"the network gives {prediction.shape[-1]} numbers, and there are {classes} classes to tell apart."
        )


def _groups(model: Module, plan: Plan) -> Any:
    """The parameters, in two groups if some were trained before: those have a smaller rate."""
    if not plan.body:
        return model
    parameters = model.named_parameters()
    body = [p for n, p in parameters.items() if n in set(plan.body)]
    head = [p for n, p in parameters.items() if n not in set(plan.body)]
    if not body or plan.rate is None:
        raise UserError("fit", "body= names parameters of the network, and needs a rate to take a part of.")
    slow = {"parameters": body, "rate": _part(plan.rate, plan.body_rate)}
    return [slow, {"parameters": head}] if head else [slow]


def _part(rate: Any, factor: float) -> Any:
    return (lambda done: rate(done) * factor) if callable(rate) else rate * factor


class Same(Module):
    """y = x"""

    def forward(self, x: Tensor) -> Tensor:
        return x
