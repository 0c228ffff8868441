"""Checks that planning and code grow about linearly with a graph, and that the shortcuts it takes answer as the long way would.

Work is counted, not timed: calls of functions, Python's own and built-in ones. Four times the graph may take five times the calls.
"""

import random
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import weft
from test_compiler_random import program as random_program
from weft.compiler.cpu import module
from weft.compiler.cpu.backend import apply_passes, compiled
from weft.compiler.gpu.commands import Launch
from weft.compiler.gpu.program import commands, gpu_program
from weft.compiler.ir.kernel import Kernel
from weft.compiler.ir.program import Call
from weft.compiler.ir.storage import ARENA, Ranges, Slot
from weft.compiler.planning.build import _set_barriers
from weft.compiler.planning.fuse import _Fusion
from weft.compiler.planning.merge import phase_body
from weft.compiler.planning.reachability import Spine
from weft.compiler.planning.schedule import TopologicalOrder, schedule
from weft.compiler.thresholds import thresholds
from weft.graph import Graph
from weft.options import CompileOptions
from weft.testing import counted
from weft.tracing.cache_key import key_of

MOST_GROWTH = 5.0  # for four times as much


def work(action: Callable[[], Any]) -> int:
    """How many functions are called by an action."""
    calls = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls


def assert_linear(action: Callable[[int], Callable[[], Any]], n: int) -> None:
    small, large = work(action(n)), work(action(4 * n))
    assert large < MOST_GROWTH * small, f"{n}: {small} calls, {4 * n}: {large}"
    counted()


# --- whole plans ------------------------------------------------------------------------------------------------------------------


def chain(n: int) -> tuple[Any, tuple[Any, ...]]:
    def steps(x: Any) -> Any:
        for _ in range(n):
            x = weft.sin(x) * 1.01
        return x.sum()

    return weft.grad(steps), (weft.ones(16),)


def dense(n: int) -> tuple[Any, tuple[Any, ...]]:
    weights = [weft.parameter(np.full((8, 8), 0.1, "f4")) for _ in range(n)]

    def step(x: Any) -> Any:
        for w in weights:
            x = weft.relu(x @ w)
        loss = x.sum()
        for w, g in zip(weights, weft.gradients(loss, weights), strict=True):
            w.assign(w - 0.01 * g)
        return loss

    return step, (weft.ones((4, 8)),)


def residual(n: int) -> tuple[Any, tuple[Any, ...]]:
    """Layers that read what early ones wrote on the way back."""
    weights = [weft.parameter(np.full((8, 8), 0.1, "f4")) for _ in range(n)]

    def step(x: Any) -> Any:
        for w in weights:
            x = x + weft.softmax(weft.layer_norm(x) @ w)
        loss = x.sum()
        for w, g in zip(weights, weft.gradients(loss, weights), strict=True):
            w.assign(w - 0.01 * g)
        return loss

    return step, (weft.ones((4, 8)),)


def slices(n: int) -> tuple[Any, tuple[Any, ...]]:
    """Many small results of one large tensor."""
    return lambda x: [weft.sin(x[i]) for i in range(n)], (weft.ones((n, 3)),)


def pieces(n: int) -> tuple[Any, tuple[Any, ...]]:
    return lambda *xs: weft.concat(xs), tuple(weft.ones(3) for _ in range(n))


PLANS = {"chain": (chain, 150), "dense": (dense, 20), "slices": (slices, 60), "pieces": (pieces, 60)}
CASES = {"chain": chain, "dense": dense, "residual": residual, "slices": slices}


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("name", PLANS)
def test_plans_grow_linearly(name: str) -> None:
    case, n = PLANS[name]

    def plan(n: int) -> Callable[[], Any]:
        function, args = case(n)
        return lambda: weft.jit(function).memory(*args)

    plan(2)()  # what is made once is not counted
    assert_linear(plan, n)


def test_the_order_of_kernels_grows_linearly(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[int] = []

    def watched(*args: Any) -> Any:
        found: list[Any] = []
        spent.append(work(lambda: found.append(schedule(*args))))
        return found[0]

    monkeypatch.setattr("weft.compiler.planning.build.schedule", watched)
    for n in (15, 60):
        function, args = dense(n)
        weft.jit(function).memory(*args)
    assert spent[1] < MOST_GROWTH * spent[0]


# --- code -------------------------------------------------------------------------------------------------------------------------


def graph_of(function: Any, args: tuple[Any, ...]) -> Graph:
    made = weft.jit(function)
    key, _ = key_of(args, {}, made.static)
    return made._trace(key, args, {}).graph


@pytest.mark.parametrize("name", ["pieces", "slices"])
def test_no_kernel_is_longer_than_compilers_like(name: str) -> None:
    program = compiled(graph_of(*PLANS[name][0](700)), {}, CompileOptions("cpu", threads=2))
    assert (
        max(len(b.steps) for k in program.kernels for b in k.bodies)
        <= 2 * thresholds.fused_steps + thresholds.concat_pieces
    )


MANY = thresholds.concat_pieces


@pytest.mark.parametrize(
    ("pieces", "n", "axis"),
    [
        (8, 9, 0), (8, 9, 1), (8, 19, 0), (8, 19, 1), (MANY, MANY + 1, 0), (MANY, 2 * MANY + 3, 0),
        # LLVM emits the columns of so many pieces for seconds; those of eight are joined in the same way.
        pytest.param(MANY, MANY + 1, 1, marks=pytest.mark.slow), pytest.param(MANY, 2 * MANY + 3, 1, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_concat_of_many_pieces(pieces: int, n: int, axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "concat_pieces", pieces)
    shapes = [(2 + i % 3, 2) if axis == 0 else (2, 2 + i % 3) for i in range(n)]
    xs = [np.random.default_rng(i).normal(size=s).astype("f4") for i, s in enumerate(shapes)]
    expected = np.concatenate(xs, axis)
    weight = np.cos(np.arange(expected.size, dtype="f4")).reshape(expected.shape)

    def f(*xs: Any) -> Any:
        return (weft.concat(xs, axis=axis) * weight).sum()

    value, slopes = weft.jit(weft.value_and_grad(f, tuple(range(n))))(*map(weft.asarray, xs))
    np.testing.assert_array_equal(weft.jit(lambda *xs: weft.concat(xs, axis=axis))(*xs).numpy(), expected)
    np.testing.assert_allclose(value.item(), (expected * weight).sum(), rtol=1e-3, atol=1e-3)
    for got, want in zip(slopes, np.split(weight, np.cumsum([s[axis] for s in shapes])[:-1], axis), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    counted(n)


def test_a_long_program_is_several_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled(graph_of(*dense(4)), {}, CompileOptions("cpu", threads=2))
    monkeypatch.setattr(thresholds, "function_calls", 3)
    names = [f.name for f in module.write(program).module.functions if f.name.startswith("program.1")]
    assert len(names) == 1 + -(-len(program.calls) // 3)


def test_a_program_in_pieces_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> list[np.ndarray]:
        step, args = dense(5)
        run = weft.jit(step)
        text = str(run.explain(*args))  # the timed form, whose clock runs through all pieces
        assert "contract" in text or "product" in text or "matmul" in text, text
        return [run(*args).numpy() for _ in range(3)]

    whole = trained()
    monkeypatch.setattr(thresholds, "function_calls", 2)
    with weft.knobs.set(cache="off"):
        np.testing.assert_array_equal(trained(), whole)


# --- shortcuts against the long way -------------------------------------------------------------------------------------------------


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fusion, with every answer of a shortcut compared to that of the long way."""
    between, finish = _Fusion._between, _Fusion._finish

    def compared(self: _Fusion, producer: Kernel, consumer: Kernel, sources: set[Kernel]) -> bool:
        seen = sources - {producer}
        stack, expected = list(seen), False
        while stack and not expected:
            makers = self._sources(stack.pop())
            expected = producer in makers
            stack += makers - seen
            seen |= makers
        found = between(self, producer, consumer, sources)
        assert found == expected
        counted()
        return found

    def finished(self: _Fusion, kernel: Kernel) -> None:
        rows = kernel.nest.rows if kernel.nest is not None else []
        for phase in kernel.nest.phases if kernel.nest is not None else ():
            body = phase_body(phase, self.stored, rows)
            assert phase.elements.keys == set(body.number)
            loads = {(s.node, s.place) for s in body.steps if s.kind == "load"}
            assert {(n, p) for n, places in phase.elements.loads.items() for p in places} == loads
            counted()
        finish(self, kernel)

    monkeypatch.setattr(_Fusion, "_between", compared)
    monkeypatch.setattr(_Fusion, "_finish", finished)


@pytest.mark.parametrize("name", CASES)
def test_fusion_knows_what_kernels_read(name: str, checked: None) -> None:
    function, args = CASES[name](10)
    weft.jit(function).memory(*args)


@pytest.mark.parametrize("seed", range(8))
def test_fusion_knows_what_kernels_of_random_programs_read(seed: int, checked: None) -> None:
    compiled(random_program(seed, 12, "float32", True), {}, CompileOptions("cpu", threads=2))


@pytest.mark.parametrize("seed", range(6))
def test_the_spine_tells_the_truth(seed: int) -> None:
    graph = apply_passes(random_program(seed, 12, "float32", True))
    spine = Spine(graph)
    reached: dict[Any, set[Any]] = {}
    for node in graph.nodes:
        reached[node] = {node}.union(*(reached[i] for i in node.inputs))
    told = [(a, b) for a in graph.nodes for b in graph.nodes if spine.before[a] <= spine.after[b]]
    assert told
    assert all(a in reached[b] for a, b in told)
    assert all(spine.depth[i] < spine.depth[n] for n in graph.nodes for i in n.inputs)
    counted(len(told))


@pytest.mark.parametrize("seed", range(20))
def test_an_order_is_kept_while_more_has_to_wait(seed: int) -> None:
    rng = random.Random(seed)
    kernels = [Kernel(None, None) for _ in range(12)]
    after: dict[Kernel, set[Kernel]] = {k: set(rng.sample(kernels[:i], min(i, 1))) for i, k in enumerate(kernels)}
    order = TopologicalOrder(kernels, after)

    def waits(kernel: Kernel, other: Kernel) -> bool:
        return kernel is other or any(waits(k, other) for k in after[kernel])

    for _ in range(30):
        kernel, *earlier = rng.sample(kernels, 3)
        expected = not any(waits(k, kernel) for k in earlier)
        assert order.put_after(kernel, earlier) == expected
        assert all(order.place[e] < order.place[k] for k, waiting in after.items() for e in waiting)
        assert sorted(order.place.values()) == list(range(12))
        counted()


@pytest.mark.parametrize("seed", range(10))
def test_ranges_overlap_as_slots_do(seed: int) -> None:
    rng = random.Random(seed)
    ranges, slots = Ranges(), list[Slot]()
    for _ in range(60):
        slot = Slot(rng.randrange(2), rng.randrange(200), rng.randrange(1, 12))
        assert ranges.overlap(slot) == any(slot.overlaps(s) for s in slots)
        slots.append(slot)
        ranges.add(slot)
        for starts, stops in zip(ranges._starts.values(), ranges._stops.values(), strict=True):
            edges = [e for pair in zip(starts, stops, strict=True) for e in pair]
            assert all(a < b for a, b in pairwise(edges))
        counted()


def test_barriers_of_many_calls_grow_linearly() -> None:
    def barriers(n: int) -> Callable[[], Any]:
        slots = [Slot(ARENA, 64 * i, 64) for i in range(2 * n)]
        calls = [Call(Kernel(None, None), "loops", [r], [w]) for r, w in zip(slots[::2], slots[1::2], strict=True)]
        return lambda: _set_barriers(calls)

    assert_linear(barriers, 100)


def test_a_launch_holds_few_kernels() -> None:
    """One that held a hundred took Triton longer than all other kernels of GPT-2 together."""
    pytest.importorskip("triton")
    xs = tuple(weft.ones(5 + i) for i in range(100))
    program = gpu_program(graph_of(lambda *xs: [weft.sin(x) for x in xs], xs), {})
    steps = [step for step in commands(program) if isinstance(step, Launch)]
    assert sum(len(step.calls) for step in steps) == 100
    assert max(len(step.calls) for step in steps) <= 32


# --- equal layers -------------------------------------------------------------------------------------------------------------------


def kernels_of(layers: int) -> int:
    """How many different kernels a network of equal layers with dropout has."""
    model = weft.nn.Sequential(*(m for _ in range(layers) for m in (weft.nn.Linear(6, 6), weft.nn.Dropout(0.5))))

    def step(x: Any) -> Any:
        weights = list(model.parameters())
        return weft.gradients((model(x) ** 2).sum(), weights)

    program = compiled(graph_of(step, (np.ones((5, 6), "f4"),)), {}, CompileOptions("cpu", threads=2))
    return sum(f.name.startswith("kernel.") for f in module.write(program).module.functions)


def test_equal_layers_with_dropout_are_equal_kernels() -> None:
    """Each draws from another place of the random stream: that is read from memory, not written into the code."""
    assert kernels_of(24) == kernels_of(12) <= kernels_of(4)
