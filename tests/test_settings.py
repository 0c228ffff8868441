"""Checks that settings which change are followed: by what runs, and by what is said of it; and that threads keep their own."""

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from jit_tools import counting, floats
from weft.knobs import KNOBS, knobs
from weft.runtime.cuda.executable import SETTINGS as GPU_SETTINGS
from weft.runtime.native import SETTINGS as CPU_SETTINGS

# Settings that decide how a program is compiled, with another value that shows in the program below.
COMPILED: dict[str, Any] = {
    "device": "reference",
    "threads": 2,
    "conv_algorithm": "GEMM",
    "winograd": 0,
    "fast_math": 1,
}
# Those that decide nothing about compiled code on a CPU: when something is computed, where it is kept, what is printed.
OTHERS = {"seed", "pending_nodes", "pending_bytes", "compile_after", "cache", "cache_bytes", "data", "debug"}
X, W = floats(1, 16, 12, 12), floats(16, 16, 3, 3, seed=1)


def convolved(x: Any) -> Any:
    return weft.relu(weft.conv(x, W)) + weft.sum(0.5 * x)  # with fast_math the sum comes first


def told(f: Any, x: Any) -> Any:
    """All that is said of the program that a call runs, without times."""
    rows = [(row.name, row.why) for row in f.explain(x).rows]
    return (
        rows,
        f.memory(x),
        f.explain(x).where,
        f.sources(x),
        [g.text() for g in f.passes(x).values()],
        weft.knobs.device,
    )


def run(f: Any, x: Any) -> Any:
    """The result, and the program that gave it."""
    result = f(x).numpy()
    return result, next(reversed(f._compiled.values())).executable


def test_every_setting_is_known_to_this_test() -> None:
    """A new setting must be entered above: does it decide how programs are compiled?"""
    assert {*COMPILED, *OTHERS, *GPU_SETTINGS} == {*KNOBS}
    assert {*CPU_SETTINGS, "device", "threads"} == {*COMPILED}


def in_block(name: str, value: Any, work: Callable[[], Any]) -> Any:
    with knobs.set(**{name: value}):
        return work()


def by_assignment(name: str, value: Any, work: Callable[[], Any]) -> Any:
    before = getattr(knobs, name)
    setattr(knobs, name, value)
    try:
        return work()
    finally:
        setattr(knobs, name, before)


@pytest.mark.parametrize("way", [in_block, by_assignment])
@pytest.mark.parametrize("name", COMPILED)
def test_a_setting_that_changes_is_followed(name: str, way: Any) -> None:
    with knobs.set(threads=1, conv_algorithm="WINOGRAD" if name == "winograd" else "DIRECT"):
        function, traces = counting(convolved)
        f = weft.jit(function)
        before, first = told(f, X), run(f, X)[1]
        assert run(f, X)[1] is first
        value, fresh = COMPILED[name], weft.jit(convolved)
        expected = way(name, value, lambda: (told(fresh, X), run(fresh, X)[0]))
        got, (result, second) = way(name, value, lambda: (told(f, X), run(f, X)))
        assert second is not first
        assert got == expected[0]
        assert got != before, "the setting shows"
        np.testing.assert_array_equal(result, expected[1])
        assert run(f, X)[1] is first, "what was compiled before is used again"
        assert told(f, X) == before
        assert way(name, value, lambda: run(f, X)[1]) is second
        assert len(traces) == 2


def test_the_algorithm_of_a_block_is_followed() -> None:
    f = weft.jit(convolved)

    def names() -> set[str]:
        return {row.name.split(",")[0].split(" ")[-1] for row in f.explain(X).rows if row.name.startswith("conv")}

    with knobs.set(conv_algorithm="DIRECT"):
        f(X)
        assert names() == {"DIRECT"}
        with weft.algorithms("GEMM"):
            f(X)
            assert names() == {"GEMM"}
        f(X)
        assert names() == {"DIRECT"}
    assert len(f._compiled) == 2


def test_eager_code_follows_settings_too() -> None:
    x, w = weft.asarray(X), weft.asarray(W)
    with knobs.set(compile_after=1):
        results = {}
        for _ in range(2):
            for name in ("DIRECT", "WINOGRAD"):
                with knobs.set(conv_algorithm=name):
                    results.setdefault(name, []).append(weft.conv(x, w).numpy().copy())
    for first, second in results.values():
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(*(found[0] for found in results.values())), "they round in another way"


def test_what_is_measured_later_does_not_change_what_is_said_of_a_program() -> None:
    """A program stays as it is when `find_algorithms` has measured; so does what is said of it."""
    x, w = floats(1, 16, 9, 9), floats(16, 16, 3, 3)
    with knobs.set(threads=1, cache="off"):
        f = weft.jit(lambda x: weft.conv(x, w))
        before = [row.name for row in f.explain(x).rows]
        direction, shape = weft.compiler.cpu.conv.choice.described(
            next(n for n in f.lower(x).nodes if n.op.name == "conv")
        )
        for algorithm in ("GEMM", "DIRECT", "WINOGRAD"):
            weft.compiler.cpu.conv.choice.remember(direction, shape, {algorithm: 0.001})
            assert [row.name for row in f.explain(x).rows] == before
        weft.compiler.cpu.conv.choice.forget()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_passes_are_those_of_the_precision(precision: str) -> None:
    x = floats(8, 8)
    after = weft.jit(lambda x: x @ x, precision=precision).passes(x)
    assert "precision" in after
    assert precision in after["precision"].text()
    assert "precision" not in weft.jit(lambda x: x @ x).passes(x)


# --- threads ---------------------------------------------------------------------------------------------------------------------


def in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(60)
    return found[0]


def test_a_block_is_not_seen_by_other_threads() -> None:
    device, seed = knobs.device, knobs.seed
    with knobs.set(device="null", seed=5):
        assert in_thread(lambda: (knobs.device, knobs.seed, weft.zeros(1).device.name)) == (device, seed, device)
        assert (knobs.device, knobs.seed) == ("null", 5)
        context = contextvars.copy_context()
        assert in_thread(lambda: context.run(lambda: knobs.device)) == "null"
        with knobs.set(seed=6):
            assert in_thread(lambda: knobs.seed) == seed
            assert (knobs.device, knobs.seed) == ("null", 6)
    assert (knobs.device, knobs.seed) == (device, seed)


def test_an_assignment_is_seen_by_other_threads_and_inside_its_block() -> None:
    before = knobs.seed
    try:
        knobs.seed = 11
        assert in_thread(lambda: knobs.seed) == 11
        with knobs.set(seed=12):
            knobs.seed = 13  # of the block
            assert (knobs.seed, in_thread(lambda: knobs.seed)) == (13, 11)
            in_thread(lambda: setattr(knobs, "seed", 14))
            assert (knobs.seed, in_thread(lambda: knobs.seed)) == (13, 14)
        assert knobs.seed == 14
    finally:
        knobs.seed = before


def test_threads_in_blocks_of_their_own_run_programs_of_their_own() -> None:
    f = weft.jit(convolved)
    wanted = ("DIRECT", "GEMM", "WINOGRAD", "IMPLICIT_GEMM")
    expected = {}
    for name in wanted:
        with knobs.set(conv_algorithm=name, threads=1):
            expected[name] = weft.jit(convolved)(X).numpy()
    wrong: list[str] = []

    def work(name: str) -> None:
        with knobs.set(threads=1):
            for _ in range(10):
                with knobs.set(conv_algorithm=name):
                    if not np.array_equal(f(X).numpy(), expected[name]):
                        wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert len(f._compiled) == len(wanted)


def test_settings_are_read_as_attributes_while_no_block_overrides_them() -> None:
    """Python code in between would be felt by every operation."""
    assert "__getattr__" not in vars(type(knobs))
    with knobs.set(seed=3):
        assert "seed" not in vars(knobs)
        assert "debug" in vars(knobs)
    assert {*KNOBS} <= {*vars(knobs)}
    assert "__getattr__" not in vars(type(knobs))
