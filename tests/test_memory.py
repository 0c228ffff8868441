"""Checks the plan of memory: nothing that is still to be read is overwritten, no more is taken than must live together, checkpoints lower it.

The first part runs a plan on paper: it notes after every kernel whose bytes stand where, and finds every value that is read after
something else was written over it. That says nothing about how the plan was made, so it holds for any.
"""

import itertools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

import weft
from test_compiler_random import program as random_program
from test_fuse import STEPS, trained
from weft.compiler.cpu.backend import compiled
from weft.compiler.gpu.program import gpu_program
from weft.compiler.ir.program import KernelProgram
from weft.compiler.ir.storage import ALIGN, ARENA, Slot, nbytes
from weft.compiler.planning import arena
from weft.compiler.planning.arena import Interval
from weft.compiler.planning.in_place import overwrites
from weft.graph import Type
from weft.options import CompileOptions
from weft.testing import counted

F = Callable[..., Any]


def planned(f: F, *types: Any) -> KernelProgram:
    examples = [Type(t, weft.float32) if isinstance(t, tuple) else t for t in types]
    return compiled(weft.make_graph(f, *examples), {}, CompileOptions("cpu", threads=2))


# --- the plan on paper ----------------------------------------------------------------------------------------------------------------


class Paper:
    """Who wrote which bytes last."""

    def __init__(self) -> None:
        self.pieces: dict[int, list[tuple[int, int, Any]]] = {}  # by base: (begin, end, owner), without overlaps

    def write(self, slot: Slot, owner: Any) -> None:
        begin, end = slot.offset, slot.offset + slot.nbytes
        rest = []
        for b, e, o in self.pieces.get(slot.base, []):
            rest += [(x, y, o) for x, y in ((b, min(e, begin)), (max(b, end), e)) if x < y]
        self.pieces[slot.base] = [*rest, (begin, end, owner)] if begin < end else rest

    def owners(self, slot: Slot) -> set[Any]:
        begin, end = slot.offset, slot.offset + slot.nbytes
        found = [(b, e, o) for b, e, o in self.pieces.get(slot.base, []) if b < end and begin < e]
        covered = sum(min(e, end) - max(b, begin) for b, e, _ in found)
        return {o for _, _, o in found} | ({"nobody"} if covered < slot.nbytes else set())


def overlap(a: Slot, b: Slot) -> bool:
    return a.base == b.base and max(a.offset, b.offset) < min(a.offset + a.nbytes, b.offset + b.nbytes)


def assert_sound(program: KernelProgram) -> None:
    """Every value is where its readers look for it when they look, and every result ends where it must."""
    graph, slots, scratch = program.graph, program.memory.slots, program.memory.scratch
    paper = Paper()
    for node in graph.inputs:
        paper.write(slots[node], node)
    for kernel in program.kernels:
        for node in kernel.reads:
            assert paper.owners(slots[node]) <= {node}, f"{node} is gone when {kernel.name} reads it"
        if kernel in scratch:
            touched = [slots[n] for n in (*kernel.reads, *kernel.outputs)]
            assert not any(overlap(scratch[kernel], s) for s in touched), "scratch memory is not free"
            paper.write(scratch[kernel], kernel)
        for node in kernel.outputs:
            clash = [n for n in kernel.reads if overlap(slots[n], slots[node])]
            updated = overwrites(kernel).get(node)  # a part of it, in place
            assert all(
                slots[n].offset == slots[node].offset and (kernel.nest is not None or n is updated) for n in clash
            )
            paper.write(slots[node], node)
        for node in kernel.outputs:
            assert paper.owners(slots[node]) <= {node}, "two results of one kernel lie on each other"
        assert all(end <= program.memory.arena for _, end, _ in paper.pieces.get(ARENA, [])), "outside of the arena"
    for call in program.calls:
        if call.kind == "copy":
            [owner] = paper.owners(call.reads[0]) or {None}
            paper.write(call.writes[0], owner)
    for number, node in enumerate(graph.outputs):
        home = output_slot(program, number)
        if nbytes(node):
            assert paper.owners(home) == {node}, f"result {number} is not where it must be"
        counted()
    for body in (b for bodies in program.bodies.values() for b in bodies):
        assert_sound(body)
        assert_barriers(body)


def output_slot(program: KernelProgram, number: int) -> Slot:
    """Where the caller looks for a result: in memory of its own, or in the state that it replaces."""
    graph = program.graph
    reserved = program.frame_size - len(graph.inputs) - len(graph.outputs)
    place = program.updates.get(number)
    base = reserved + (place if place is not None else len(graph.inputs) + number)
    return Slot(base, 0, nbytes(graph.outputs[number]))


def assert_barriers(program: KernelProgram) -> None:
    """Calls between two barriers, which threads may be in at the same time, do not touch what one of them writes."""
    since: list[Any] = []
    for call in program.calls:
        if call.barrier:
            since = []
        for other in since:
            assert not any(overlap(w, s) for w in other.writes for s in (*call.reads, *call.writes))
            assert not any(overlap(r, w) for r in other.reads for w in call.writes)
        since.append(call)
        for node in call.kernel.outputs if call.kind == "loops" else ():
            assert any(w == program.memory.slots[node] for w in call.writes)
        for node in call.kernel.reads if call.kind == "loops" else ():
            assert any(r == program.memory.slots[node] for r in call.reads)


@pytest.mark.sweep(share=0.25)
@pytest.mark.parametrize("seed", range(30))
def test_random_programs_are_sound(seed: int) -> None:
    program = compiled(random_program(seed, 12, "float32", True), {}, CompileOptions("cpu", threads=2))
    assert_sound(program)
    assert_barriers(program)


@pytest.mark.parametrize("seed", range(30, 42))
def test_random_programs_that_update_state_are_sound(seed: int) -> None:
    """Gradients replace what they are gradients of: outputs that take the memory of inputs."""
    graph = random_program(seed, 8, "float32", True)
    last = len(graph.outputs)
    program = compiled(graph, {last - 2: 0, last - 1: 1}, CompileOptions("cpu", threads=2))
    assert_sound(program)
    assert_barriers(program)


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("name", STEPS)
def test_training_steps_are_sound(name: str) -> None:
    net, optimizer, shape, _ = STEPS[name]
    _, step = trained(net, optimizer, np.ones(shape, "float32"), weft.jit, steps=1)
    [made] = step.programs.latest.values()
    program = made.executable.program
    assert_sound(program)
    assert_barriers(program)


def test_the_paper_finds_a_bad_plan() -> None:
    program = planned(lambda x, w: weft.softmax(weft.tanh(x @ w) @ w, axis=0) @ w, (32, 32), (32, 32))
    stored = [n for k in program.kernels for n in k.outputs if program.memory.slots[n].base == ARENA]
    assert len(stored) >= 2
    assert_sound(program)
    program.memory.slots[stored[1]] = program.memory.slots[stored[0]]  # type: ignore[index]
    program.memory.slots[stored[-1]] = program.memory.slots[stored[0]]  # type: ignore[index]
    with pytest.raises(AssertionError):
        assert_sound(program)


# --- how much -------------------------------------------------------------------------------------------------------------------------


def rounded(*shapes: tuple[int, ...]) -> int:
    """The bytes of float32 tensors, each rounded up as the arena does."""
    return sum(-(-4 * prod(s) // ALIGN) * ALIGN for s in shapes)


def workspace(program: KernelProgram) -> int:
    return max((s.nbytes + ALIGN for s in program.memory.scratch.values()), default=0)


def test_what_is_not_stored_takes_nothing() -> None:
    program = planned(lambda x: weft.tanh(weft.softmax(weft.sin(x) * 2.0) + x.mT), (40, 40))
    assert program.memory.arena == 0


def test_one_value_between_two_kernels() -> None:
    program = planned(lambda x: weft.cumulative_sum(weft.cumulative_sum(x, axis=0), axis=1), (30, 50))
    assert rounded((30, 50)) <= program.memory.arena <= rounded((30, 50)) + workspace(program)


@pytest.mark.parametrize("layers", [2, 3, 10])
def test_a_chain_of_layers_takes_two_of_them(layers: int) -> None:
    """Whatever its length: a layer's input and its result."""

    def forward(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = weft.relu(x @ w)
        return x

    program = planned(forward, (64, 48), *[(48, 48)] * layers)
    assert program.memory.arena <= rounded(*[(64, 48)] * min(2, layers - 1)) + workspace(program)
    assert program.memory.needed <= program.memory.arena


def test_layers_of_different_sizes() -> None:
    """The worst moment is the widest pair of neighbours."""
    widths = [16, 256, 16, 128, 128, 16, 8]

    def forward(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = weft.tanh(x @ w)
        return x

    program = planned(forward, (32, widths[0]), *itertools.pairwise(widths))
    inner = widths[1:-1]
    worst = max(rounded((32, a), (32, b)) for a, b in itertools.pairwise(inner))
    assert program.memory.arena <= worst + workspace(program)


def test_elementwise_work_is_done_in_place() -> None:
    """A value read for the last time where it is replaced gives its memory to the new one."""

    def f(x: Any) -> Any:
        h = weft.cumulative_sum(x, axis=0)
        return weft.cumulative_sum(weft.tanh(h) * 2.0, axis=1)

    program = planned(f, (64, 64))
    assert len(program.kernels) == 3
    assert program.memory.arena <= rounded((64, 64)) + workspace(program)


def test_what_is_read_elsewhere_is_not_written_over() -> None:
    """The same, but the old value is read from the other side: both must live."""

    def f(x: Any) -> Any:
        h = weft.cumulative_sum(x, axis=0)
        return weft.cumulative_sum(weft.tanh(h) * h[::-1], axis=1)

    program = planned(f, (64, 64))
    assert program.memory.arena >= 2 * rounded((64, 64))
    assert_sound(program)


def test_state_is_outside_of_the_arena() -> None:
    w, m = weft.asarray(np.ones((100, 100), "float32")), weft.zeros((100, 100))

    @weft.jit
    def step(g: Any) -> None:
        m.assign(0.9 * m + g)
        w.assign(w - 0.1 * m)

    step(np.ones((100, 100), "float32"))
    [made] = step.programs.latest.values()
    program = made.executable.program
    assert program.memory.arena == 0
    assert not [c for c in program.calls if c.kind == "copy"]


def test_state_that_only_some_kernels_have_read_is_not_overwritten_early() -> None:
    w = weft.asarray(np.random.default_rng(0).normal(size=(40, 40)).astype("float32"))

    @weft.jit
    def step(x: Any) -> Any:
        before = (x @ w).sum()
        w.assign(w * 0.5 + x)
        return before

    x = np.ones((40, 40), "float32")
    expected, old = 0.0, w.numpy().copy()
    for _ in range(2):
        expected = float((x.astype("f8") @ old).sum())
        got = step(x).item()
        old = old * np.float32(0.5) + x
        assert got == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(w.numpy(), old, rtol=1e-6)
    [made] = step.programs.latest.values()
    assert_sound(made.executable.program)


def deep(layers: int, around: F) -> tuple[F, list[tuple[int, ...]]]:
    """The gradient step of layers that are wide inside and narrow between."""

    def layer(x: Any, a: Any, b: Any) -> Any:
        return x + weft.tanh(weft.tanh(x @ a) @ b)

    def loss(x: Any, *weights: Any) -> Any:
        for i in range(layers):
            x = around(layer)(x, *weights[2 * i : 2 * i + 2])
        return (x * x).mean()

    shapes = [(256, 32), *[(32, 256), (256, 32)] * layers]
    return weft.value_and_grad(loss, argnums=range(1, 1 + 2 * layers)), shapes


def test_checkpoint_lowers_the_peak() -> None:
    f, shapes = deep(8, lambda g: g)
    plain = planned(f, *shapes)
    f, shapes = deep(8, weft.checkpoint)
    saved = planned(f, *shapes)
    wide, narrow = rounded((256, 256)), rounded((256, 32))
    assert plain.memory.arena >= 8 * wide  # each layer's inner value waits for the way back
    assert saved.memory.arena <= 8 * 2 * narrow + 6 * wide
    assert saved.memory.arena < 0.6 * plain.memory.arena
    assert_sound(saved)


def test_checkpoint_keeps_the_values() -> None:
    rng = np.random.default_rng(0)
    (f, shapes), (g, _) = deep(3, lambda h: h), deep(3, weft.checkpoint)
    arrays = [(rng.normal(size=s) * 0.2).astype("float32") for s in shapes]
    (a, slopes), (b, other) = weft.jit(f)(*arrays), weft.jit(g)(*arrays)
    assert a.item() == pytest.approx(b.item(), rel=1e-6)
    for p, q in zip(slopes, other, strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", STEPS)
def test_the_arena_is_little_more_than_what_must_live_together(name: str) -> None:
    net, optimizer, shape, _ = STEPS[name]
    _, step = trained(net, optimizer, np.ones(shape, "float32"), weft.jit, steps=1)
    [made] = step.programs.latest.values()
    memory = made.executable.program.memory
    assert memory.needed <= memory.arena <= 1.3 * memory.needed + 64 * ALIGN


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_gradients_are_used_up_on_the_way_back(gpu: bool) -> None:
    """What lives at the worst moment are the results of all layers and a few gradients, not the gradients of all of them too."""
    layers, size = 12, 256 if not gpu else 2048
    weights = [weft.parameter(np.zeros((size, size), np.float32)) for _ in range(layers)]

    def step(x: weft.Tensor, *weights: weft.Tensor) -> Any:
        def loss(*weights: weft.Tensor) -> weft.Tensor:
            y = x
            for w in weights:
                y = weft.relu(y @ w)
            return y.sum()

        slopes = weft.grad(loss, tuple(range(layers)))(*weights)
        return tuple(w - 0.1 * g for w, g in zip(weights, slopes, strict=True))

    graph = weft.make_graph(step, Type((size, size), weft.float32), *(w.node.type for w in weights))
    updates = {i: i + 1 for i in range(layers)}
    program = gpu_program(graph, updates) if gpu else compiled(graph, updates, CompileOptions("cpu", threads=2))
    assert_sound(program)
    one = 4 * size * size
    assert (layers - 1) * one <= program.memory.needed <= (layers + 4) * one
    assert program.memory.arena <= (layers + 5) * one


# --- places in the arena --------------------------------------------------------------------------------------------------------------


def random_rooms(rng: np.random.Generator) -> list[Interval]:
    count = int(rng.integers(1, 40))
    begins = sorted(int(b) for b in rng.integers(0, 30, count))
    return [Interval(int(rng.integers(1, 5000)), b, b + int(rng.integers(0, 12))) for b in begins]


@pytest.mark.parametrize("way", [arena._best_fit, arena._largest_first, lambda buffers: arena.place(buffers)[0]])
def test_rooms_that_are_there_together_do_not_overlap(way: Callable[[list[Interval]], list[int]]) -> None:
    for seed in range(60):
        buffers = random_rooms(np.random.default_rng(seed))
        placed = list(zip(buffers, way(buffers), strict=True))
        assert all(offset % ALIGN == 0 for _, offset in placed)
        assert max(offset + buffer.nbytes for buffer, offset in placed) >= arena.most(buffers)
        for (a, at_a), (b, at_b) in itertools.combinations(placed, 2):
            together = a.begin <= b.end and b.begin <= a.end
            assert not (together and at_a < at_b + b.nbytes and at_b < at_a + a.nbytes)
        counted(len(buffers))


def test_most_is_what_is_there_at_the_worst_moment() -> None:
    for seed in range(40):
        buffers = random_rooms(np.random.default_rng(seed))
        steps = range(max(r.end for r in buffers) + 1)
        assert arena.most(buffers) == max(sum(r.nbytes for r in buffers if r.begin <= m <= r.end) for m in steps)
    assert arena.most([]) == 0
    assert arena.place([]) == ([], 0)


def test_buffers_are_placed_largest_first_where_it_is_worth_it() -> None:
    """A small buffer that stays keeps a large one out of the place of two others."""
    buffers = [Interval(6400, 0, 1), Interval(640, 0, 9), Interval(6400, 0, 1), Interval(12800, 2, 3)]
    assert arena._best_fit(buffers)[-1] == 6400 + 640
    assert arena.place(buffers)[1] == 6400 + 640 + 6400
    little = [Interval(6400, 0, 9), Interval(64, 0, 1), Interval(64, 0, 9), Interval(128, 2, 3)]
    assert arena.place(little)[0] == arena._best_fit(little)  # what would be saved is less than a tenth
