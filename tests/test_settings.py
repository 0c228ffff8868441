"""Checks that settings which change are followed: by what runs, and by what is said of it; and that threads keep their own."""

import ast
import asyncio
import contextvars
import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from jit_tools import counting, floats
from weft.compiler.cpu import backend
from weft.compiler.cpu.backend import compiled
from weft.compiler.cpu.module import write
from weft.compiler.gpu.program import commands, gpu_program
from weft.knobs import KNOBS, knobs
from weft.options import NOT_IN_CODE, SETTINGS, CompileOptions

# Settings that decide how a program is compiled, with another value that shows in the program below.
COMPILED: dict[str, Any] = {
    "device": "reference",
    "threads": 2,
    "conv_algorithm": "GEMM",
    "winograd": 0,
    "fast_math": 1,
    "optimize": 0,
}
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
    return result, next(reversed(f.programs.latest.values())).executable


def test_every_setting_is_a_compile_option_or_shapes_no_code() -> None:
    """A new setting is either a field of CompileOptions, and so part of every key, or named in NOT_IN_CODE."""
    fields = {field.name for field in dataclasses.fields(CompileOptions)}
    for name in KNOBS:
        assert (name in fields) != (name in NOT_IN_CODE), name
    assert {*NOT_IN_CODE} <= {*KNOBS}


# Files of the compiler that read settings: where compiled code is kept, and what `weft.conv` prefers when it is called.
READ_SETTINGS = {"store.py", "planning/algorithms.py"}


def test_the_compiler_reads_no_settings() -> None:
    """What it makes of a graph depends on its arguments only: it is given CompileOptions."""
    root = Path(weft.compiler.__file__).parent
    trees = {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in root.rglob("*.py")}
    reading = {
        name
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "knobs" in {alias.name for alias in node.names}
    }
    assert reading == READ_SETTINGS


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_a_program_depends_on_its_options_only(backend: str) -> None:
    """Settings of the thread that compiles change nothing; the same values as options do."""

    def f(x: Any, w: Any) -> Any:
        return weft.conv(weft.conv(x, w), w, algorithm="WINOGRAD"), weft.sum(0.5 * (x @ x))

    graph = weft.make_graph(f, X, W)
    others = {"conv_algorithm": "GEMM", "matmul_algorithm": "NAIVE", "winograd": 0, "fast_math": 1, "tf32": 1}

    def written(**options: Any) -> list[str]:
        if backend == "cuda":
            steps = commands(gpu_program(graph, {}, CompileOptions("cuda", **options)))
            return [launch.kernel.text for launch in steps.launches]
        program = compiled(graph, {}, CompileOptions("cpu", threads=1, **options))
        return [str(function) for function in write(program).module.functions]

    before = written()
    with knobs.set(**others):
        assert written() == before
    names = set(others) - set(weft.device("cpu").ignored_settings if backend == "cpu" else {"winograd"})
    for name in names:
        assert written(**{name: others[name]}) != before, name


def test_every_setting_that_shapes_code_for_the_cpu_is_tested_here() -> None:
    others = {"memory"}  # a limit shows in larger programs: test_rematerialize.py
    assert {*SETTINGS, "device"} - weft.device("cpu").ignored_settings == {*COMPILED, *others}


def test_defaults_of_options_are_those_of_the_settings() -> None:
    """A setting that a device ignores keeps its default."""
    defaults = {field.name: field.default for field in dataclasses.fields(CompileOptions)}
    assert {name: defaults[name] for name in SETTINGS} == {name: KNOBS[name].default for name in SETTINGS}


def test_an_executable_keeps_the_options_that_it_was_compiled_under() -> None:
    f = weft.jit(convolved, precision="bfloat16")
    with knobs.set(threads=1, fast_math=1, conv_algorithm="GEMM", optimize=0), weft.algorithms("DIRECT"):
        executable = run(f, X)[1]
    assert executable.options == CompileOptions(
        "cpu", "bfloat16", threads=1, conv_algorithm="GEMM", block_conv_algorithm="DIRECT", fast_math=1, optimize=0
    )


def test_settings_that_the_compiler_of_a_device_never_reads_compile_nothing_again() -> None:
    function, traces = counting(convolved)
    f = weft.jit(function)
    f(X)
    with knobs.set(tf32=1, matmul_algorithm="no_workspace"):
        f(X)
    assert len(traces) == 1


def test_a_setting_that_another_thread_changes_meanwhile_does_not_reach_a_program_that_is_being_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Options are captured before the function is called; what is compiled after it has those."""
    before, compile, seen = knobs.fast_math, backend.compiled, []
    monkeypatch.setattr(backend, "compiled", lambda *given: (seen.append(given[2].fast_math), compile(*given))[1])

    def convolved_while_settings_change(x: Any) -> Any:
        in_thread(lambda: setattr(knobs, "fast_math", 1))
        return convolved(x)

    with knobs.set(threads=1, cache="off"):
        try:
            executable = run(weft.jit(convolved_while_settings_change), X)[1]
        finally:
            knobs.fast_math = before
    assert executable.options.fast_math == 0
    assert seen == [0]


def test_a_block_is_not_seen_by_other_asyncio_tasks() -> None:
    f = weft.jit(convolved)

    async def work(name: str) -> tuple[str, str, Any]:
        with knobs.set(conv_algorithm=name, threads=1):
            await asyncio.sleep(0)  # the other tasks enter their blocks
            executable = run(f, X)[1]
            await asyncio.sleep(0)
            return name, knobs.conv_algorithm, executable.options.conv_algorithm

    async def together() -> list[tuple[str, str, Any]]:
        return await asyncio.gather(*(work(name) for name in ("DIRECT", "GEMM", "WINOGRAD")))

    usual = knobs.conv_algorithm
    assert all(name == seen == compiled for name, seen, compiled in asyncio.run(together()))
    assert knobs.conv_algorithm == usual


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


@pytest.mark.sweep("name", share=1.0)
@pytest.mark.parametrize("way", [in_block, by_assignment])
@pytest.mark.parametrize("name", COMPILED)
def test_a_setting_that_changes_is_followed(name: str, way: Any) -> None:
    start = {"conv_algorithm": "WINOGRAD"} if name == "winograd" else {"optimize": 1} if name == "optimize" else {}
    with knobs.set(**{"threads": 1, "conv_algorithm": "DIRECT", **start}):
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
    assert len(f.programs.latest) == 2


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
    assert len(f.programs.latest) == len(wanted)


def test_settings_are_read_as_attributes_while_no_block_overrides_them() -> None:
    """Python code in between would be felt by every operation."""
    assert "__getattr__" not in vars(type(knobs))
    with knobs.set(seed=3):
        assert "seed" not in vars(knobs)
        assert "debug" in vars(knobs)
    assert {*KNOBS} <= {*vars(knobs)}
    assert "__getattr__" not in vars(type(knobs))
