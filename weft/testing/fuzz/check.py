"""Compares the ways to run a program with its values in float64.

How far a result may be off is measured, not guessed: the float64 program is run several times with rounding errors put in at random (noise.py),
and a result may be a few times as far away as those runs are. So sums of many terms, cancellation, and choices that hang on the last bit
(argmax, round, cond) get the room that they need, and nothing else does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ...dtypes import finfo
from ...errors import InternalError, RunError, UserError, WeftError
from ...records import dataclass
from ...runtime import device as find_device
from ..counter import counted
from ..poison import poisoned
from .evaluate import Mode, Results, evaluate
from .program import FuzzProgram, script

SAMPLES, MORE_SAMPLES = 3, 40  # noisy runs: always, and before a difference is believed
SAFETY = 6.0  # how much farther than those a result may be
WIDE = Mode("float64", "reference", wide=True)


@dataclass(frozen=True)
class Finding:
    """A difference, or an error. Its mode and what it is are kept while its program is shrunk."""

    program: FuzzProgram | None  # None: `source` shows it
    mode: str
    what: str  # value, nan, bits, dtype, shape, names, error
    detail: str
    source: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        return self.mode, self.what

    def text(self) -> str:
        """A stand-alone script that shows it."""
        return self.source if self.program is None else script(self.program, self.mode)


class Unfit(Exception):
    """The program leaves the range of its dtypes: nothing can be said about it."""


def modes(device: str) -> list[Mode]:
    """The ways in which a program must agree with float64; those of one `same_bits_as` with each other to the bit."""
    jitted = Mode("jit", device, jit=True)
    found = [
        Mode("reference", "reference"),
        jitted,
        Mode("eager", device),
        Mode("eager compiled at once", device, knobs=(("compile_after", 1),)),
        Mode("jit, settings changed", device, jit=True, changes=True),
        Mode("jit, several threads call", device, jit=True, at_once=3, same_bits_as="jit"),
    ]
    if find_device(device).is_host_processor:
        found += [
            Mode(f"jit, threads={n}", device, jit=True, knobs=(("threads", n),), same_bits_as="jit", spread=True)
            for n in (1, 3)
        ]
    return found


def fitting(program: FuzzProgram, mode: Mode) -> bool:
    """Whether a mode says something about a program."""
    if mode.at_once > 1:
        return not program.has_state
    return not (mode.changes and not program.settings)


class Checker:
    """One program against float64."""

    def __init__(self, program: FuzzProgram) -> None:
        self.program = program
        self.exact = evaluate(program, WIDE)
        self.types = evaluate(program, Mode("reference", "reference"))
        self.noisy: list[list[Results]] = []
        self._measure(SAMPLES)
        if program.finite and not self._in_range():
            raise Unfit

    def _measure(self, samples: int) -> None:
        for number in range(len(self.noisy), samples):
            self.noisy.append(evaluate(self.program, WIDE, number))

    def _in_range(self) -> bool:
        limit = finfo(self.program.dtype).max / 100.0
        every = itertools.chain(self.exact, *self.noisy)
        floats = (a for results in every for a in results.values() if a.dtype.kind not in "biu")
        return all((np.abs(a.astype(np.float64)) < limit).all() for a in floats)

    def difference(self, found: Sequence[Results]) -> tuple[str, str] | None:
        """What is wrong with the results of all calls, if anything: in a word, and in full."""
        wrong = self._difference(found)
        if wrong is not None and wrong[0] in ("value", "nan"):
            self._measure(MORE_SAMPLES)
            wrong = self._difference(found)
        return wrong

    def _difference(self, found: Sequence[Results]) -> tuple[str, str] | None:
        for call, results in enumerate(found):
            if results.keys() != self.types[call].keys():
                return "names", f"call {call}: {sorted(results)}, expected {sorted(self.types[call])}"
            for name, got in results.items():
                wrong = self._wrong(call, name, got)
                counted()
                if wrong is not None:
                    return wrong[0], f"call {call}, {name}: {wrong[1]}"
        return None

    def _wrong(self, call: int, name: str, got: np.ndarray) -> tuple[str, str] | None:
        like, exact = self.types[call][name], self.exact[call][name]
        if got.shape != like.shape:
            return "shape", f"{got.shape}, expected {like.shape}"
        if got.dtype != like.dtype:
            return "dtype", f"{got.dtype}, expected {like.dtype}"
        noisy = [run[call][name] for run in self.noisy]
        if got.dtype.kind in "biu":
            return _wrong_exactly(got, exact, noisy)
        return _wrong_float(got, exact.astype(np.float64), [n.astype(np.float64) for n in noisy])


def _wrong_exactly(got: np.ndarray, exact: np.ndarray, noisy: Sequence[np.ndarray]) -> tuple[str, str] | None:
    """Integers must be equal wherever rounding errors do not decide them."""
    certain = np.logical_and.reduce([n == exact for n in noisy], axis=0)
    return _described("value", certain & (got != exact), got, exact)


def _wrong_float(got: np.ndarray, exact: np.ndarray, noisy: Sequence[np.ndarray]) -> tuple[str, str] | None:
    found = got.astype(np.float64)
    info = finfo(got.dtype)
    kinds = [np.isfinite(n) == np.isfinite(exact) for n in noisy] + [np.isnan(n) == np.isnan(exact) for n in noisy]
    certain = np.logical_and.reduce(kinds, axis=0)
    finite = np.isfinite(exact)
    with np.errstate(all="ignore"):
        far = np.max([np.abs(n - exact) for n in noisy], axis=0)
        allowed = SAFETY * far + info.eps * np.abs(exact) + 4.0 * info.smallest_normal
        other = np.where(finite, ~np.isfinite(found), ~((found == exact) | (np.isnan(found) & np.isnan(exact))))
        wrong = finite & (np.abs(found - exact) > allowed)
    return _described("nan", certain & other, found, exact) or _described(
        "value", certain & wrong, found, exact, allowed
    )


def _described(
    what: str, wrong: np.ndarray, got: np.ndarray, exact: np.ndarray, allowed: np.ndarray | None = None
) -> tuple[str, str] | None:
    if not wrong.any():
        return None
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    room = "" if allowed is None else f", {allowed[place]:.3g} allowed"
    return what, f"{int(wrong.sum())} of {wrong.size} wrong; at {place} {got[place]!r}, expected {exact[place]!r}{room}"


def check(program: FuzzProgram, device: str, only: str = "") -> Finding | None:
    """The first difference between the ways to run a program. `only`: the one way to look at."""
    try:
        checker = Checker(program)
    except Unfit:
        raise
    except (UserError, RunError) as error:
        raise Unfit from error
    except Exception as error:
        return Finding(program, "reference", "error", f"{type(error).__name__}: {error}")
    bits: dict[str, list[Results]] = {}
    for mode in modes(device):
        needed = (
            not only or mode.name == only or any(m.name == only and m.same_bits_as == mode.name for m in modes(device))
        )
        if needed and fitting(program, mode):
            found = _checked(checker, mode, bits)
            if found is not None and (not only or mode.name == only):
                return found
    return None


def _checked(checker: Checker, mode: Mode, bits: dict[str, list[Results]]) -> Finding | None:
    program = checker.program
    try:
        with poisoned():
            results = evaluate(program, mode)
    except WeftError as error:
        if _refused(program, mode, error):
            return None
        return Finding(program, mode.name, "error", f"{type(error).__name__}: {error}")
    except Exception as error:
        return Finding(program, mode.name, "error", f"{type(error).__name__}: {error}")
    bits[mode.name] = results
    wrong = checker.difference(results) or _other_bits(results, bits.get(mode.same_bits_as))
    return None if wrong is None else Finding(program, mode.name, *wrong)


def _refused(program: FuzzProgram, mode: Mode, error: WeftError) -> bool:
    """Changes of arguments may be rejected when a function is compiled, as long as it is said."""
    changes = any(not s.name and s.inputs[0] in program.body.parameters for s in program.body.statements)
    return mode.jit and changes and not isinstance(error, InternalError)


def _other_bits(found: Sequence[Results], first: Sequence[Results] | None) -> tuple[str, str] | None:
    for call, (a, b) in enumerate(zip(found, first or (), strict=False)):
        for name in a:
            counted()
            if a[name].tobytes() != b[name].tobytes():
                return "bits", f"call {call}, {name}: not the bits that one thread of calls gives"
    return None
