"""Runs kernels on the host as Triton compiled them for an NVIDIA GPU: their PTX, an instruction at a time for all threads of a program.

A register is an array with an element for each thread. Where threads take different branches, one side runs after the other until both meet again.
What a GPU would not report is an error: an address outside of known memory, one that is not aligned, and shared memory that a warp reads or
writes while no barrier separates it from another warp that writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from ptx_instructions import Operation, decode, guarded
from ptx_threads import Machine, Memory, Values


class Branch:
    def __init__(self, guard: str | None, label: str) -> None:
        self.guard, self.label, self.target = guard, label, -1

    def is_taken(self, machine: Machine) -> Values:
        return machine.active if self.guard is None else guarded(machine, self.guard)


class Kernel:
    """The instructions of a kernel."""

    def __init__(self, text: str) -> None:
        self.threads = int(re.search(r"\.(?:req|max)ntid (\d+)", text)[1])  # type: ignore[index]
        body = text[text.index("\n{") + 2 :]
        self.code: list[Operation | Branch] = []
        labels: dict[str, int] = {}
        for line in body[: body.index("\n}")].split("\n"):
            self._line(line.split("//")[0].strip(), labels)
        for operation in self.code:
            if isinstance(operation, Branch):
                operation.target = labels[operation.label]
        self.meeting_points = _meeting_points(self.code)

    def _line(self, line: str, labels: dict[str, int]) -> None:
        if not line or line in "{}" or line.startswith("."):
            return
        if line.endswith(":"):
            labels[line[:-1]] = len(self.code)
            return
        for part in filter(None, map(str.strip, line.split(";"))):
            guard, words = None, part
            if part.startswith("@"):
                guard, words = part[1:].split(None, 1)
            opcode, _, rest = words.partition(" ") if " " in words else (*words.split("\t", 1), "", "")[:3]
            opcode = opcode.strip()
            if opcode in ("bra", "bra.uni"):
                self.code.append(Branch(guard, rest.strip()))
            elif opcode == "ret":
                branch = Branch(guard, "")
                labels[""] = -1
                self.code.append(branch)
            else:
                self.code.append(decode(opcode, guard, _operands(words[len(opcode) :])))

    def run(self, programs: int, arguments: Sequence[int], memory: Memory, shared: int) -> None:
        with np.errstate(all="ignore"):
            for number in range(programs):
                self._run(Machine(self.threads, number, arguments, memory, shared))

    def _run(self, machine: Machine) -> None:
        code, after = self.code, self.meeting_points
        waiting: list[tuple[int, int, Values]] = []  # where threads go on, until where, and which
        place, end, threads = 0, len(code), machine.active.copy()
        while True:
            if place == end:
                if not waiting:
                    return
                place, end, threads = waiting.pop()
                machine.activate(threads)
                continue
            operation = code[place]
            if not isinstance(operation, Branch):
                operation(machine)
                place += 1
                continue
            taken = threads & operation.is_taken(machine)
            if taken.all() or (taken == threads).all():
                place = operation.target
            elif not taken.any():
                place += 1
            else:
                meet = after[place]
                waiting += [(meet, end, threads), (place + 1, meet, threads & ~taken)]
                place, end, threads = operation.target, meet, taken
                machine.activate(threads)


def _operands(text: str) -> list[str]:
    """Operands, which commas separate outside of brackets."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [one.strip() for one in found]


def _meeting_points(code: list[Operation | Branch]) -> dict[int, int]:
    """Where the two ways that a branch can go meet again: what every way to the end passes first."""
    end = len(code)
    for branch in code:
        if isinstance(branch, Branch) and branch.target < 0:
            branch.target = end
    following = [
        ({one.target} | (set() if one.guard is None else {place + 1})) if isinstance(one, Branch) else {place + 1}
        for place, one in enumerate(code)
    ]
    passed: list[int] = [0] * end + [1 << end]  # bits: instructions that every way from here to the end passes
    everything = (1 << (end + 1)) - 1
    passed[:end] = [everything] * end
    changed = True
    while changed:
        changed = False
        for place in reversed(range(end)):
            common = everything
            for one in following[place]:
                common &= passed[one]
            common |= 1 << place
            if common != passed[place]:
                passed[place], changed = common, True
    points = {}
    for place, one in enumerate(code):
        if isinstance(one, Branch) and one.guard is not None:
            strict = passed[place] & ~(1 << place)
            points[place] = max((p for p in _bits(strict)), key=lambda p: passed[p].bit_count())
    return points


def _bits(number: int) -> Iterable[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
