"""Rematerialization: programs within a memory limit compute the same bits, read nothing that is gone, and say truthfully what they need."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from test_compiler_random import program as random_program
from test_memory import assert_barriers, assert_sound
from weft import nn, optim
from weft.compiler.cpu.backend import compiled
from weft.compiler.ir.kernel import Kernel
from weft.compiler.planning.memory import lifetimes, plan
from weft.compiler.planning.memory_limit import outside_bytes
from weft.compiler.planning.rematerialize import Occurrences, Rules, rematerialize
from weft.compiler.planning.schedule import KernelSchedule
from weft.errors import UserError
from weft.graph.node import Node, Type, placeholder
from weft.knobs import memory_size
from weft.options import CompileOptions
from weft.testing import counted

# --- random schedules -----------------------------------------------------------------------------------------------------------------


def random_schedule(seed: int) -> tuple[KernelSchedule, list[Node], set[Node]]:
    """Kernels of any kind that read values and state, and some that overwrite state; the state; values with memory of their own."""
    pick = random.Random(seed)
    nodes = iter(range(10**6))

    def node(size: int) -> Node:
        return placeholder(next(nodes), Type((size,), weft.float32))

    state = [node(64) for _ in range(pick.randint(1, 3))]
    kernels, values, in_place, current = [], [node(256)], {}, list(state)
    for i in range(pick.randint(8, 24)):
        overwrites = i > 3 and current and pick.random() < 0.15
        pool = values + current * 2
        reads = set(pick.sample(pool, min(len(pool), pick.randint(1, 3))))
        outputs = [node(pick.choice([16, 64, 256, 1024])) for _ in range(pick.choice([1, 1, 1, 2]))]
        if overwrites:
            old = pick.choice(current)
            current.remove(old)
            reads, outputs = {old, pick.choice(values)}, [node(64)]
            in_place[outputs[0]] = old
        else:
            values += outputs
        kernels.append(Kernel(None, None, outputs=outputs))
        kernels[-1].reads = reads
    fixed = {*state, *in_place, values[0], values[-1]}
    return KernelSchedule(tuple(kernels), in_place, {}), [*state, values[0]], fixed


def limited(order: KernelSchedule, fixed: set[Node], limit: float) -> tuple[Occurrences, int, int]:
    """The kernels within a part of the memory that they need otherwise; their memory, and the limit."""

    def size(found: Occurrences) -> int:
        nowhere: Any = dict.fromkeys(fixed)
        return plan(found.kernels, nowhere, {}, {}, {}, (), (), (), None, found.again).arena

    rules = Rules(
        fixed, set(), set(), lambda k: float(sum(n.shape[0] for n in k.outputs)), lambda _: False
    )  # fmt: skip
    most = int(size(Occurrences.once(order.kernels)) * limit)
    found = rematerialize(
        order, rules, most, lambda f: lifetimes(f.kernels, fixed, {}, {}, (), (), None, f.again).all, size
    )
    return found, size(found), most


@pytest.mark.parametrize("seed", [22, *range(5)])
def test_nothing_is_computed_again_from_state_that_was_overwritten(seed: int) -> None:
    order, given, fixed = random_schedule(seed)
    for part in (0.9, 0.7, 0.5, 0.3):
        found, _, _ = limited(order, fixed, part)
        there, gone = {*given}, set()
        for kernel in found.kernels:
            assert kernel.reads <= there - gone
            there |= {*kernel.outputs}
            gone |= {order.in_place[n] for n in kernel.outputs if n in order.in_place}
        assert [k for k in found.kernels if k not in found.recomputed] == list(order.kernels)
        counted()


# --- programs ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_within_a_limit_are_sound(seed: int) -> None:
    graph = random_program(seed, 16, "float32", True)
    last, options = len(graph.outputs), CompileOptions("cpu", threads=2)
    updates = {last - 2: 0, last - 1: 1} if seed % 2 else {}
    whole = compiled(graph, updates, options).memory
    outside = outside_bytes(graph, updates) + whole.kept
    for part in (0.8, 0.5):
        try:
            program = compiled(graph, updates, replace(options, memory=outside + int(part * whole.arena)))
        except UserError:
            continue
        assert program.memory.arena <= part * whole.arena
        assert_sound(program)
        assert_barriers(program)


def _training(limit: int | None) -> tuple[Any, Any, list[Any]]:
    """The step of a network with dropout and running statistics, its batch, and everything that it changes."""
    weft.seed(0)
    layers: list[Any] = [nn.Linear(30, 64)]
    for _ in range(4):
        layers += [nn.BatchNorm(64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 64)]
    model = nn.Sequential(*layers)
    optimizer = optim.adam(model, rate=1e-2)
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(64, 30)).astype(np.float32), rng.integers(0, 64, 64)

    @weft.jit(memory=limit)
    def step(x: Any, y: Any) -> Any:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    return step, batch, [*model.named_tensors().values(), *optimizer.named_state().values()]


def test_a_step_within_a_limit_has_the_same_bits() -> None:
    step, batch, state = _training(None)
    whole = step.memory(*batch)
    losses = [step(*batch).item() for _ in range(3)]
    limit = whole.total - whole.work // 3
    other, _, other_state = _training(limit)
    found = other.memory(*batch)
    assert found.total <= limit
    assert found.recomputed > 0
    assert [other(*batch).item() for _ in range(3)] == losses
    for a, b in zip(state, other_state, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_the_setting_is_followed_as_the_argument_is() -> None:
    step, batch, _ = _training(None)
    whole = step.memory(*batch)
    with weft.knobs.set(memory=whole.total - whole.work // 3):
        assert step.memory(*batch).recomputed > 0
    assert step.memory(*batch) == whole


def test_a_limit_that_cannot_be_met_names_the_least_memory_that_was_found() -> None:
    """Not that of the last attempt, which may take more than what a higher limit gave."""
    for seed in range(5):
        order, _, fixed = random_schedule(seed)
        sizes = [limited(order, fixed, part)[1] for part in (0.7, 0.5, 0.3, 0.0)]
        assert sizes == sorted(sizes, reverse=True), seed


@pytest.mark.parametrize(
    ("text", "size"), [("40GiB", 40 << 30), ("1.5GB", 1_500_000_000), ("0.5 KiB", 512), ("0", 0), ("0.0GB", 0)]
)
def test_limits_are_read(text: str, size: int) -> None:
    assert memory_size(text) == size


@pytest.mark.parametrize("text", ["0.0001KiB", "1.5", "-1GB", "much", "nanGB"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it must be a"):
        memory_size(text)
