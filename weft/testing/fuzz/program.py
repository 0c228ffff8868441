"""A random program as data, and as the Python text that is run and printed.

A program is a list of statements over named tensors. Bodies of loops, branches and transformations are blocks of the same kind. The text
of a program is the only thing that is ever executed, so what a finding prints is what failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from textwrap import indent
from typing import Literal

from ...records import dataclass

Role = Literal["argument", "captured", "state", "module", "optimizer"]

HEADER = "import numpy as np\nimport weft\nfrom weft import nn, optim\n"
CALLS = 4  # of every program: the third is where eager code is compiled; the fourth repeats the arguments of the first


@dataclass(frozen=True)
class Statement:
    """`name = code`, with the names of its inputs in place of {0}, {1}, ... and those of its blocks in place of {f0}, {f1}, ..."""

    name: str  # empty: an update in place, which has no result
    code: str
    inputs: tuple[str, ...]
    blocks: tuple[Block, ...] = ()

    @property
    def label(self) -> str:
        return self.name or f"update_{'_'.join(self.inputs)}"

    def functions(self) -> list[str]:
        return [f"{self.label}_f{i}" for i in range(len(self.blocks))]

    def expression(self) -> str:
        return self.code.format(*self.inputs, **{f"f{i}": f for i, f in enumerate(self.functions())})


@dataclass(frozen=True)
class Block:
    """A function: its parameters, its statements, and what it returns, with {0}, {1}, ... for the results."""

    parameters: tuple[str, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    returns: str = ""

    def answer(self) -> str:
        if self.returns:
            return self.returns.format(*self.results)
        return "(" + "".join(f"{r}, " for r in self.results) + ")"


@dataclass(frozen=True)
class Input:
    """Something that the program is given. `code` makes its value: with `rng`, a NumPy generator; modules and optimizers with nn and optim."""

    name: str
    code: str
    role: Role
    dtype: str = ""  # empty: the program's float dtype; "python": a Python number, as it is


@dataclass(frozen=True)
class FuzzProgram:
    """A function `step` of its arguments, what it finds outside, and how it is run."""

    seed: int
    inputs: tuple[Input, ...]
    body: Block
    dtype: str = "float32"  # D in the text
    other: str = "float16"  # H in the text: another float dtype
    precision: str = ""  # of weft.jit
    settings: tuple[tuple[str, str], ...] = ()  # a setting for each call, changed between calls
    finite: bool = True  # no nan and no infinity is met

    def dtypes(self) -> set[str]:
        """The float dtypes that it computes in."""
        found = {self.dtype} | ({self.precision} if self.precision else set())
        return found | ({self.other} if any("H)" in s.code for s in walk(self.body)) else set())

    def of_role(self, *roles: Role) -> list[Input]:
        return [i for i in self.inputs if i.role in roles]

    @property
    def arguments(self) -> list[Input]:
        return self.of_role("argument")

    @property
    def has_state(self) -> bool:
        """Whether a call changes what the next one finds."""
        if self.of_role("state", "optimizer", "module"):
            return True
        return any(not s.name or "weft.random." in s.code or "dropout" in s.code for s in walk(self.body))

    def text(self) -> str:
        """The function `step`."""
        return function_text("step", self.body)

    def with_body(self, body: Block) -> FuzzProgram:
        """The same program with another body, and only the inputs that it still uses."""
        used = {name for s in walk(body) for name in s.inputs} | set(names_returned(body))
        kept = tuple(i for i in self.inputs if i.name in used)
        arguments = tuple(i.name for i in kept if i.role == "argument")
        return replace(self, inputs=kept, body=replace(body, parameters=arguments))


def walk(block: Block) -> Iterator[Statement]:
    """All statements, also those of inner blocks."""
    for statement in block.statements:
        yield statement
        for inner in statement.blocks:
            yield from walk(inner)


def names_returned(block: Block) -> Iterator[str]:
    yield from block.results
    for statement in block.statements:
        for inner in statement.blocks:
            yield from names_returned(inner)


def live(block: Block) -> Block:
    """The block without statements that nothing uses. Updates in place are always used."""
    used, kept = set(block.results), []
    for statement in reversed(block.statements):
        if not statement.name or statement.name in used:
            kept.append(statement)
            used |= set(statement.inputs)
            for inner in statement.blocks:
                used |= {name for s in walk(inner) for name in s.inputs} | set(names_returned(inner))
    return replace(block, statements=tuple(reversed(kept)))


def function_text(name: str, block: Block) -> str:
    body = "\n".join([*(line for s in block.statements for line in _lines(s)), f"return {block.answer()}"])
    return f"def {name}({', '.join(block.parameters)}):\n{indent(body, '    ')}\n"


def _lines(statement: Statement) -> Iterator[str]:
    for name, block in zip(statement.functions(), statement.blocks, strict=True):
        yield function_text(name, block).rstrip()
    yield f"{statement.name} = {statement.expression()}" if statement.name else statement.expression()


DRAW = "def draw(name, call=0):\n    return np.random.default_rng([{seed}, call, *name.encode()])\n"


def script(program: FuzzProgram, mode: str, note: str = "") -> str:
    """A stand-alone program that shows the same: what the function gives, call by call, the way the mode says."""
    lines = [f"# {line}" for line in note.splitlines()]
    lines += [HEADER, f"D, H, W = weft.{program.dtype}, weft.{program.other}, weft.{program.dtype}\n\n"]
    lines += [DRAW.format(seed=program.seed), ""]
    lines += [line for i in program.of_role("captured", "state", "module") for line in _made(i, "0")]
    lines += optimizer_lines(program)
    lines += [f"weft.seed({program.seed})", "\n", program.text(), "", *_calls(program, mode)]
    return "\n".join(lines) + "\n"


def optimizer_lines(program: FuzzProgram) -> Iterator[str]:
    """The lines that make optimizers, of all modules."""
    modules = [i.name for i in program.of_role("module")]
    if modules:
        yield f"modules = nn.ModuleList([{', '.join(modules)}])"
    for given in program.of_role("optimizer"):
        yield f"{given.name} = {given.code}"


def module_seed(given: Input) -> int:
    """Of the initial values of a module: the same whichever others there are."""
    return int(given.name[1:])


def _made(given: Input, call: str) -> Iterator[str]:
    """The lines that make an input."""
    if "rng" in given.code:
        yield f"rng = draw({given.name!r}, {call})"
    if given.role == "module":
        yield f"weft.seed({module_seed(given)})"
        yield f"{given.name} = {given.code}.astype(D)"
    elif given.dtype == "python":
        yield f"{given.name} = {given.code}"
    else:
        dtype = repr(given.dtype) if given.dtype else "D"
        yield f"{given.name} = weft.asarray({given.code}).astype({dtype})"


def _calls(program: FuzzProgram, mode: str) -> Iterator[str]:
    """The loop over calls: compiled, and with changed settings, if the mode says so."""
    precision = f", precision={program.precision!r}" if program.precision and "jit" in mode else ""
    yield f"# mode: {mode}"
    if "threads=" in mode:
        yield f"weft.knobs.threads = {mode.partition('threads=')[2]}"
        yield "weft.compiler.thresholds.thresholds.threaded_work = 0"
    yield f"f = weft.jit(step{precision})" if "jit" in mode else "f = step"
    yield f"for call in range({CALLS}):"
    for given in program.arguments:
        yield from (f"    {line}" for line in _made(given, f"call % {CALLS - 1}"))
    arguments = ", ".join(i.name for i in program.arguments)
    if "settings" in mode and program.settings:
        yield f"    name, value = {program.settings!r}[call % {len(program.settings)}]"
        yield "    with weft.knobs.set(**{name: value}):"
        yield f"        print(call, f({arguments}))"
    else:
        yield f"    print(call, f({arguments}))"
    for given in program.of_role("state", "argument"):
        yield f"    print({given.name!r}, {given.name})"
