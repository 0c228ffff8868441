"""The optimizer and the mixing of training batches, from settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import data, optim
from ..data.mixup import MixAugmentation
from ..errors import UserError

SGD_MOMENTUM = 0.9  # without momentum, deep networks end several percent lower
_PASSED_ON = (
    "momentum",
    "nesterov",
    "eps",
    "weight_decay",
    "clip_norm",
    "accumulate",
    "average",
    "zero",
    "local_steps",
)


def optimizer_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the optimizer besides the learning rate; those it does not have are rejected."""
    name = settings["optimizer"]
    known = optim.settings_of(optim.find(name))
    found = {n: settings[n] for n in _PASSED_ON if settings[n] is not None}
    if settings["betas"] is not None:
        found |= {"b1": settings["betas"][0], "b2": settings["betas"][1]}
    if name == "sgd":
        found.setdefault("momentum", SGD_MOMENTUM)
    for setting in found:
        if setting not in known:
            shown = "betas" if setting in ("b1", "b2") else setting
            has = [
                n
                for n in ("momentum", "nesterov", "betas", "eps", "weight_decay")
                if n in known or _has_betas(n, known)
            ]
            raise UserError(
                "weft train", f"{name} takes {', '.join(has) or 'no such settings'}, got {shown}. Leave it out."
            )
    return found


def _has_betas(setting: str, known: list[str]) -> bool:
    return setting == "betas" and "b1" in known and "b2" in known


def check_mix(settings: Mapping[str, Any]) -> None:
    """Reject mixup and cutmix at the same time."""
    if settings["mixup"] is not None and settings["cutmix"] is not None:
        raise UserError("weft train", "one of mixup and cutmix is required, got both. Leave one out.")


def mix(settings: Mapping[str, Any], classes: int, images: bool) -> MixAugmentation | None:
    """MixUp or CutMix, if asked for."""
    for name, make in (("mixup", data.MixUp), ("cutmix", data.CutMix)):
        if settings[name] is not None:
            if not classes or not images:
                raise UserError("weft train", f"{name} requires images of several classes, got other data.")
            return make(settings[name], classes)
    return None
