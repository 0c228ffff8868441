"""Convolution algorithms behind one choice: every one gives the right numbers, and preferences are followed."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.algorithms import _TimedRun
from weft.compiler.cpu.backend import compiled
from weft.compiler.cpu.conv import algorithms as conv
from weft.compiler.cpu.conv import choice as conv_choice
from weft.compiler.cpu.conv.choice import candidates, decide, fingerprint, measured, remember
from weft.compiler.cpu.planner import choice
from weft.compiler.ir.conv_shape import described
from weft.compiler.planning import algorithms as choices
from weft.graph.node import toposort
from weft.graph.text import parse
from weft.knobs import ALGORITHMS
from weft.options import CompileOptions
from weft.runtime.native import NativeExecutable, thread_count

NAMES = {"conv_last": "forward", "conv_data_last": "data", "conv_filter_last": "filter"}
CASES = {
    "3x3": ((2, 16, 9, 10), (20, 16, 3, 3), {"padding": 1}),  # channels for a vector of any CPU
    "strided": ((2, 16, 9, 10), (20, 16, 3, 3), {"padding": 1, "stride": 2}),
    "grouped": ((2, 8, 9, 10), (12, 4, 3, 3), {"groups": 2}),
    "depthwise": ((2, 8, 9, 10), (8, 1, 3, 3), {"groups": 8}),
    "sequence": ((2, 5, 17), (6, 5, 4), {"dilation": 2}),
    "7x7": ((1, 16, 12, 12), (16, 16, 7, 7), {"padding": 3}),  # large enough for Fourier transforms
}


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    """No test sees what another one measured."""
    conv_choice.forget()
    with weft.knobs.set(cache=str(tmp_path)):
        yield
    conv_choice.forget()


def tensors(case="3x3", device=None):
    rng = np.random.default_rng(0)
    x, w, how = CASES[case]
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (x, w)]
    return *(weft.asarray(a, device=device) for a in arrays), how


def step(how, algorithm=None):
    """A convolution and its gradients, whose cotangent is not constant."""

    def run(x, w):
        y, back = weft.vjp(lambda x, w: weft.conv(x, w, algorithm=algorithm, **how), x, w)
        return y, *back(y * y)

    return run


def program(function, *arguments):
    return compiled(weft.make_graph(function, *arguments), {}, weft.device("cpu").compile_options())


def used(function, *arguments):
    """The algorithm of each direction in the program of a function; LOOPS where there is no plan."""
    made = program(function, *arguments)
    names = dict.fromkeys(NAMES.values(), "LOOPS")
    return names | {NAMES[k.anchor.op.name]: p.name for k, p in made.plans.items() if k.anchor.op.name in NAMES}


def facts(case="3x3"):
    """The three convolutions of a case as numbers: direction, shape."""
    x, w, how = tensors(case)
    graph = weft.make_graph(step(how), x, w)
    return {n.op.name: described(n) for n in graph.nodes if n.op.name.startswith("conv")}


def by_default(case="3x3"):
    """What the heuristic says."""
    found = {n: conv.choose(d, s, strides(s), thread_count()).name for n, (d, s) in facts(case).items()}
    return {NAMES[f"{n}_last"]: name for n, name in found.items()}


def strides(shape):
    return (1,) * (2 + len(shape.kernel))


# --- right numbers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_in_every_direction(case):
    expected = [y.numpy() for y in step(tensors(case)[2])(*tensors(case, "reference")[:2])]
    x, w, how = tensors(case)
    names = sorted(
        {"LOOPS"}.union(
            *(candidates(d, s, strides(s), CompileOptions("cpu", threads=2)) for d, s in facts(case).values())
        )
    )
    seen = {direction: set() for direction in NAMES.values()}
    results = weft.jit(lambda x, w: {name: step(how, name)(x, w) for name in names})(x, w)  # one program, compiled once
    for name in names:
        for actual, wanted in zip(results[name], expected, strict=True):
            np.testing.assert_allclose(actual.numpy(), wanted, rtol=0, atol=2e-5 * abs(wanted).max())
        for direction, algorithm in used(step(how, name), x, w).items():
            seen[direction].add(algorithm)
    for direction, shape in facts(case).values():
        word = {"forward": "forward", "data_gradient": "data", "filter_gradient": "filter"}[direction]
        assert seen[word] == {*candidates(direction, shape, strides(shape), CompileOptions("cpu", threads=2)), "LOOPS"}


def test_all_names_are_known():
    """The list that settings are checked against is the list of what exists."""
    found = {
        name
        for case in CASES
        for d, shape in facts(case).values()
        for name in candidates(d, shape, strides(shape), CompileOptions("cpu", threads=2))
    }
    assert found | {"LOOPS"} == set(ALGORITHMS)


# --- preferences ----------------------------------------------------------------------------------------------------------------


def test_the_call_the_block_and_the_setting():
    x, w, how = tensors()
    everywhere = dict.fromkeys(NAMES.values(), "GEMM")
    assert used(step(how), x, w) == by_default()
    assert used(step(how, "GEMM"), x, w) == everywhere
    with weft.algorithms(prefer="GEMM"):
        assert used(step(how), x, w) == everywhere
        assert used(step(how, "DIRECT"), x, w)["forward"] == "DIRECT"
        with weft.algorithms(weft.PREFER_FASTEST):
            assert used(step(how), x, w) == by_default()
    with weft.knobs.set(conv_algorithm="GEMM"):
        assert used(step(how), x, w) == everywhere
        assert used(step(how, weft.PREFER_FASTEST), x, w) == by_default()
        with weft.algorithms("DIRECT"):
            assert used(step(how), x, w)["data"] == "DIRECT"
    assert used(step(how), x, w) == by_default()


def test_a_preference_belongs_to_the_convolution():
    """What is traced inside a block keeps the preference outside of it, in its text too; so do gradients made later."""
    x, w, how = tensors()
    with weft.algorithms("IMPLICIT_PRECOMP_GEMM"):
        graph = weft.make_graph(lambda x, w: weft.conv(x, w, **how), x, w)
    plans = compiled(graph, {}, CompileOptions("cpu", threads=2)).plans
    assert [p.name for p in plans.values()] == ["IMPLICIT_PRECOMP_GEMM"]
    assert "prefer='IMPLICIT_PRECOMP_GEMM'" in graph.text()
    assert parse(graph.text()) == graph
    parameter = weft.parameter(x)
    with weft.algorithms("DIRECT"):
        y = weft.conv(parameter, w, **how)
    [gradient] = weft.gradients(y.sum(), [parameter])
    found = [n for n in toposort([gradient.node]) if n.op.name == "conv_data"]
    assert [choices.preferred(n) for n in found] == ["DIRECT"]


def test_a_compiled_function_follows_the_block_around_its_call():
    x, w, how = tensors()
    f = weft.jit(lambda x, w: weft.conv(x, w, **how))

    def plans():
        f(x, w)
        return [plan.name for plan in f._for((x, w), {}).executable.program.plans.values()]

    assert plans() == [by_default()["forward"]]
    for name in ("GEMM", "DIRECT", "GEMM"):
        with weft.algorithms(name):
            assert plans() == [name]
    assert plans() == [by_default()["forward"]]


def test_the_block_ends_with_an_error():
    with pytest.raises(KeyError), weft.algorithms("GEMM"):
        raise KeyError
    assert choices.in_force("conv") == ""


def test_the_transposed_convolution_has_preferences():
    x, w, _ = tensors()
    y = program(lambda x, w: weft.conv_transpose(x, w[:16], algorithm="IMPLICIT_GEMM"), x, w)
    assert [p.name for p in y.plans.values()] == ["IMPLICIT_GEMM"]


def test_what_cannot_be_done_is_done_otherwise_and_said():
    x, w, how = tensors("strided")
    made = program(step(how, "WINOGRAD"), x, w)
    notes = {k.anchor.op.name: choice(k, CompileOptions("cpu", threads=2)).note for k in made.plans}
    assert notes["conv_last"].startswith("WINOGRAD needs a 3 x 3 filter, stride and dilation 1")
    assert notes["conv_filter_last"].startswith("WINOGRAD needs a 3 x 3 filter, stride and dilation 1")
    assert "WINOGRAD" not in {p.name for p in made.plans.values()}
    x, w, how = tensors("grouped")
    made = program(step(how, "GEMM"), x, w)
    assert {choice(k, CompileOptions("cpu", threads=2)).note for k in made.plans} == {"GEMM needs one group"}


def test_winograd_can_be_forbidden():
    x, w, how = tensors()
    with weft.knobs.set(winograd=0):
        assert used(step(how), x, w)["forward"] == "DIRECT"
        assert used(step(how, "WINOGRAD_2X2"), x, w)["forward"] == "DIRECT"
        assert used(step(how, "WINOGRAD"), x, w)["filter"] == by_default()["filter"]
        table = weft.find_algorithms(x, w, direction="forward", repetitions=1, **how)
        assert not {"WINOGRAD", "WINOGRAD_2X2"} & {row.name for row in table.rows}
        assert "WINOGRAD is forbidden by the setting winograd" in str(table)


# --- workspace --------------------------------------------------------------------------------------------------------------------


def test_no_workspace_means_none():
    x, w, how = tensors()
    assert program(step(how), x, w).memory.scratch
    made = program(step(how, weft.NO_WORKSPACE), x, w)
    assert not made.memory.scratch
    assert not made.plans


@pytest.mark.parametrize("case", CASES)
def test_a_limit_is_kept(case):
    x, w, how = tensors(case)
    sizes = {
        plan.workspace
        for direction, shape in facts(case).values()
        for plan in candidates(direction, shape, strides(shape), weft.device("cpu").compile_options()).values()
    }
    for limit in (0, min(sizes) - 1, *sorted(sizes)[::3]):
        made = program(step(how, weft.WORKSPACE_LIMIT(limit)), x, w)
        assert all(plan.workspace <= limit for plan in made.plans.values())
        assert bool(made.plans) == (limit >= min(sizes))


def test_a_wide_limit_does_not_matter():
    x, w, how = tensors()
    assert used(step(how, weft.WORKSPACE_LIMIT(1 << 30)), x, w) == by_default()


# --- measurements -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32"])
def test_the_table(dtype):
    x, w, how = tensors()
    x, w = (weft.astype(t, getattr(weft, dtype)) for t in (x, w))
    table = weft.find_algorithms(x, w, repetitions=1, **how)
    for name, (direction, shape) in facts().items():
        word = NAMES[f"{name}_last"]
        rows = [row for row in table.rows if row.direction == word]
        plans = (
            candidates(direction, shape, strides(shape), weft.device("cpu").compile_options())
            if dtype in ("float32", "bfloat16")
            else {}
        )
        assert {row.name: row.workspace for row in rows} == {n: p.workspace for n, p in plans.items()} | {"LOOPS": 0}
        assert set(table.refused.get(word, ())) == set(ALGORITHMS) - {row.name for row in rows}
        assert rows == sorted(rows, key=lambda row: row.milliseconds)
        assert table.best(word) == rows[0]
    worst = {"float32": 2e-5, "bfloat16": 1e-2, "float64": 1e-14, "int32": 0}[dtype]
    for row in table.rows:
        assert row.deterministic
        assert row.gflops == pytest.approx(facts()["conv"][1].flops / row.milliseconds / 1e6)
        assert 0 <= row.error <= worst
        assert f"{row.name:21}  {row.milliseconds:9.3f}" in str(table)


@pytest.mark.parametrize("word", ["forward", "data", "filter"])
def test_errors_are_noticed(word, monkeypatch):
    """A wrong result shows as a large error."""
    run = _TimedRun.seconds

    def spoiled(self, times=1):
        elapsed = run(self, times)
        self.result *= 1.5
        return elapsed

    monkeypatch.setattr(_TimedRun, "seconds", spoiled)
    x, w, how = tensors()
    table = weft.find_algorithms(x, w, direction=word, repetitions=1, **how)
    assert {row.direction for row in table.rows} == {word}
    assert all(row.error > 0.1 for row in table.rows)


def test_measuring_asks_the_device_alone():
    """Nothing above the runtime knows a backend or builds its programs."""
    text = Path(weft.__file__).with_name("algorithms.py").read_text()
    imported = [n.module or "" for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]
    assert [
        m for m in imported if m.startswith(("compiler.cpu", "compiler.gpu", "runtime.native", "runtime.cuda"))
    ] == []


def test_what_was_measured_is_told_to_the_device(monkeypatch):
    told = {}
    monkeypatch.setattr(
        type(weft.device("cpu")), "remember_times", lambda self, node, times: told.update({node: times})
    )
    table = weft.find_algorithms(
        weft.ones((1, 8, 6, 6)), weft.ones((8, 2, 3, 3)), groups=4, direction="forward", repetitions=1
    )
    [(node, times)] = told.items()
    assert times == {row.name: row.milliseconds for row in table.rows if row.name != "LOOPS"}
    assert weft.device("cpu").refused_algorithms(node) == table.refused["forward"]


def test_the_fastest_is_the_one_that_was_measured():
    x, w, how = tensors()
    table = weft.find_algorithms(x, w, repetitions=1, **how)
    fastest = {row.direction: row.name for row in reversed(table.rows) if row.name != "LOOPS"}
    assert used(step(how), x, w) == fastest


def pretend(name, milliseconds=0.001):
    """As if an algorithm had been measured as the fastest in every direction."""
    for direction, shape in facts().values():
        times = dict.fromkeys(candidates(direction, shape, strides(shape), CompileOptions("cpu", threads=2)), 1.0)
        remember(direction, shape, times | {name: milliseconds})


def test_measurements_outlive_the_process(tmp_path):
    x, w, how = tensors()
    assert used(step(how), x, w) == by_default()
    pretend("IMPLICIT_PRECOMP_GEMM")
    conv_choice.forget()  # the memory of this process, as if it were another
    wanted = dict.fromkeys(NAMES.values(), "IMPLICIT_PRECOMP_GEMM")
    assert used(step(how), x, w) == wanted
    script = (
        "import json, test_algorithms as t\nx, w, how = t.tensors()\nprint(json.dumps(t.used(t.step(how), x, w)))\n"
    )
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "WEFT_CACHE": str(tmp_path), "PYTHONPATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == wanted


def test_code_that_was_kept_before_a_measurement_is_not_used_after_it():
    x, w, how = tensors()
    graph = weft.make_graph(lambda x, w: weft.conv(x, w, **how), x, w)
    tables = []
    for name in ("DIRECT", "IMPLICIT_PRECOMP_GEMM", "DIRECT"):
        pretend(name)
        tables.append(
            any(
                s.startswith("conv_table")
                for s in NativeExecutable(graph, {}, weft.device("cpu").compile_options()).facts.symbols
            )
        )
    assert tables == [False, True, False]


def test_measurements_know_limits_and_what_is_forbidden():
    pretend("WINOGRAD")
    x, w, how = tensors()
    direction, shape = facts()["conv"]
    options = weft.device("cpu").compile_options()
    winograd = candidates(direction, shape, strides(shape), options)["WINOGRAD"]
    tight = decide(direction, shape, strides(shape), options, weft.WORKSPACE_LIMIT(winograd.workspace - 1)).plan
    assert tight.workspace < winograd.workspace
    with weft.knobs.set(winograd=0):
        assert "WINOGRAD" not in used(step(how), x, w)["forward"]


def test_another_shape_was_not_measured():
    pretend("GEMM")
    direction, shape = facts()["conv"]
    assert measured(direction, shape)["GEMM"] == 0.001
    assert not measured("data_gradient", facts("strided")["conv_data"][1])


def test_a_damaged_measurement_is_none():
    direction, shape = facts()["conv"]
    for content in (b"", b"[1]", b'{"GEMM": "soon"}', b"\xff"):
        conv_choice.cache().put(conv_choice._key(direction, shape), content)
        assert measured(direction, shape) == {}


def test_measurements_without_a_disk():
    with weft.knobs.set(cache="off"):
        pretend("GEMM")
        x, w, how = tensors()
        assert used(step(how), x, w)["forward"] == "GEMM"


def test_the_key_of_a_program_holds_the_choices():
    x, w, how = tensors()
    graph = weft.make_graph(step(how), x, w)
    found = [fingerprint(graph)]
    for name in ("GEMM", "DIRECT"):
        direction, shape = facts()["conv"]
        remember(direction, shape, {"GEMM": 2.0, "DIRECT": 2.0} | {name: 1.0})
        found.append(fingerprint(graph))
    assert len(set(found)) == len(found)
    assert fingerprint(weft.make_graph(lambda x: x + 1, x)) == ""


def test_convolutions_inside_control_flow_count_too():
    x, w, how = tensors("grouped")
    step = weft.make_graph(lambda x, w: weft.checkpoint(lambda x: weft.conv(x, w, **how))(x), x, w)
    assert fingerprint(step) != ""


# --- errors -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x, w: weft.conv(x, w, algorithm="FASTER"), "[conv] a known algorithm is required, got 'FASTER': it must be fastest, no_workspace, workspace:BYTES, or one of GEMM, IMPLICIT_GEMM"),
        (lambda x, w: weft.conv(x, w, algorithm=""), "[conv] a known algorithm is required, got ''"),
        (lambda x, w: weft.conv_transpose(x, weft.permute_dims(w, (1, 0, 2, 3)), algorithm=3), "[conv_transpose] a known algorithm is required, got 3"),
        (lambda x, w: weft.algorithms("winograd").__enter__(), "[algorithms] a known algorithm is required, got 'winograd'"),
        (lambda x, w: weft.WORKSPACE_LIMIT(-1), "[WORKSPACE_LIMIT] a known algorithm is required, got 'workspace:-1'"),
        (lambda x, w: setattr(weft.knobs, "conv_algorithm", "FASTER"), "[knobs] WEFT_CONV_ALGORITHM cannot be 'FASTER': it must be fastest"),
        (lambda x, w: setattr(weft.knobs, "winograd", 2), "[knobs] WEFT_WINOGRAD cannot be '2': it must be 0 or 1"),
        (lambda x, w: weft.find_algorithms(x, w, direction="back"), "[find_algorithms] a direction is required: forward, data, filter or all, got 'back'"),
        (lambda x, w: weft.find_algorithms(x, w, repetitions=0), "[find_algorithms] 1 repetition or more is required, got 0"),
        (lambda x, w: weft.find_algorithms(x, w, groups=3), "[conv] the input has 16 channels but the filter expects 48"),
        (lambda x, w: weft.find_algorithms(x[:0], w), "[find_algorithms] tensors with elements are required"),
    ],
)  # fmt: skip
def test_wrong_words(wrong, message):
    x, w, _ = tensors()
    with pytest.raises(weft.UserError) as caught:
        wrong(x, w[:8])
    assert message in str(caught.value)


def test_a_text_with_a_wrong_preference_is_refused():
    x, w, how = tensors()
    text = weft.make_graph(lambda x, w: weft.conv(x, w, **how), x, w).text()
    for wrong in ("3", "'FASTER'", "'workspace:01'", "None"):
        with pytest.raises(weft.UserError, match="is required, got"):
            parse(text.replace("prefer=''", f"prefer={wrong}"))


def test_compiled_functions_follow_the_setting_of_winograd():
    x, w = weft.asarray(np.ones((1, 32, 16, 16), "float32")), weft.asarray(np.ones((32, 32, 3, 3), "float32"))
    run = weft.jit(lambda x: weft.conv(x, w, padding=1, algorithm="WINOGRAD"))
    run(x)
    with_it = str(run.explain(x))
    with weft.knobs.set(winograd=0):
        run(x)
        without = str(run.explain(x))
    assert "WINOGRAD" in with_it
    assert "WINOGRAD" not in without
    assert "WINOGRAD" in str(run.explain(x))
