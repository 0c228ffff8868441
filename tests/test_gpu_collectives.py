"""Collectives in programs for GPUs: which commands there are, in which order, and on which memory. Nothing runs."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

import weft
from weft import parallel
from weft.compiler.gpu.commands import Beside, Collective, CommandList, CompiledCommands, ControlFlow, Join, Launch
from weft.compiler.gpu.program import commands, compiled_commands, gpu_program
from weft.compiler.gpu.special.collectives import CollectiveSpec
from weft.compiler.gpu.streams import in_streams
from weft.compiler.ir.kernel import Kernel
from weft.compiler.ir.program import Call
from weft.compiler.ir.storage import Slot
from weft.compiler.thresholds import thresholds
from weft.dtypes import as_dtype
from weft.graph.node import Type
from weft.mesh import mesh as meshes
from weft.ops.collective import all_reduce_many
from weft.options import CompileOptions

F32 = weft.float32


@pytest.fixture
def mesh(monkeypatch):
    """A mesh whose processes nobody needs, because nothing runs: of two, unless a test says otherwise."""
    found = SimpleNamespace(axes=(("data", 2),), is_single=lambda axis: False)
    monkeypatch.setattr(meshes, "_current", [found])
    return found


def graph_of(function, *types):
    """A function of tensors of these types, traced: collectives are part of it."""
    return weft.jit(function).artifact(*(weft.zeros(t.shape, dtype=t.dtype) for t in types)).graph


def layers(count, share):
    """A training step of a perceptron, with the sums of its gradients by `share`."""

    def step(x, *weights):
        def loss(weights):
            y = x
            for w in weights:
                y = weft.tanh(y @ w)
            return (y * y).sum()

        sums = share(weft.grad(loss)(weights))
        return tuple(w - 0.1 * g for w, g in zip(weights, sums, strict=True))

    graph = graph_of(step, Type((16, 64), F32), *[Type((64, 64), F32)] * count)
    return gpu_program(graph, {i: 1 + i for i in range(count)})


def one_by_one(gradients):
    """A bucket for each gradient, that of the last layer first."""
    return [all_reduce_many([g], "data")[0] for g in reversed(gradients)][::-1]


def collectives(steps):
    return [c for c in steps.flat if isinstance(c, Collective)]


def test_gradients_are_summed_in_place_while_others_are_computed(mesh):
    steps = commands(layers(4, one_by_one))
    found = list(steps)
    besides = [i for i, c in enumerate(found) if isinstance(c, Beside)]
    assert len(besides) == 4
    for c in collectives(steps):
        assert (c.spec.name, c.spec.combine, c.spec.counts) == ("all_reduce", "sum", (64 * 64,))
        assert c.slots[0] == c.slots[1]
    # Gradients of the layer before are computed between two sums, and nobody waits for a sum before the next one has begun.
    assert all(any(isinstance(c, Launch) for c in found[a:b]) for a, b in pairwise(besides))
    joins = [(i, c.ended) for i, c in enumerate(found) if isinstance(c, Join)]
    assert joins[-1][1] == 4
    assert all(sum(b < i for b in besides) >= min(ended + 1, 4) for i, ended in joins)
    # A weight that nothing reads any more is updated while later gradients are summed.
    assert joins[0][1] < 4


def test_a_sum_that_is_read_at_once_needs_no_second_stream(mesh):
    graph = graph_of(lambda x: parallel.all_reduce(x * 2, "data") + 1, Type((5,), F32))
    steps = commands(gpu_program(graph, {}))
    assert [type(c) for c in steps] == [Launch, Collective, Launch]


def test_memory_of_a_collective_is_not_reused_while_it_runs(mesh):
    """What is sent must stay, and what is received must not be given to others, until somebody waits for it."""

    def f(x, w):
        sent = weft.tanh(x)
        gathered = parallel.all_gather(sent, "data")
        y = x
        for _ in range(4):
            y = weft.tanh(y @ w)
        return y, gathered.sum(axis=0)

    program = gpu_program(graph_of(f, Type((64, 64), F32), Type((64, 64), F32)), {})
    found = list(commands(program))
    start = next(i for i, c in enumerate(found) if isinstance(c, Beside))
    end = next(i for i, c in enumerate(found) if isinstance(c, Join))
    assert end - start >= 4
    [gather] = found[start].commands
    for command in found[start + 1 : end]:
        assert not any(slot.overlaps(own) for call in command.calls for slot in call.writes for own in gather.slots)


@pytest.mark.parametrize(
    ("size", "shape", "dtype", "names"),
    [
        (2, (5000,), "float32", ["all_reduce"]),
        (4, (5000,), "float32", ["all_to_all", "all_gather"]),
        (4, (50,), "float32", ["all_gather"]),
        (4, (5000,), "int32", ["all_reduce"]),
        (2, (50,), "int16", ["all_gather"]),  # NCCL has no such type
    ],
)
def test_sums_are_those_of_nccl_only_if_their_order_does_not_matter(mesh, size, shape, dtype, names):
    mesh.axes = (("data", size),)
    graph = graph_of(lambda x: parallel.all_reduce(x, "data"), Type(shape, as_dtype(dtype)))
    assert [c.spec.name for c in collectives(commands(gpu_program(graph, {})))] == names


def test_largest_numbers_are_found_by_us_because_of_nan(mesh):
    graph = graph_of(lambda x: parallel.all_reduce(x, "data", "max"), Type((5,), F32))
    assert [c.spec.name for c in collectives(commands(gpu_program(graph, {})))] == ["all_gather"]


def test_exchanges_and_the_sum_between_them_run_beside(mesh, monkeypatch):
    mesh.axes = (("data", 4),)
    monkeypatch.setattr(thresholds, "gpu_gathered_sum", 0)
    steps = list(commands(layers(3, one_by_one)))
    groups = [c for c in steps if isinstance(c, Beside)]
    kinds = [[c.spec.name if isinstance(c, Collective) else "sum" for c in group.commands] for group in groups]
    assert kinds == [["all_to_all", "sum", "all_gather"]] * 3


def test_several_tensors_are_one_exchange(mesh):
    mesh.axes = (("data", 4),)
    types = [Type((3, 5), F32), Type((8000,), F32), Type((7,), weft.float16)]
    graph = graph_of(lambda *xs: tuple(all_reduce_many(xs, "data")), *types)
    found = collectives(commands(gpu_program(graph, {})))
    assert sorted((c.spec.name, c.spec.counts[0]) for c in found) == [
        ("all_gather", 14), ("all_gather", 4 * 8016 // 4), ("all_to_all", 4 * 8016 // 4),
    ]  # fmt: skip


def test_commands_are_the_same_from_disk(mesh):
    """With what stands for compiled kernels."""
    program = layers(2, one_by_one)
    made = compiled_commands(program, lambda sources: [fake_binary(i) for i in range(len(sources))])
    again = CompiledCommands.from_bytes(made.to_bytes())
    assert again.commands == made.commands
    assert [c.spec for c in collectives(again.commands)] == [c.spec for c in collectives(commands(program))]
    assert {type(c) for c in again.commands} >= {Beside, Join, Launch}


def fake_binary(i):
    from weft.compiler.gpu.compile import Binary

    return Binary(b"code", f"kernel{i}", 4, 0)


# --- where one stream waits for the other: made-up commands ------------------------------------------------------------------------


def command(reads, writes, beside=False):
    """A launch that reads and writes some of ten places."""
    call = Call(Kernel(None, None), "loops", slots(reads), slots(writes), beside=beside)
    return Launch(0, 1, (*slots(reads), *slots(writes)), calls=(call,))


def slots(places):
    return [Slot(0, 8 * int(place), 8) for place in places]


@pytest.mark.parametrize(
    ("following", "joined"),
    [
        (command("0", "5"), False),  # it reads what is read there
        (command("6", "5"), False),
        (command("1", "5"), True),  # it reads what is written there
        (command("6", "1"), True),
        (command("6", "0"), True),  # it writes what is read there
    ],
)
def test_a_stream_waits_where_memory_is_shared(following, joined):
    steps = list(in_streams([command("0", "1", beside=True), command("7", "8"), following]))
    kinds = [type(c) for c in steps]
    assert kinds == ([Beside, Launch, Join, Launch] if joined else [Beside, Launch, Launch, Join])


def test_a_stream_waits_for_what_it_needs_only():
    first, second = command("0", "1", beside=True), command("2", "3", beside=True)
    work = command("6", "7")
    steps = list(in_streams([first, work, second, command("1", "8"), command("1", "9"), work]))
    assert [(type(c), getattr(c, "ended", None)) for c in steps] == [
        (Beside, None), (Launch, None), (Beside, None), (Join, 1), (Launch, None), (Launch, None), (Launch, None), (Join, 2),
    ]  # fmt: skip


def test_collectives_inside_of_control_flow_wait_for_those_before():
    inner = Collective(CollectiveSpec("all_reduce", "data", (("data", 2),), "sum", "float32", (1,)), ())
    call = Call(Kernel(None, None), "control", slots("7"), slots("8"))
    for bodies, kinds in (
        ((CommandList((inner,)),), [Beside, Launch, Join, ControlFlow]),
        ((CommandList(()),), [Beside, Launch, ControlFlow, Join]),
    ):
        flow = ControlFlow("call", bodies, (), (), {}, (), calls=(call,))
        assert [type(c) for c in in_streams([command("0", "1", beside=True), command("5", "6"), flow])] == kinds


def test_detours_are_left_out():
    steps = in_streams([command("0", "1", beside=True), command("1", "2"), command("2", "3", beside=True)])
    assert [type(c) for c in steps] == [Launch] * 3
    both = [command("0", "1", beside=True), command("5", "6"), command("2", "3", beside=True), command("3", "4")]
    assert [getattr(c, "ended", type(c)) for c in in_streams(both)] == [Beside, Launch, Beside, 2, Launch]
    assert in_streams([]) == CommandList(())


def test_mixed_precision_sends_whole_gradients(mesh, monkeypatch):
    monkeypatch.setattr(thresholds, "gpu_gathered_sum", 0)
    mesh.axes = (("data", 4),)
    program = gpu_program(layers(2, one_by_one).graph, {}, CompileOptions("cuda", "bfloat16"))
    assert [c.spec.counts for c in collectives(commands(program))] == [(64 * 64 * 4 // 4,)] * 4
