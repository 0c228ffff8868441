"""The steps of a compression, each a function that changes a network in place and trains it on. Two tables name them.

What a step does follows from its arguments, the settings and the data, so a compression that was stopped does the same again, without the trainings
that ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ... import nn
from ...compress.channels import prune_channels, shrink
from ...compress.fixed_point import fixed_point
from ...compress.int8 import int8
from ...compress.low_rank import low_rank
from ...compress.parametrize import bake, parametrizations
from ...compress.prune import gradual, prune
from ...compress.share import share
from ...compress.size_search import scaled_densities
from ...records import dataclass
from ...tensor import Tensor

Train = Callable[
    [nn.Module, str, str, bool], None
]  # network, name of the training, what it does, whether values are set already


@dataclass(frozen=True)
class StepContext:
    """What steps need besides the network: settings, an input, inputs to calibrate with, and how to train."""

    settings: Mapping[str, Any]
    example: Tensor
    calibration: Callable[[], Tensor]
    train: Train


# --- what is left of the layers: (context, network, share that is kept, name, steps) ---------------------------------------------


def cut_channels(context: StepContext, model: nn.Module, keep: float, name: str, steps: int) -> None:
    """Mask the least important channels in steps, fast at first, and train after each. `without_channels` removes them."""
    for step, share_of_all in enumerate(gradual(1.0, keep, steps), 1):
        prune_channels(model, context.example, share_of_all)
        context.train(model, f"channels-{name}-{step}", f"with {share_of_all:.0%} of the channels", False)


def factorize(context: StepContext, model: nn.Module, keep: float, name: str, steps: int) -> None:
    """Replace layers by two of low rank, with this share of the parameters."""
    low_rank(model, parameters=keep)
    context.train(model, f"low_rank-{name}", f"of low rank, with {keep:.0%} of the parameters", False)


def prune_weights(context: StepContext, model: nn.Module, keep: float, name: str, steps: int) -> None:
    """Prune in steps, fast at first, and train after each."""
    wanted = scaled_densities(model, keep)
    for step in range(steps):
        now = {path: gradual(1.0, end, steps)[step] for path, end in wanted.items()}
        prune(model, now)
        least, most = min(now.values()), max(now.values())
        what = f"pruned to {least:.1%}" if least == most else f"pruned to {least:.1%} and more"
        context.train(model, f"prune-{name}-{step + 1}", what, False)


def without_channels(context: StepContext, model: nn.Module) -> None:
    """Remove the channels that are masked: the network computes the same with smaller tensors, and without masks."""
    shrink(model.eval(), context.example)
    for _, layer, name, _ in list(parametrizations(model)):
        bake(layer, name)


def before_the_swept(context: StepContext, model: nn.Module, step: str) -> None:
    """A step that is the same for all points, because a later one is swept."""
    if step == "channels":
        cut_channels(context, model, context.settings["width"], "first", context.settings["steps"])
        without_channels(context, model)
    else:
        low_rank(model, energy=context.settings["energy"])
        context.train(
            model, "low_rank-first", f"of low rank, with {context.settings['energy']:.0%} of the energy", False
        )


# --- which values weights have: (context, network, bits, name) -------------------------------------------------------------------


def share_values(context: StepContext, model: nn.Module, bits: int, name: str) -> None:
    """Let each weight be one of a few values, and train these."""
    share(model, bits)
    context.train(model, f"share-{name}", f"with {2**bits} shared values", True)


def int8_values(context: StepContext, model: nn.Module, bits: int, name: str) -> None:
    """Round weights and activations to 8 bits, and train with the rounding."""
    int8(model.eval(), context.calibration())
    context.train(model, f"int8-{name}", "with weights and activations of 8 bits", True)


def fixed_values(context: StepContext, model: nn.Module, bits: int, name: str) -> None:
    """Let all tensors be fixed-point numbers, and train with the rounding."""
    fixed_point(model.eval(), context.calibration(), bits)
    context.train(model, f"fixed-{name}", f"in fixed point of {bits} bits", True)


SWEPT = {"channels": cut_channels, "low_rank": factorize, "prune": prune_weights}
VALUE_STEPS = {"share": share_values, "int8": int8_values, "fixed": fixed_values}
