"""Statements of random programs that hold functions: loops, branches, derivatives, vmap, checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

from .program import Block
from .table import Made, Names


class Growing(Names, Protocol):
    """A program that blocks are added to."""

    scope: dict[str, Any]

    def add(self, made: Made | None, blocks: tuple[Block, ...] = (), kept: bool = True) -> str | None: ...

    def inner(self, parameters: Sequence[tuple[str, Any]], count: int) -> Growing: ...

    def block(self, parameters: Sequence[str], results: Sequence[str], returns: str = "") -> Block: ...

    def floats(self) -> list[str]: ...

    def number(self) -> int: ...


def _inner(g: Growing, *values: Any) -> tuple[Growing, list[str]]:
    """A grown block with parameters of these values, and their names."""
    names = [f"p{g.number()}" for _ in values]
    return g.inner(list(zip(names, values, strict=True)), int(g.rng.integers(1, 5))), names


def _of_type(inner: Growing, like: str) -> str:
    """The last value of a block, brought to the shape and dtype of another one."""
    last = inner.floats()[-1]
    made = inner.add(Made("(weft.tanh({0}) + 0.3 * weft.mean(weft.sin({1}))).astype({0}.dtype)", (like, last)))
    return made or like


def _same(g: Growing, x: str) -> Block:
    """A function from a value to one of its type."""
    inner, names = _inner(g, g.scope[x])
    return inner.block(names, [_of_type(inner, names[0])], "{0}")


def _scalar(g: Growing, *xs: str) -> Block:
    """A function to one number, that depends on everything it is given."""
    inner, names = _inner(g, *(g.scope[x] for x in xs))
    chosen = [inner.floats()[-1], *names]
    terms = " + ".join(f"weft.mean(weft.cos({{{i}}}) * {{{i}}})" for i in range(len(chosen)))
    total = inner.add(Made(terms, tuple(chosen)))
    return inner.block(names, [total or names[0]], "{0}")


def _items(g: Growing, pair: str | None, count: int) -> None:
    """The parts of a result that is a tuple, as values of their own."""
    for i in range(count if pair else 0):
        g.add(Made(f"{{0}}[{i}]", (str(pair),)))


def scan(g: Growing, x: str) -> None:
    if not g.shape(x) or g.shape(x)[0] > 8:
        return
    carry = g.fresh([(), (3,), (2, 4)][int(g.rng.integers(3))])
    inner, names = _inner(g, g.scope[carry], g.scope[x][0])
    block = inner.block(names, [_of_type(inner, names[0]), inner.floats()[-1]], "({0}, {1})")
    backwards = ", reverse=True" if g.rng.random() < 0.3 else ""
    _items(g, g.add(Made(f"weft.scan({{f0}}, {{0}}, {{1}}{backwards})", (carry, x)), (block,), kept=False), 2)


def cond(g: Growing, x: str) -> None:
    test = ["weft.sum({0}) > 0.1", "weft.max({0}) < 1.0", "weft.asarray(True)"][int(g.rng.integers(3))]
    g.add(Made(f"weft.cond({test}, {{f0}}, {{f1}}, {{0}})", (x,)), (_same(g, x), _same(g, x)))


def while_loop(g: Growing, x: str) -> None:
    test = ["s[0] < 3", "(s[0] < 4) & (weft.max(s[1]) < 1.5)"][int(g.rng.integers(2))]
    code = f"weft.while_loop(lambda s: {test}, lambda s: (s[0] + 1, {{f0}}(s[1])), (weft.asarray(0), {{0}}))[1]"
    g.add(Made(code, (x,)), (_same(g, x),))


def fori_loop(g: Growing, x: str) -> None:
    code = [
        "weft.fori_loop(0, 3, lambda i, v: {f0}(v), {0})",
        "weft.fori_loop(1, 4, lambda i, v: {f0}(v) + 0.1 * i.astype(v.dtype), {0})",
    ]
    g.add(Made(code[int(g.rng.integers(2))], (x,)), (_same(g, x),))


def checkpoint(g: Growing, x: str) -> None:
    g.add(Made("weft.checkpoint({f0})({0})", (x,)), (_same(g, x),))


def grad(g: Growing, x: str) -> None:
    rows = ["weft.grad({f0})({0})", "weft.value_and_grad({f0})({0})[1]", "weft.grad(weft.checkpoint({f0}))({0})"]
    g.add(Made(rows[int(g.rng.integers(len(rows)))], (x,)), (_scalar(g, x),))


def grad_of_two(g: Growing, x: str) -> None:
    pair = (x, g.like(x))
    _items(g, g.add(Made("weft.grad({f0}, argnums=(0, 1))({0}, {1})", pair), (_scalar(g, *pair),), kept=False), 2)


def vjp(g: Growing, x: str) -> None:
    g.add(Made("(lambda y, back: back(weft.cos(y))[0])(*weft.vjp({f0}, {0}))", (x,)), (_same(g, x),))


def jvp(g: Growing, x: str) -> None:
    g.add(Made("weft.jvp({f0}, ({0},), (weft.sin({0}),))[1]", (x,)), (_same(g, x),))


def vmap(g: Growing, x: str) -> None:
    if not g.shape(x) or g.shape(x)[0] > 16:
        return
    inner, names = _inner(g, g.scope[x][0])
    block = inner.block(names, [inner.floats()[-1]], "{0}")
    g.add(Made("weft.vmap({f0})({0})", (x,)), (block,))


def gradient_of_each(g: Growing, x: str) -> None:
    if not g.shape(x) or g.shape(x)[0] > 16:
        return
    row = f"p{g.number()}"
    g.scope[row] = g.scope[x][0]
    g.add(Made("weft.vmap(weft.grad({f0}))({0})", (x,)), (_scalar(g, row),))


def jacobian(g: Growing, x: str) -> None:
    few = x if prod(g.shape(x)) <= 16 else g.fresh((3,))
    code = ["weft.jacobian({f0})({0})", "weft.hessian(lambda v: weft.mean({f0}(v)))({0})"]
    g.add(Made(code[int(g.rng.integers(2))], (few,)), (_same(g, few),))


BLOCKS: list[Callable[[Any, str], None]] = [
    scan, scan, cond, while_loop, fori_loop, checkpoint, grad, grad, grad, grad_of_two, grad_of_two, vjp, jvp, vmap, gradient_of_each, jacobian,
]  # fmt: skip
