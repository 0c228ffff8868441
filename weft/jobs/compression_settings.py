"""The settings of a compression, its methods and its targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UserError
from ..packing.packed_tensors import Coder
from .schema import Setting, count, flag, not_negative, number, positive, seed
from .settings import DEVICE

METHODS = ("prune", "share", "huffman", "rans")


def densities(text: str) -> tuple[float, ...]:
    """One density or several, such as 0.3,0.1."""
    found = tuple(map(number, text.split(",")))
    if not all(0.0 < one <= 1.0 for one in found):
        raise ValueError("it must be densities above 0 and up to 1, such as 0.3,0.1")
    return found


def bits(text: str) -> int:
    if count(text) > 8:
        raise ValueError("it must be 1 to 8")
    return count(text)


COMPRESSION: dict[str, Setting] = {
    "run": Setting(str, None, "run to compress", ""),
    "method": Setting(str, "prune,share,rans", "steps: prune, share, and huffman or rans", "method"),
    "target": Setting(str, None, "size=20x, or error=+0.1%; default: a sweep with a Pareto page", "method"),
    "density": Setting(densities, None, "share of weights that the largest layer keeps; several are a sweep", "method"),
    "bits": Setting(bits, 5, "bits of shared weights: 2^bits - 1 values a layer, and zero", "method"),
    "half": Setting(flag, True, "store biases and centroids as float16", "method"),

    "steps": Setting(count, 3, "steps of gradual pruning before a point", "training"),
    "epochs": Setting(count, 3, "epochs of training after each step of pruning", "training"),
    "share_epochs": Setting(count, 2, "epochs of training of shared weights", "training"),
    "rate": Setting(positive, 1e-3, "learning rate after pruning", "training"),
    "share_rate": Setting(positive, 1e-4, "learning rate of shared weights", "training"),
    "tolerance": Setting(not_negative, 0.1, "points of accuracy that the network a sweep keeps may lose", "training"),
    "seed": Setting(seed, 0, "seed of all random numbers", "training"),

    "device": DEVICE,
    "name": Setting(str, None, "name of the new run; default: RUN-small-1, -2, ...", "output"),
    "exist_ok": Setting(flag, False, "replace the run of that name, if there is one", "output"),
    "runs": Setting(str, "runs", "folder that runs are kept in", "output"),
    "keep": Setting(count, None, "keep this point of a compressed run as a run of its own", "output"),
    "report": Setting(flag, False, "print the table of layers of a compressed run", "output"),
    "json": Setting(flag, False, "print events, or the report, as JSON", "output"),
}  # fmt: skip

SWEEP = (0.3, 0.15, 0.08, 0.04, 0.02)  # densities without a target


@dataclass(frozen=True)
class Target:
    """What must be reached: a ratio of sizes, or at most so many points of error more."""

    what: Literal["size", "error"]
    value: float

    def __str__(self) -> str:
        return f"size={self.value:g}x" if self.what == "size" else f"error=+{self.value:g}%"


def target_of(text: str | None) -> Target | None:
    """A target as commands write it: size=20x or error=+0.1%."""
    if text is None:
        return None
    what, _, rest = text.partition("=")
    plain = rest.removesuffix("x") if what == "size" else rest.removesuffix("%").removeprefix("+")
    try:
        value = float(plain)
    except ValueError:
        value = -1.0
    if what == "size" and value >= 1.0:
        return Target("size", value)
    if what == "error" and value >= 0.0:
        return Target("error", value)
    raise UserError(
        "weft compress", f"a target such as target=size=20x or target=error=+0.1% is required, got {text!r}."
    )


def coder_of(settings: Mapping[str, Any]) -> Coder:
    """The last step; Huffman codes need shared weights."""
    steps = [step.strip() for step in settings["method"].split(",")]
    unknown = [step for step in steps if step not in METHODS]
    if unknown:
        raise UserError("weft compress", f"a method of {', '.join(METHODS)} is required, got {unknown[0]!r}.")
    if steps not in (["prune", "share", "huffman"], ["prune", "share", "rans"], ["prune", "rans"], ["share", "rans"], ["share", "huffman"]):  # fmt: skip
        raise UserError(
            "weft compress",
            f"prune, share, then huffman or rans are required in this order (huffman needs share), got {settings['method']}.",
        )
    return "huffman" if steps[-1] == "huffman" else "rans"


def has_method(settings: Mapping[str, Any], name: str) -> bool:
    return name in [step.strip() for step in settings["method"].split(",")]


def check_compression(settings: Mapping[str, Any]) -> None:
    """Reject invalid combinations of settings before anything is made."""
    coder_of(settings)
    target = target_of(settings["target"])
    if settings["run"] is None:
        raise UserError("weft compress", "a run is required: weft runs list shows which there are.")
    if target is not None and settings["density"] is not None:
        raise UserError("weft compress", "a target or densities are required, got both. Leave one out.")
    if target is not None and not has_method(settings, "prune"):
        raise UserError("weft compress", f"target={target} is reached by pruning, got method={settings['method']}.")
