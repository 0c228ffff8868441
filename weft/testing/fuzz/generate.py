"""Random programs from a seed. A program grows statement by statement; each is run at once, so that only what is valid and near 1 is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import InternalError, WeftError
from ...knobs import knobs
from ...tensor import Tensor
from .blocks import BLOCKS
from .evaluate import Mode, Run
from .makers import MAKERS, along, binary, compare, masked, reduce, unary
from .program import Block, FuzzProgram, Input, Statement, function_text, live
from .table import INTEGER, TO_FLOAT, TO_INTEGER, Made, Maker, Shape

SHAPES: list[Shape] = [
    (), (1,), (7,), (64,), (3, 5), (4, 16), (17, 3), (1, 33), (2, 3, 4), (5, 1, 9), (2, 3, 40), (2, 4, 33), (2, 3, 8, 9), (1, 4, 12, 12), (2, 2, 9, 7),
    (1, 2, 5, 6, 4), (2, 6, 6), (13, 29), (65, 33),
]  # fmt: skip
LONG: list[Shape] = [(100_003,), (99_991,), (65_537,), (2, 46_337), (33_331, 3), (7, 10_007)]  # large primes
INTEGERS = ["int8", "uint8", "int16", "int32", "int64", "uint32"]
SPECIAL = "np.where(rng.random({0}) < 0.2, rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], {0}), rng.normal(size={0}))"
MOST, LARGEST = 4000, {"float64": 1e3, "float32": 1e3, "bfloat16": 1e3, "float16": 1e2}  # elements; values


class Grower:
    """A program or a block while it grows."""

    def __init__(self, rng: np.random.Generator, run: Draft, inputs: list[Input], names: list[str], most: int) -> None:
        self.rng, self.run, self.inputs, self.names, self.most = rng, run, inputs, names, most
        self.scope: dict[str, Any] = run.names
        self.statements: list[Statement] = []
        self.special = not run.program.finite

    # --- what makers ask for --------------------------------------------------------------------------------------------------------

    def shape(self, name: str) -> Shape:
        shape: Shape = self.scope[name].shape
        return shape

    def floats(self) -> list[str]:
        return [n for n in self.names if isinstance(self.scope[n], Tensor) and self.scope[n].dtype.is_float]

    def integers(self) -> list[str]:
        return [n for n in self.names if isinstance(self.scope[n], Tensor) and self.scope[n].dtype.is_integer]

    def pick(self, names: Sequence[str]) -> str:
        """One of the names, the last ones more often."""
        recent = names[-4:] if self.rng.random() < 0.6 else names
        return recent[int(self.rng.integers(len(recent)))]

    def like(self, name: str) -> str:
        shape = self.shape(name)
        fitting = [n for n in self.floats() if self.shape(n) == shape[len(shape) - len(self.shape(n)) :]]
        if fitting and self.rng.random() < 0.7:
            return self.pick(fitting)
        start = int(self.rng.integers(len(shape) + 1))
        return self.fresh(shape[start:])

    def fresh(self, shape: Shape) -> str:
        code = SPECIAL.format(shape) if self.special else f"rng.normal(size={shape})"
        return self.input(code, "captured" if self.rng.random() < 0.4 else "argument")

    def indices(self, count: int, below: int) -> str | None:
        dtype = str(self.rng.choice(["int32", "int64"]))
        return self.input(f"rng.integers(0, {below}, size={count})", "argument", dtype)

    def mask(self, name: str) -> str | None:
        shape = self.shape(name)
        return self.input(f"rng.random({shape[int(self.rng.integers(len(shape) + 1)) :]}) < 0.5", "argument", "bool")

    def input(self, code: str, role: Any, dtype: str = "") -> str:
        """A new input of the whole program."""
        made = Input(f"{role[0]}{len(self.inputs)}", code, role, dtype)
        self.inputs.append(made)
        self.scope[made.name] = self.run.value(made, 0)
        self.names.insert(0, made.name)  # inner functions see it, too; as something old
        return made.name

    # --- growing ------------------------------------------------------------------------------------------------------------------------

    def add(self, made: Made | None, blocks: tuple[Block, ...] = (), kept: bool = True) -> str | None:
        """Run the statement and keep it, if it is valid and its values are reasonable. The name of its result."""
        if made is None:
            return None
        name = f"v{self.run.next_number()}"
        statement = Statement(name, made.code, made.inputs, blocks)
        try:
            for function, block in zip(statement.functions(), blocks, strict=True):
                exec(function_text(function, block), self.scope)
            value = eval(statement.expression(), self.scope)
            fits = self._fits(value, made)
        except InternalError:
            raise
        except (WeftError, IndexError):
            return None
        if not fits:
            return None
        self.scope[name] = value
        self.statements.append(statement)
        if kept and isinstance(value, Tensor):
            self.names.append(name)
        return name

    def _fits(self, value: Any, made: Made) -> bool:
        if isinstance(value, tuple | list):
            return all(self._fits(v, made) for v in value)
        if not 0 < value.size <= self.most or value.ndim > 5:
            return False
        if not value.dtype.is_float:
            value.numpy()
            return True
        given = [self.scope[i] for i in made.inputs]
        if (
            all(isinstance(g, Tensor) and not g.dtype.is_float for g in given)
            and "(D" not in made.code
            and "=D" not in made.code
        ):
            return False  # floats made of integers are float32 in any program
        size = np.abs(np.asarray(value.numpy(), np.float64))
        return self.special or bool((size <= LARGEST[self.run.program.dtype]).all())

    def grow(self, count: int, makers: Sequence[Maker], blocks: float = 0.0) -> None:
        """Add this many statements, or fewer if candidates keep failing."""
        for _ in range(3 * count):
            if len(self.statements) >= count:
                return
            if self.rng.random() < blocks:
                BLOCKS[int(self.rng.integers(len(BLOCKS)))](self, self.pick(self.floats()))
            elif self.integers() and self.rng.random() < 0.15:
                self._grow_integers()
            elif self.rng.random() < 0.02:
                self.add(Made(TO_INTEGER[int(self.rng.integers(len(TO_INTEGER)))], (self.pick(self.floats()),)))
            else:
                self.add(makers[int(self.rng.integers(len(makers)))](self, self.pick(self.floats())))

    def _grow_integers(self) -> None:
        x = self.pick(self.integers())
        same = [
            n
            for n in self.integers()
            if self.scope[n].dtype is self.scope[x].dtype and self.shape(n) in (self.shape(x), ())
        ]
        rows = INTEGER if self.rng.random() < 0.8 else TO_FLOAT
        self.add(Made(rows[int(self.rng.integers(len(rows)))], (x, self.pick(same))))

    def inner(self, parameters: Sequence[tuple[str, Any]], count: int) -> Grower:
        """A block inside this one, with parameters of these values."""
        for name, value in parameters:
            self.scope[name] = value
        visible = [n for n in self.names if self.rng.random() < 0.3]
        child = Grower(self.rng, self.run, self.inputs, [*visible, *(name for name, _ in parameters)], self.most)
        child.grow(count, MAKERS, blocks=0.08)
        return child

    def block(self, parameters: Sequence[str], results: Sequence[str], returns: str = "") -> Block:
        """What has grown as a block, without the statements that nothing uses."""
        return live(Block(tuple(parameters), tuple(self.statements), tuple(results), returns))

    def number(self) -> int:
        return self.run.next_number()


class Draft(Run):
    """The names of a program that is still growing, on the reference device."""

    def __init__(self, program: FuzzProgram) -> None:
        super().__init__(program, Mode("draft", "reference"))
        self._count = 0

    def next_number(self) -> int:
        self._count += 1
        return self._count


def random_program(seed: int) -> FuzzProgram:
    """The program of a seed."""
    rng = np.random.default_rng([seed, 1])
    with knobs.set(device="reference"):
        return _grown(rng, _empty(seed, rng))


def _empty(seed: int, rng: np.random.Generator) -> FuzzProgram:
    """Everything but the statements."""
    dtype = str(rng.choice(["float32", "float64", "float16", "bfloat16"], p=[0.7, 0.1, 0.1, 0.1]))
    precision = str(rng.choice(["", "bfloat16", "float16"], p=[0.8, 0.15, 0.05])) if dtype == "float32" else ""
    settings = tuple((str(n), str(v)) for n, v in (SETTINGS[int(i)] for i in rng.integers(0, len(SETTINGS), 2)))
    return FuzzProgram(
        seed, (), Block((), (), ()), dtype, str(rng.choice(["float16", "bfloat16"])), precision, settings, finite=bool(rng.random() < 0.92)
    )  # fmt: skip


SETTINGS = [
    ("conv_algorithm", "GEMM"), ("conv_algorithm", "IMPLICIT_GEMM"), ("conv_algorithm", "DIRECT"), ("conv_algorithm", "LOOPS"),
    ("conv_algorithm", "no_workspace"), ("conv_algorithm", "fastest"), ("threads", "1"), ("threads", "2"), ("compile_after", "1"), ("winograd", "0"),
]  # fmt: skip


def _grown(rng: np.random.Generator, empty: FuzzProgram) -> FuzzProgram:
    long = empty.finite and empty.dtype in ("float32", "float64") and rng.random() < 0.08
    grower = Grower(rng, Draft(empty), [], [], 250_000 if long else MOST)
    shapes = LONG if long else SHAPES
    for _ in range(int(rng.integers(1, 4))):
        grower.fresh(shapes[int(rng.integers(len(shapes)))])
    if rng.random() < 0.3:
        dtype = INTEGERS[int(rng.integers(len(INTEGERS)))]
        grower.input(
            f"rng.integers({0 if dtype[0] == 'u' else -100}, 100, size={SHAPES[int(rng.integers(7))]})",
            "argument",
            dtype,
        )
    plain: list[Maker] = [unary, binary, reduce, masked, compare]
    makers = [unary, unary, binary, reduce, reduce, along] if long else MAKERS if empty.finite else plain
    grower.grow(int(rng.integers(2, 14)), makers, blocks=0.2 if empty.finite else 0.0)
    _add_scalar(grower)
    _add_updates(grower)
    made = [s.name for s in grower.statements if s.name in grower.names]
    used = {i for s in grower.statements for i in s.inputs}
    results = [n for n in made if rng.random() < (0.2 if n in used else 0.7)] + [grower.names[-1]]
    body = grower.block((), list(dict.fromkeys(results)))
    return replace(empty, inputs=tuple(grower.inputs)).with_body(body)


def _add_scalar(grower: Grower) -> None:
    """Perhaps a Python number as an argument: it must not change dtypes."""
    if grower.rng.random() < 0.15:
        integer = grower.integers() and grower.rng.random() < 0.5
        x = grower.pick(grower.integers() if integer else grower.floats())
        number = grower.input("int(rng.integers(1, 4))" if integer else "float(rng.normal())", "argument", "python")
        grower.names.remove(number)
        grower.add(Made("{0} * {1}" if integer else "weft.tanh({0} * {1})", (x, number)))


def _add_updates(grower: Grower) -> None:
    """Perhaps state that every call moves, and an argument that is changed in place."""
    arguments = [i.name for i in grower.inputs if i.role == "argument" and i.name in grower.floats()]
    if grower.rng.random() < 0.3:
        value = grower.pick(grower.floats())
        state = grower.input(f"rng.normal(size={grower.shape(value)})", "state")
        moved = grower.add(Made("(0.5 * {0} + weft.tanh({1})).astype({0}.dtype)", (state, value)))
        if moved:
            code = ["{0}.assign({1})", "{0}[...] = {1}"][int(grower.rng.integers(2))]
            grower.statements.append(Statement("", code, (state, moved)))
    if arguments and grower.rng.random() < 0.15:
        argument = grower.pick(arguments)
        code = ["{0} += 1", "{0} *= 0.5", "{0}.assign(weft.sin({0}))"][int(grower.rng.integers(3))]
        grower.statements.append(Statement("", code, (argument,)))
