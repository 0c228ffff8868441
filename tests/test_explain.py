"""`explain`: the timed variant of a program, the names and the work of its kernels, the table, and the machine's roof."""

import json

import numpy as np
import pytest

import weft
import weft.explain
from test_cpu import result_nodes
from test_ops import DECLARED
from weft.compiler.cpu import roofline as roofs
from weft.compiler.cpu.backend import compiled
from weft.compiler.cpu.roofline import Roof, _Part, _Race, roof
from weft.compiler.planning import describe
from weft.compiler.planning.cost_model import work
from weft.errors import RunError
from weft.graph.graph import close
from weft.graph.node import Type, make, placeholder
from weft.knobs import knobs
from weft.options import CompileOptions
from weft.runtime.native import NativeExecutable
from weft.runtime.profile import _IsolatedRun, call_ticks
from weft.testing import counted, generator

ROOF = Roof(flops=1e11, bandwidth=1e10)


@pytest.fixture(autouse=True)
def known_roof(monkeypatch):
    """No test but those of the roof itself depends on the machine."""
    monkeypatch.setattr(roofs, "roof", lambda threads: ROOF)


def values(*shape, seed=0):
    return weft.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.1)


def mlp():
    """A training step 20-30-10, its state, and arguments for it."""
    state = [values(20, 30), values(30, seed=1), values(30, 10, seed=2), values(10, seed=3)]

    def loss(w1, b1, w2, b2, x, y):
        hidden = weft.relu(x @ w1 + b1)
        return weft.mean(weft.cross_entropy(hidden @ w2 + b2, y))

    @weft.jit
    def step(x, y):
        value, grads = weft.value_and_grad(loss, (0, 1, 2, 3))(*state, x, y)
        for w, g in zip(state, grads, strict=True):
            w.assign(w - 0.1 * g)
        return value

    return step, state, (values(16, 20, seed=4), weft.asarray(np.arange(16) % 10))


# --- rows ---------------------------------------------------------------------------------------------------------------------


def test_kernels_of_a_training_step():
    step, _, args = mlp()
    found = step.explain(*args)
    names = [row.name for row in found.rows]
    assert any(n.startswith("matmul 16x30x20 + add") for n in names), names
    assert any(n.startswith("matmul 20x30x16") and n.endswith("+ update") for n in names), names
    assert any("softmax rows 16x10" in n for n in names), names
    assert found.kernels == len({row.kernel for row in found.rows}) == found.rows[-1].kernel + 1


def test_times_and_shares_add_up():
    step, _, args = mlp()
    found = step.explain(*args)
    assert all(row.seconds > 0 for row in found.rows)
    assert found.seconds == pytest.approx(sum(row.seconds for row in found.rows))
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    for row in found.rows:
        assert row.gflops * row.seconds * 1e9 == pytest.approx(row.flops)
        assert row.roof * row.seconds == pytest.approx(max(row.flops / ROOF.flops, row.nbytes / ROOF.bandwidth))


def rows_of(function, *args):
    return weft.jit(function).explain(*args).rows


def test_work_of_a_product_with_a_rider():
    rows = rows_of(lambda x, w, b: weft.tanh(x @ w + b), values(40, 64), values(64, 48), values(48))
    assert {row.kernel for row in rows} == {0}
    # The bias is an addition, tanh is worth ten.
    assert sum(row.flops for row in rows) == 2 * 40 * 64 * 48 + 40 * 48 * (1 + 10)
    least = 4 * (40 * 64 + 64 * 48 + 48 + 40 * 48)
    assert least <= sum(row.nbytes for row in rows) <= 3 * least  # more, if operands are packed first


def test_work_of_loops_counts_each_value_once():
    (row,) = rows_of(lambda x, y: x * y + x, values(100, 8), values(100, 8))
    assert row.name == "mul + add 100x8"
    assert (row.flops, row.nbytes) == (2 * 800, 3 * 4 * 800)


def test_work_of_what_is_read_in_part():
    (row,) = rows_of(lambda table, i: table[i], values(1000, 8), weft.asarray([3, 1, 4]))
    assert row.nbytes < 300  # three rows of the table, not all of it


def test_spread_values_are_read_once():
    (row,) = rows_of(lambda x, b: x + b, values(100, 8), values(8))
    assert row.nbytes == 4 * (800 + 8 + 800)


def test_convolution_says_its_algorithm():
    rows = rows_of(lambda x, w: weft.relu(weft.conv(x, w, padding=1)), values(2, 16, 12, 12), values(32, 16, 3, 3))
    main = [row for row in rows if row.name.startswith("conv 3x3 16->32 ") and "(" not in row.name]
    assert len(main) == 1
    assert any(a in main[0].name for a in ("DIRECT", "GEMM", "WINOGRAD"))
    assert main[0].name.endswith("+ where") or "maximum" in main[0].name
    assert main[0].flops >= 2 * 2 * 12 * 12 * 32 * 16 * 9


def test_work_is_divided_among_phases_of_different_channels():
    x, w = values(1, 64, 12, 12), values(176, 64, 1, 1)  # wide tiles for most filters, a narrower one for the rest
    rows = rows_of(lambda x, w: weft.relu(weft.conv(x, w, algorithm="DIRECT")), x, w)
    main = [row for row in rows if row.name.startswith("conv 1x1 64->176 ") and "(" not in row.name]
    assert sum(row.flops for row in main) == pytest.approx(144 * 176 * (2 * 64 + 2))
    assert all(row.flops for row in main)
    assert sum(row.nbytes for row in main) < 8 * (144 * 64 + 176 * 64 + 144 * 176)


def test_wide_elements_have_a_lower_roof():
    assert ROOF.seconds(1e9, 0, itemsize=8) == 2 * ROOF.seconds(1e9, 0) == 2 * ROOF.seconds(1e9, 0, itemsize=2)
    assert ROOF.seconds(1e9, 1e9) == 0.1


def test_state_is_updated_in_one_kernel():
    state = [values(50, seed=i) for i in range(3)]

    @weft.jit
    def step(x):
        for s in state:
            s.assign(s * 0.9 + x)

    names = [row.name for row in step.explain(values(50)).rows]
    assert names == ["update of 3 tensors, 150 elements"]


def test_control_flow_is_one_row_and_counts_its_steps():
    w = values(8, 8)

    def once(x):
        return weft.scan(lambda c, t: (weft.tanh(c @ w + t), c), weft.zeros((4, 8)), x)[0]

    def flops(length):
        (row,) = [r for r in rows_of(once, values(length, 4, 8)) if r.name.startswith("scan")]
        assert row.name.startswith(f"scan of {length} steps (")
        return row.flops

    assert flops(12) == 3 * flops(4) > 0
    (loop,) = [
        r for r in rows_of(lambda x: weft.while_loop(lambda s: s.sum() < 9.0, lambda s: s + 1.0, x), weft.ones(4))
        if r.name.startswith("while loop")
    ]  # fmt: skip
    assert loop.seconds > 0


def test_reasons():
    def f(x, w):
        hidden = weft.exp(x)
        return hidden @ w, weft.sum(hidden, axis=0), x * 2

    program = weft.jit(f)._for((values(6, 4), values(4, 3)), {}).executable.program
    said = " / ".join(describe.reasons(program).values())
    assert "operand of a matrix product" in said
    assert "result" in said


@pytest.mark.whole_errors
def test_source_is_the_users_line():
    def f(x):
        return weft.sum(weft.exp(x) * 3.0, axis=1)

    (row,) = rows_of(f, values(6, 3))  # a shape of its own: equal nodes are one, and keep the line that made the first
    assert "weft.sum(weft.exp(x) * 3.0, axis=1)" in row.sources[0]
    assert row.sources[0].startswith("test_explain.py:")


@pytest.mark.parametrize("op", DECLARED, ids=lambda op: op.name)
def test_every_op_can_be_described(op):
    nodes, outputs = [], []
    for sample in op.samples(generator(op.name)):
        here = [placeholder(object(), Type(i.shape, weft.asarray(i).dtype)) for i in sample.inputs]
        nodes, outputs = nodes + here, [*outputs, *result_nodes(make(op, tuple(here), sample.params))]
    program = compiled(close(nodes, outputs), {}, CompileOptions("cpu", threads=2))
    why = describe.reasons(program)
    for call in program.calls:
        done = work(program, call)
        assert done.flops >= 0
        assert done.read >= 0
        assert done.written >= 0
        assert describe.name(program, call)
        assert call.kind == "copy" or why[call.kernel]
        counted(1)


# --- what running it must not do -------------------------------------------------------------------------------------------------


def test_state_does_not_change():
    step, state, args = mlp()
    other, other_state, _ = mlp()
    before = [s.numpy().copy() for s in state]
    step.explain(*args)
    for s, old in zip(state, before, strict=True):
        np.testing.assert_array_equal(s.numpy(), old)
    step(*args), other(*args), step.explain(*args), step(*args), other(*args)
    for s, o in zip(state, other_state, strict=True):
        np.testing.assert_array_equal(s.numpy(), o.numpy())


def test_arguments_and_random_streams_do_not_change():
    @weft.jit
    def noisy(x):
        return x + weft.random.uniform((5,))

    x = weft.zeros(5)
    weft.seed(7)
    expected = [noisy(x).tolist(), noisy(x).tolist()]
    weft.seed(7)
    first = noisy(x).tolist()
    noisy.explain(x)
    assert [first, noisy(x).tolist()] == expected
    assert x.tolist() == [0.0] * 5


def test_state_that_is_copied_at_the_end_does_not_change():
    a, b = values(6), values(6, seed=1)

    @weft.jit
    def swap():
        old = a + 0.0
        a.assign(b + 0.0)
        b.assign(old)

    before = a.tolist(), b.tolist()
    swap.explain()
    assert (a.tolist(), b.tolist()) == before
    swap()
    assert (b.tolist(), a.tolist()) == before


def test_a_scan_starts_the_kernels_of_its_name():
    """Both carried values come from one product, so one of them is copied in every step: a copy is no kernel."""
    w = values(8, 8)

    def body(carry, x):
        h, c = carry
        new = weft.tanh(x @ w + h)
        return (new, c + new), new

    step = weft.jit(lambda x: weft.scan(body, (weft.zeros((4, 8)), weft.zeros((4, 8))), x))
    x = values(5, 4, 8)
    [scan] = [row for row in step.explain(x, repeats=1).rows if row.name.startswith("scan")]
    program = step._for((x,), {}).executable.program
    [bodies] = program.bodies.values()
    assert any(call.kind == "copy" for call in bodies[0].calls)
    assert scan.name == f"scan of 5 steps ({len(bodies[0].kernels)} kernels)"
    assert scan.starts == 5 * len(bodies[0].kernels)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_timed_program_computes_the_same(threads):
    x, w = placeholder(object(), Type((33, 20), weft.float32)), placeholder(object(), Type((20, 17), weft.float32))
    y = weft.exp(weft.tensor.wrap(x) @ weft.tensor.wrap(w))
    graph = close([x, w], [y.node, weft.sum(y, axis=0).node])
    arrays = [values(33, 20).numpy(), values(20, 17).numpy()]
    addresses = [a.ctypes.data for a in arrays]
    executable = NativeExecutable(graph, {}, CompileOptions.current("cpu", threads=threads))
    results = [np.empty(o.shape, np.float32) for o in graph.outputs]
    executable.run([*addresses, *(r.ctypes.data for r in results)])
    timed = _IsolatedRun(executable.program, addresses, executable.options)
    assert timed.seconds(timed=False) > 0
    assert not timed.stamps.any()
    assert timed.seconds(timed=True) > 0
    assert timed.stamps.shape == (threads, len(executable.program.calls), 2)
    ticks = call_ticks(timed.stamps)
    assert ticks.shape == (1 + threads, len(executable.program.calls))
    assert (ticks >= 0).all()
    assert ticks[0].sum() == timed.stamps[..., 1].max() - timed.stamps[:, 0, 0].max(), "calls add up to the run"
    for mine, theirs in zip(timed._results, results, strict=True):
        np.testing.assert_array_equal(mine[: theirs.nbytes].view(np.float32), theirs.ravel())


def test_every_run_starts_from_the_same_values():
    state = values(5)

    @weft.jit
    def step():
        state.assign(state * 2.0 + 1.0)
        return weft.sum(state)

    made = step._for((), {})
    timed = _IsolatedRun(made.executable.program, [state.numpy().ctypes.data], made.executable.options)
    for with_clock in (True, False, True):
        timed.seconds(with_clock)
        np.testing.assert_allclose(timed._results[-1][:4].view(np.float32)[0], (state.numpy() * 2 + 1).sum(), rtol=1e-5)


def test_number_of_runs():
    step, _, args = mlp()
    made = step._for(args, {})
    arrays = [a.numpy() for a in (*args, *(s.find() for s in made.states))]
    addresses = [a.ctypes.data for a in arrays]
    assert made.executable.profile(addresses, repeats=2).runs == 2
    assert made.executable.profile(addresses).runs >= 3


def test_a_wrong_index_is_an_error():
    @weft.jit
    def pick(table, i):
        return table[i]

    with pytest.raises(RunError, match="index 9 is out of range for axis 0 of size 4"):
        pick.explain(weft.ones(4), weft.asarray([9]))
    assert pick(weft.ones(4), weft.asarray([1])).tolist() == [1.0]


def test_a_program_without_work():
    assert weft.jit(lambda: ()).explain().rows == ()
    assert "total of 0 kernels" in str(weft.jit(lambda: ()).explain())


# --- the table --------------------------------------------------------------------------------------------------------------------


def test_table_is_aligned_and_complete():
    step, _, args = mlp()
    found = step.explain(*args)
    header, rule, *lines = str(found).split("\n\n")[0].splitlines()
    assert len(lines) == len(found.rows) + 1
    assert set(rule) == {"-"}
    end = header.index("share") + len("share")
    assert all(line[end - 1] == "%" and line[end] == " " for line in lines)
    assert all(
        line[header.index("what") :].startswith(row.name[:40]) for line, row in zip(lines, found.rows, strict=False)
    )
    assert lines[-1].lstrip().startswith(f"total of {found.kernels} kernels")


def test_memory_of_a_step():
    step, state, args = mlp()
    memory = step.explain(*args).memory
    assert memory.state == sum(s.numpy().nbytes for s in state)
    assert memory.inputs == memory.state + sum(a.numpy().nbytes for a in args)
    assert memory.results == 4
    assert memory.arena >= memory.needed > 0
    sizes = [life.nbytes for life in memory.largest]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 4 * 16 * 30  # the hidden values, for the derivatives
    assert all(life.first <= life.last for life in memory.largest)
    assert "updated in place" in str(step.explain(*args))


def test_json_holds_everything():
    step, _, args = mlp()
    found = step.explain(*args)
    known = json.loads(found.to_json())
    assert [row["name"] for row in known["rows"]] == [row.name for row in found.rows]
    assert {"seconds", "share", "flops", "nbytes", "roof", "gflops", "gbytes", "sources", "why"} <= set(
        known["rows"][0]
    )
    assert known["memory"]["arena"] == found.memory.arena
    assert known["kernels"] == found.kernels


# --- WEFT_DEBUG=2 -----------------------------------------------------------------------------------------------------------------


def test_debug_shows_kernels_once_for_a_compiled_function(capsys):
    with knobs.set(debug=2):
        double = weft.jit(lambda x: weft.tanh(x) * 2.0)
        first, second = double(values(3, 4)), double(values(3, 4))
    np.testing.assert_array_equal(first.numpy(), second.numpy())
    assert capsys.readouterr().err.count("tanh + mul 3x4") == 1


def test_debug_does_not_run_a_step_twice(capsys):
    step, state, args = mlp()
    other, other_state, _ = mlp()
    with knobs.set(debug=2):
        step(*args)
    other(*args)
    np.testing.assert_array_equal(state[0].numpy(), other_state[0].numpy())
    assert "+ update" in capsys.readouterr().err


def test_debug_shows_kernels_of_the_device(capsys):
    x = values(7, 9)
    with knobs.set(debug=2, device="cpu", compile_after=1):
        (weft.sin(x) + x).numpy()
    assert "sin + add 7x9" in capsys.readouterr().err


def test_debug_1_shows_no_kernels(capsys):
    with knobs.set(debug=1):
        weft.jit(lambda x: weft.cosh(x) * 2.0)(values(3, 4))
    assert "cosh" not in capsys.readouterr().err


def test_debug_leaves_errors_to_the_run():
    pick = weft.jit(lambda table, i: table[i])
    with knobs.set(debug=2), pytest.raises(RunError, match="index 5 is out of range"):
        pick(weft.ones(4), weft.asarray([5]))


# --- the roof ---------------------------------------------------------------------------------------------------------------------


def test_roof_is_kept_on_disk(tmp_path, monkeypatch):
    asked = []

    def measured(threads):
        asked.append(threads)
        return Roof(threads * 1e10, 2e10)

    monkeypatch.setattr(roofs, "_UNSURE", {})  # what an earlier test measured on a busy machine
    monkeypatch.setattr(roofs, "measured", measured)
    with knobs.set(cache=str(tmp_path)):
        assert roof(1) == roof(1) == Roof(1e10, 2e10)
        assert asked == [1]
        assert roof(2) == Roof(2e10, 2e10)
        assert roof(1) == Roof(1e10, 2e10)
    assert asked == [1, 2]


def test_roof_of_a_busy_machine_is_not_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(roofs, "_UNSURE", {})
    monkeypatch.setattr(roofs, "measured", lambda threads: Roof(1.0, 1.0, sure=False))
    with knobs.set(cache=str(tmp_path)):
        assert roof(1) == roof(1) == Roof(1.0, 1.0, sure=False)
        monkeypatch.setattr(roofs, "_UNSURE", {})  # another process, later
        monkeypatch.setattr(roofs, "measured", lambda threads: Roof(2.0, 2.0))
        assert roof(1) == roof(1) == Roof(2.0, 2.0)


def test_the_table_says_that_the_machine_was_busy(monkeypatch):
    double = weft.jit(lambda x: x * 2.0)
    assert "busy" not in str(double.explain(values(3)))
    monkeypatch.setattr(roofs, "roof", lambda threads: Roof(1e9, 1e9, sure=False))
    assert "other programs kept this machine busy" in str(double.explain(values(3)))


def test_the_measured_roof_is_of_this_world():
    found = roofs.measured(2)
    assert 1e8 < found.flops < 1e14
    assert 1e8 < found.bandwidth < 1e13


def test_threads_that_ran_one_after_the_other_prove_nothing():
    race = _Race(2, lambda: lambda: 1.0)
    race.parts = {0: _Part(0.0, 1.0, 1.0, 10.0), 1: _Part(1.0, 2.0, 1.0, 10.0)}
    race._judge()
    assert not race.sure
    assert race.rates[False] == [10.0]
    race.parts = {0: _Part(0.0, 1.0, 1.0, 10.0), 1: _Part(0.0, 1.0, 0.99, 10.0)}
    race._judge()
    assert race.rates[True] == [20.0]


def test_what_runs_once_is_not_part_of_a_call():
    model = weft.nn.Sequential(weft.nn.Conv2d(3, 8, 3), weft.nn.BatchNorm2d(8), weft.nn.ReLU()).eval()
    x = values(2, 3, 10, 10)
    call = weft.jit(model)
    expected = call(x).numpy()
    found = call.explain(x)
    program = call._for((x,), {}).executable.program
    assert any(c.once for c in program.calls), "the filter is scaled and packed once"
    assert found.prepared > 0
    assert len(found.rows) == sum(not c.once for c in program.calls)
    assert "prepares constants, which runs once" in str(found)
    assert found.plain > 0
    np.testing.assert_array_equal(call(x).numpy(), expected)


def test_a_roof_needs_several_undisturbed_trials():
    """One or two of them, on a machine that is busy otherwise, are no roof that is worth keeping."""
    race = _Race(1, lambda: lambda: 1.0)
    for count in range(roofs.TRIES):
        assert not race.sure, count
        race.parts = {0: _Part(0.0, 1.0, 1.0, 5.0)}
        race._judge()
    assert race.sure
    assert race.over
    assert max(race.rates[True]) == 5.0
    slow = _Race(1, lambda: lambda: 1.0)
    slow.parts = {0: _Part(0.0, 1.0, 0.5, 5.0)}
    slow._judge()
    assert (slow.rates[True], slow.sure) == ([], False)
