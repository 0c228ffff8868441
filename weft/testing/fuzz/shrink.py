"""Makes a program that fails smaller, as long as it fails in the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from ...errors import WeftError
from ...knobs import knobs
from ...tensor import Tensor
from .evaluate import Mode, Run
from .program import Block, FuzzProgram, Input, Statement, live

Fails = Callable[[FuzzProgram], bool]


def shrink(program: FuzzProgram, fails: Fails, seconds: float = 60.0) -> FuzzProgram:
    """The smallest program found in this time that still fails."""
    end = time.monotonic() + seconds
    found: FuzzProgram | None = program
    while found is not None:
        program = found
        found = next((p for p in candidates(program) if time.monotonic() < end and fails(p)), None)
    return program


def candidates(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """Simpler programs, the much simpler ones first. Some are not valid."""
    yield from _fewer_results(program)
    yield from _without_updates(program)
    yield from _cut(program)
    yield from _bypassed(program)
    yield from _plainer(program)
    yield from _smaller(program)


def _with(program: FuzzProgram, body: Block) -> FuzzProgram:
    return program.with_body(live(body))


def _fewer_results(program: FuzzProgram) -> Iterator[FuzzProgram]:
    results = program.body.results
    if len(results) > 1:
        for result in results:
            yield _with(program, replace(program.body, results=(result,)))
        for i in range(len(results)):
            yield _with(program, replace(program.body, results=results[:i] + results[i + 1 :]))


def _without_updates(program: FuzzProgram) -> Iterator[FuzzProgram]:
    statements = program.body.statements
    for i, statement in enumerate(statements):
        if not statement.name:
            yield _with(program, replace(program.body, statements=statements[:i] + statements[i + 1 :]))


def _cut(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """A statement becomes an argument of the same type; what only it needed goes."""
    types = _types(program)
    for statement in reversed(program.body.statements):
        if statement.name in types:
            shape, dtype = types[statement.name]
            code = f"rng.normal(size={shape})"
            if dtype == "bool":
                code = f"rng.random({shape}) < 0.5"
            elif "int" in dtype:
                code = f"rng.integers(0, 5, size={shape})"
            new = Input(statement.name, code, "argument", "" if dtype == program.dtype else dtype)
            rest = tuple(s for s in program.body.statements if s is not statement)
            yield _with(replace(program, inputs=(*program.inputs, new)), replace(program.body, statements=rest))


def _types(program: FuzzProgram) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each statement of the body that makes a tensor."""
    with knobs.set(device="reference"):
        try:
            run = Run(program, Mode("types", "reference"))
            scope = run.names | {i.name: run.value(i, 0) for i in program.arguments}
            exec(_at_top_level(program), scope)
        except (WeftError, IndexError):
            return {}
    values = {s.name: scope.get(s.name) for s in program.body.statements}
    return {n: (v.shape, v.dtype.name) for n, v in values.items() if isinstance(v, Tensor)}


def _at_top_level(program: FuzzProgram) -> str:
    """The statements of the body without the function around them."""
    lines = program.text().splitlines()[1:-1]
    return "\n".join(line[4:] for line in lines)


def _bypassed(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """A statement's result is replaced by one of its inputs, also inside of blocks."""
    for body in _bypassed_blocks(program.body):
        yield _with(program, body)


def _bypassed_blocks(block: Block) -> Iterator[Block]:
    for i, statement in enumerate(block.statements):
        rest = block.statements[:i] + block.statements[i + 1 :]
        for given in statement.inputs if statement.name else ():
            yield _renamed(replace(block, statements=rest), statement.name, given)
        for j, inner in enumerate(statement.blocks):
            for smaller in _bypassed_blocks(inner):
                blocks = statement.blocks[:j] + (live(smaller),) + statement.blocks[j + 1 :]
                new = replace(statement, blocks=blocks)
                yield replace(block, statements=block.statements[:i] + (new,) + block.statements[i + 1 :])


def _renamed(block: Block, old: str, new: str) -> Block:
    def names(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if n == old else n for n in given)

    def statement(s: Statement) -> Statement:
        return replace(s, inputs=names(s.inputs), blocks=tuple(_renamed(b, old, new) for b in s.blocks))

    return replace(block, statements=tuple(map(statement, block.statements)), results=names(block.results))


def _plainer(program: FuzzProgram) -> Iterator[FuzzProgram]:
    if program.precision:
        yield replace(program, precision="")
    if program.dtype != "float32":
        yield replace(program, dtype="float32")
    if len(program.settings) > 1:
        yield from (replace(program, settings=(s,)) for s in program.settings)
    elif program.settings:
        yield replace(program, settings=())
    for i, given in enumerate(program.inputs):
        if given.role == "optimizer" and "sgd" not in given.code:
            plain = replace(given, code="optim.sgd(modules, rate=0.1)")
            yield replace(program, inputs=(*program.inputs[:i], plain, *program.inputs[i + 1 :]))


def _smaller(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """Inputs with an axis of half the size, or of size 1, or without it."""
    for i, given in enumerate(program.inputs):
        if given.role in ("module", "optimizer") or given.dtype == "python":
            continue
        for match in {m.group() for m in re.finditer(r"\((?:\d+, ?)*\d*\)", given.code) if m.group() != "()"}:
            sizes = tuple(int(n) for n in re.findall(r"\d+", match))
            for shape in _smaller_shapes(sizes):
                code = given.code.replace(match, str(shape))
                yield replace(
                    program, inputs=(*program.inputs[:i], replace(given, code=code), *program.inputs[i + 1 :])
                )


def _smaller_shapes(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for axis, n in enumerate(sizes):
        for smaller in sorted({1, 2, n // 2, n - 1} - {0}):
            if smaller < n:
                yield sizes[:axis] + (smaller,) + sizes[axis + 1 :]
