"""The settings of a compression, its methods and its targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from ...errors import UserError
from ...packing.packed_tensors import Coder
from ...records import dataclass
from ..schema import Setting, count, flag, not_negative, number, positive, seed
from ..settings import DEVICE

STRUCTURE = ("channels", "low_rank", "prune")  # what is left of the layers: several of them, in this order
VALUES = ("share", "int8", "fixed")  # which values weights have: one of them
CODERS: tuple[Coder, ...] = ("huffman", "rans")
METHODS = (*STRUCTURE, "share", "int8", "fixed:8", *CODERS)
FIXED_BITS = range(4, 17)


def densities(text: str) -> tuple[float, ...]:
    """One density or several, such as 0.3,0.1."""
    found = tuple(map(number, text.split(",")))
    if not all(0.0 < one <= 1.0 for one in found):
        raise ValueError("it must be densities above 0 and up to 1, such as 0.3,0.1")
    return found


def kept_share(text: str) -> float:
    if not 0.0 < number(text) <= 1.0:
        raise ValueError("it must be above 0 and up to 1")
    return number(text)


def bits(text: str) -> int:
    if count(text) > 8:
        raise ValueError("it must be 1 to 8")
    return count(text)


COMPRESSION: dict[str, Setting] = {
    "run": Setting(str, None, "run to compress", ""),
    "method": Setting(str, None, "steps: channels, low_rank, prune; share, int8 or fixed:8; huffman or rans. Default: prune,share,rans, for a speed channels,rans", "method"),
    "target": Setting(str, None, "size=20x, error=+0.1%, speed=3x or device=cuda; default: a sweep with a Pareto page", "method"),
    "density": Setting(densities, None, "share that the last of channels, low_rank and prune keeps (of weights: in the largest layer); several are a sweep", "method"),
    "bits": Setting(bits, 5, "bits of shared weights: 2^bits - 1 values a layer, and zero", "method"),
    "width": Setting(kept_share, 0.5, "share of channels that is kept, if another step follows that is swept", "method"),
    "energy": Setting(kept_share, 0.9, "share of the squared norm that low_rank keeps, if pruning follows", "method"),
    "half": Setting(flag, True, "store biases and centroids as float16", "method"),

    "steps": Setting(count, 3, "steps of gradual pruning before a point", "training"),
    "epochs": Setting(count, 3, "epochs of training after each step of pruning", "training"),
    "share_epochs": Setting(count, 2, "epochs of training of shared or quantized weights", "training"),
    "rate": Setting(positive, 1e-3, "learning rate after pruning", "training"),
    "share_rate": Setting(positive, 1e-4, "learning rate of shared or quantized weights", "training"),
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

SWEEP = (0.3, 0.15, 0.08, 0.04, 0.02)  # densities of weights without a target
WIDTHS = (0.75, 0.5, 0.35, 0.25, 0.15)  # shares of channels, or of the parameters of factors


# --- targets ----------------------------------------------------------------------------------------------------------------

_UNITS = {"size": "x", "speed": "x", "error": "%"}
_LEAST = {"size": 1.0, "speed": 1.0, "error": 0.0}


@dataclass(frozen=True)
class Target:
    """The target: a ratio of sizes or of latencies, a maximal increase of the error, or the lowest latency on a device."""

    what: Literal["size", "error", "speed", "device"]
    value: float = 0.0
    device: str | None = None  # on which latencies are measured; none: that of the compression

    def __str__(self) -> str:
        parts = (
            []
            if self.what == "device"
            else [f"{self.what}={'+' * (self.what == 'error')}{self.value:g}{_UNITS[self.what]}"]
        )
        return ",".join([*parts, *([f"device={self.device}"] if self.device else [])])


def target_of(text: str | None) -> Target | None:
    """A target as commands write it: size=20x, error=+0.1%, speed=3x, device=cuda, or speed=3x,device=cuda.

    >>> print(target_of("speed=3x,device=cuda"))
    speed=3x,device=cuda
    """
    if text is None:
        return None
    given = dict(part.strip().partition("=")[::2] for part in text.split(","))
    device = given.pop("device", None)
    if not given and device:
        return Target("device", device=device)
    what, rest = next(iter(given.items()), ("", ""))
    if len(given) == 1 and what in _UNITS and device != "":
        try:
            value = float(rest.removesuffix(_UNITS[what]).removeprefix("+"))
        except ValueError:
            value = -1.0
        if math.isfinite(value) and value >= _LEAST[what]:
            return Target(what, value, device)  # type: ignore[arg-type]
    raise UserError(
        "weft compress",
        f"a target such as target=size=20x, target=error=+0.1%, target=speed=3x or target=device=cuda is required, got {text!r}.",
    )


# --- methods ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompressionMethod:
    """The steps of a compression: what is left of the layers, which values weights have (and of how many bits), and the code of the file."""

    structure: tuple[str, ...]
    values: str | None
    bits: int | None
    coder: Coder

    @property
    def swept(self) -> str | None:
        """The step that points differ in."""
        return self.structure[-1] if self.structure else None

    def __str__(self) -> str:
        """As `method=` and `bits=` spell it."""
        values = f"fixed:{self.bits}" if self.values == "fixed" else self.values
        steps = ",".join(step for step in (*self.structure, values, self.coder) if step)
        return f"method={steps}" + (f" bits={self.bits}" if self.values == "share" else "")

    @property
    def changes_layers(self) -> bool:
        """Whether the network has other layers or shapes afterwards, so that the settings of the run no longer describe it."""
        return self.values in ("int8", "fixed") or self.structure not in ((), ("prune",))


def method_of(settings: Mapping[str, Any]) -> CompressionMethod:
    """The steps of `method`, in their order; without a coder it is rANS."""
    steps = [step.strip() for step in (settings.get("method") or _default(settings)).split(",")]
    names = [step.partition(":")[0] for step in steps]
    order = [*STRUCTURE, *VALUES, *CODERS]
    for name, step in zip(names, steps, strict=True):
        if name not in order or (":" in step and name != "fixed"):
            raise UserError("weft compress", f"a method of {', '.join(METHODS)} is required, got {step!r}.")
    places = [order.index(name) for name in names]
    values, coders = [n for n in names if n in VALUES], [n for n in names if n in CODERS]
    if places != sorted(set(places)) or len(values) > 1 or len(coders) > 1 or names == coders:
        raise UserError(
            "weft compress",
            "channels, low_rank, prune, then one of share, int8 and fixed:8, then huffman or rans are required in this order, "
            f"got {','.join(steps)}.",
        )
    if coders == ["huffman"] and not values:
        raise UserError(
            "weft compress", f"huffman needs share, int8 or fixed: codes are of few values. Got {','.join(steps)}."
        )
    structure = tuple(name for name in names if name in STRUCTURE)
    chosen = values[0] if values else None
    return CompressionMethod(
        structure, chosen, _value_bits(chosen, steps, settings), "huffman" if coders == ["huffman"] else "rans"
    )


def _default(settings: Mapping[str, Any]) -> str:
    target = target_of(settings.get("target"))
    return "channels,rans" if target is not None and target.what in ("speed", "device") else "prune,share,rans"


def _value_bits(values: str | None, steps: list[str], settings: Mapping[str, Any]) -> int | None:
    if values is None:
        return None
    if values != "fixed":
        return int(settings.get("bits") or COMPRESSION["bits"].default) if values == "share" else 8
    text = next(step for step in steps if step.startswith("fixed")).partition(":")[2] or "8"
    if not text.isdecimal() or int(text) not in FIXED_BITS:
        raise UserError("weft compress", f"fixed:4 to fixed:16 is required, got fixed:{text}.")
    return int(text)


def check_compression(settings: Mapping[str, Any]) -> None:
    """Reject invalid combinations of settings before anything is made."""
    method, target = method_of(settings), target_of(settings["target"])
    if settings["run"] is None:
        raise UserError("weft compress", "a run is required: weft runs list shows which there are.")
    if target is not None and settings["density"] is not None:
        raise UserError("weft compress", "a target or densities are required, got both. Leave one out.")
    if target is not None and target.what == "size" and method.swept != "prune":
        raise UserError("weft compress", f"target={target} is reached by pruning, got method={settings['method']}.")
    if target is not None and target.what == "speed" and method.swept != "channels":
        raise UserError(
            "weft compress", f"target={target} is reached by removing channels: use method=channels,share,rans. Got method={settings['method']}."
        )  # fmt: skip
    if target is not None and target.what == "error" and method.swept is None:
        raise UserError(
            "weft compress",
            f"target={target} is reached by pruning, channels or low_rank, got method={settings['method']}.",
        )
