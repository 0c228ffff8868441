"""Ops and a device from a package outside of weft: they trace, differentiate, map, compile and test like weft's own."""

import ast
import importlib
import importlib.metadata
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from fake_gpu import install
from weft import extend
from weft.compiler.cpu import library
from weft.graph import parse, to_text
from weft.graph.node import OPS, Op
from weft.knobs import KNOBS
from weft.tensor import emit_all
from weft.testing import check_op

device_module = importlib.import_module("weft.runtime.device")
tensor_module = importlib.import_module("weft.tensor")

NAMES = ("ext_softsign", "ext_cube", "ext_rotate")
MATRIX = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
FUNCTIONS = {
    "ext_softsign": lambda x: ops().softsign(x),
    "ext_cube": lambda x: ops().cube(x),
    "ext_rotate": lambda x: ops().rotate(x),
}
DEFINITIONS = {
    "ext_softsign": lambda x: x / (1 + np.abs(x)),
    "ext_cube": lambda x: x**3,
    "ext_rotate": lambda x: np.roll(x, 1, axis=1),
}


@pytest.fixture(scope="module", autouse=True)
def extension():
    """The package while these tests run; afterwards weft is as it was, for tests that go over all ops and devices."""
    registries = [
        OPS,
        tensor_module.FUNCTIONS,
        *(t for b in extend.BACKENDS.values() for t in (b.elementwise, b.own_kernels)),
    ]
    registries += [device_module._devices, library._makers]
    choices = KNOBS["device"].choices
    before, devices = [set(registry) for registry in registries], set(choices)
    for name in ("ops", "cpu", "gpu", "device"):
        importlib.import_module(f"extension.{name}")
    yield
    for registry, kept in zip(registries, before, strict=True):
        for name in set(registry) - kept:
            del registry[name]
    choices.intersection_update(devices)
    for name in [name for name in sys.modules if name.split(".")[0] == "extension"]:
        del sys.modules[name]


def ops():
    return sys.modules["extension.ops"]


@pytest.mark.parametrize("name", [*NAMES, "ext_extremes", "ext_moments"])
@pytest.mark.parametrize("on", ["reference", "cpu"])
def test_everything_that_follows_from_a_declaration(name, on):
    check_op(OPS[name], on, rng=np.random.default_rng(1))


@pytest.mark.parametrize("name", NAMES)
def test_compiled_three_times(name):
    f = weft.jit(lambda x: FUNCTIONS[name](x * 2.0) + 1.0)
    for _ in range(3):
        np.testing.assert_allclose(f(MATRIX).numpy(), DEFINITIONS[name](MATRIX * 2) + 1, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name, monkeypatch):
    install(monkeypatch)
    with weft.knobs.set(device="cuda"):
        f = weft.jit(lambda x: FUNCTIONS[name](x * 2.0) + 1.0)
        for _ in range(3):
            np.testing.assert_allclose(f(MATRIX).numpy(), DEFINITIONS[name](MATRIX * 2) + 1, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_and_batching(name):
    f = FUNCTIONS[name]
    weights = weft.asarray(np.arange(35, dtype=np.float32).reshape(5, 7))
    eager = weft.grad(lambda x: (f(x) * weights).sum())(weft.asarray(MATRIX)).numpy()
    np.testing.assert_allclose(
        weft.jit(weft.grad(lambda x: (f(x) * weights).sum()))(MATRIX).numpy(), eager, rtol=1e-5, atol=1e-5
    )
    step = 1e-6
    wide = MATRIX.astype(np.float64)
    bump = np.zeros_like(wide)
    bump[2, 3] = step
    slope = ((DEFINITIONS[name](wide + bump) - DEFINITIONS[name](wide - bump)) * weights.numpy()).sum() / (2 * step)
    np.testing.assert_allclose(eager[2, 3], slope, rtol=1e-4)
    many = np.stack([MATRIX, -MATRIX, MATRIX + 1])
    wanted = np.stack([DEFINITIONS[name](x) for x in many])
    for mapped in (weft.vmap(f), weft.jit(weft.vmap(f))):
        np.testing.assert_allclose(mapped(weft.asarray(many)).numpy(), wanted, rtol=2e-6, atol=1e-6)


SEVERAL = {
    "ext_extremes": (lambda x: ops().extremes(x), lambda x: (x.min(axis=-1), x.max(axis=-1))),
    "ext_moments": (lambda x: ops().moments(x), lambda x: (x.mean(axis=-1), x.var(axis=-1))),
}


def same(found, wanted):
    for y, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SEVERAL)
def test_several_results(name, monkeypatch):
    f, define = SEVERAL[name]
    same(f(MATRIX), define(MATRIX))
    for threads in (1, 2):
        with weft.knobs.set(threads=threads):
            same(weft.jit(lambda x: f(x * 2.0))(MATRIX), define(MATRIX * 2))
            for number in (0, 1):  # the other one is not computed
                same([weft.jit(lambda x, number=number: f(x)[number])(MATRIX)], define(MATRIX)[number : number + 1])
    many = np.stack([MATRIX, -MATRIX, MATRIX + 1])
    for mapped in (weft.vmap(f), weft.jit(weft.vmap(f))):
        same(mapped(weft.asarray(many)), define(many))
    install(monkeypatch)
    with weft.knobs.set(device="cuda"):
        same(weft.jit(lambda x: f(x * 2.0))(MATRIX), define(MATRIX * 2))
        same([weft.jit(lambda x: f(x)[1])(MATRIX)], define(MATRIX)[1:])


def test_several_results_have_derivatives_and_run_in_loops():
    def f(x):
        mean, variance = ops().moments(x)
        return (mean * weft.asarray([1.0, 2.0, 3.0, 4.0, 5.0])).sum() + (variance**2.0).sum()

    def defined(x):
        return (x.mean(axis=1) * np.arange(1, 6)).sum() + (x.var(axis=1) ** 2).sum()

    wide, bump = MATRIX.astype(np.float64), np.zeros((5, 7))
    bump[2, 3] = 1e-6
    slope = (defined(wide + bump) - defined(wide - bump)) / 2e-6
    for gradient in (weft.grad(f), weft.jit(weft.grad(f))):
        np.testing.assert_allclose(gradient(weft.asarray(MATRIX)).numpy()[2, 3], slope, rtol=1e-4)

    def step(x, _):
        mean, variance = ops().moments(x)
        return x - mean[:, None], variance

    looped = weft.jit(lambda x: weft.scan(step, x, weft.arange(3)))
    rest, variances = looped(weft.asarray(MATRIX))
    np.testing.assert_allclose(rest.numpy(), MATRIX - MATRIX.mean(axis=1, keepdims=True), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(variances.numpy(), np.stack([MATRIX.var(axis=1)] * 3), rtol=1e-5)


def test_unread_results_have_no_memory():
    program = weft.jit(lambda x: ops().moments(x)[1])._for((MATRIX,), {}).executable.program
    [call] = program.calls
    assert (call.phase.symbol, sorted(call.operands)) == ("ext_moments.variance", ["x0", "y1"])
    assert program.memory.arena == 0


def test_the_text_of_several_results():
    graph = weft.make_graph(lambda x: ops().moments(x), MATRIX)
    assert "ext_moments(" in to_text(graph)
    assert parse(to_text(graph)) == graph


def test_eager_code_with_several_results_is_compiled_too():
    with weft.knobs.set(compile_after=1):
        for _ in range(3):
            mean, variance = ops().moments(weft.asarray(MATRIX) * 3.0)
            same((mean + 1.0, variance), (MATRIX.mean(axis=1) * 3 + 1, MATRIX.var(axis=1) * 9))
            assert variance.node.value is not None


def test_decompositions_of_several_results_that_lie():
    liar = Op(
        "ext_liars", "along", lambda x: (x.type, x.type), lambda x: (x, x), arity=1, decompose=extend.on_nodes(lambda x: (x,))
    )  # fmt: skip
    with pytest.raises(weft.InternalError, match="the op 'ext_liars' gives float32.*, float32.*, its decomposition"):
        weft.jit(lambda x: emit_all(liar, (x,)))(MATRIX)


def test_an_op_with_kernels_of_its_own_runs_in_a_loop_and_with_threads():
    f = weft.jit(lambda x: weft.fori_loop(0, 7, lambda i, x: ops().rotate(x), x))
    for threads in (1, 2, 3):
        with weft.knobs.set(threads=threads):
            np.testing.assert_array_equal(f(MATRIX).numpy(), MATRIX)


def test_nothing_of_it_is_kept_on_disk(tmp_path):
    """No key holds what rules outside of weft say, so that a changed rule would be answered with old code."""
    with weft.knobs.set(cache=str(tmp_path)):
        weft.jit(lambda x: ops().cube(x) - 0.123)(MATRIX)
        weft.jit(lambda x: weft.fori_loop(0, 2, lambda i, x: ops().cube(x) - 0.321, x))(MATRIX)
        assert not list(tmp_path.rglob("*.weft"))
        weft.jit(lambda x: x * x - 0.123)(MATRIX)
        assert list(tmp_path.rglob("*.weft"))


def test_an_op_without_a_rule_is_refused():
    alone = extend.unary("ext_alone", np.negative, lambda g, y, x: (-g,), "-x.")
    np.testing.assert_array_equal(alone(MATRIX).numpy(), -MATRIX)
    with pytest.raises(weft.UserError, match=r"\[jit\] the op 'ext_alone' has no lowering rule for the device 'cpu'"):
        weft.jit(alone)(MATRIX)


def test_wrong_rules_are_refused():
    with pytest.raises(weft.UserError, match="a declared op is required, got 'ext_unknown'"):
        extend.lower("cpu", "ext_unknown")(lambda c: c.x)
    with pytest.raises(weft.UserError, match="has a rule for the cpu backend already"):
        extend.lower("cpu", "ext_cube")(lambda c: c.x)
    with pytest.raises(weft.UserError, match="has a rule for the gpu backend already"):
        extend.lower("gpu", "exp")(lambda c: c.x)
    incomplete = Op("ext_incomplete", "along", lambda x: x.type, np.sort, arity=1, own_kernels=True)
    with pytest.raises(weft.UserError, match="phases, scratch_tensors, write is required.*got one without phases"):
        extend.lower("gpu", incomplete.name)(lambda node, threads: None)
    with pytest.raises(weft.UserError, match="one of the backends cpu, gpu is required, got 'tpu'"):
        extend.lower("tpu", "ext_cube")


def test_a_decomposition_that_never_ends_or_lies():
    endless = extend.unary("ext_endless", np.negative, None, "-x.", decompose=lambda x: endless(x))
    with pytest.raises(weft.InternalError, match="the decompositions of ext_endless never end"):
        weft.jit(endless)(MATRIX)
    liar = extend.unary("ext_liar", np.negative, None, "-x.", decompose=lambda x: x.sum())
    with pytest.raises(weft.InternalError, match="the op 'ext_liar' gives"):
        weft.jit(liar)(MATRIX)


def test_a_device():
    counting = device_module.device("counting")
    before = counting.nodes
    x = weft.asarray(MATRIX).to_device("counting")
    np.testing.assert_allclose((ops().softsign(x) * 2.0).numpy(), 2 * DEFINITIONS["ext_softsign"](MATRIX), rtol=1e-6)
    assert counting.nodes > before


def test_installed_packages_are_loaded_when_a_device_is_unknown(monkeypatch):
    loaded = []

    class Entry:
        name, value = "example", "example_extension"

        def load(self):
            loaded.append(self.value)

    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [Entry()] if group == "weft.extensions" else []
    )
    with pytest.raises(weft.UserError, match="there is no device 'example'"):
        weft.zeros(3).to_device("example")
    with pytest.raises(weft.UserError, match="there is no device 'example'"):
        weft.zeros(3).to_device("example")
    assert loaded == ["example_extension"]  # once


def test_touch_counts():
    """An elementwise op is one declaration and one line a backend; an op with kernels of its own takes three files."""
    folder = Path(ops().__file__).parent
    text = (folder / "ops.py").read_text()
    calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    lowers = [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "lower"]
    assert [c.args[1].value for c in lowers] == ["ext_cube", "ext_cube"]
    assert sorted(p.name for p in folder.glob("*.py") if "rotate" in p.read_text()) == ["cpu.py", "gpu.py", "ops.py"]
    weft_folder = Path(weft.__file__).parent
    assert not [p for p in weft_folder.rglob("*.py") if re.search(r"\bext_(cube|rotate)", p.read_text())]


def test_facts_of_an_op_from_outside_reach_the_compiler() -> None:
    found = weft.jit(lambda x: ops().cube(x) + 1.0).explain(weft.ones((64, 64)))
    assert "cube + add" in found.rows[0].name
    assert found.rows[0].flops == 64 * 64 * 3  # an addition, and the 2 that the op declares
