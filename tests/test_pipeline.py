"""Pipelines of 2 and 4 processes against one process that accumulates the same micro-batches."""

import numpy as np
import pytest

import pipeline_tools as tools
import weft
from weft import nn, optim, parallel
from weft.errors import RunError, UserError
from weft.graph.node import Type
from weft.mesh.links import Neighbours
from weft.parallel.pipeline_cuts import balanced, cut, cut_after, cut_names, trace_network
from weft.parallel.pipeline_schedule import SCHEDULES, most_stored, schedule
from weft.precision import LossScale


@pytest.fixture
def pair(shared_pools):
    return shared_pools[2]


@pytest.fixture
def four(shared_pools):
    return shared_pools[4]


def check(found, wanted, most):
    """All processes report the same; losses, tensors and optimizer state are those of one process."""
    for losses, tensors, state, _ in found:
        assert np.abs(np.subtract(losses, wanted[0])).max() <= most
        assert tools.difference(tensors, wanted[1]) <= most
        assert tools.difference(state, wanted[2]) <= most


# --- against one process --------------------------------------------------------------------------------------------------------


def test_both_schedules_give_the_bits_of_one_process_and_1f1b_stores_less(pair):
    """Dropout, batch norm and its running statistics on both sides of the cut; three micro-batches make an uneven tree."""
    wanted = tools.one_process("norm_and_dropout", 3, 2)
    reports = []
    for name in SCHEDULES:
        found = pair.run(tools.pipelined, "norm_and_dropout", 2, 3, 2, name, (("recompute", True),))
        check(found, wanted, 0.0)
        reports.append(found[0][3])
    gpipe, one_f_one_b = reports
    assert [s.stored for s in gpipe.stages] == [3, 3]
    assert [s.stored for s in one_f_one_b.stages] == [2, 1]
    assert 3 * one_f_one_b.stages[0].stored_bytes == 2 * gpipe.stages[0].stored_bytes > 0
    assert 0.0 <= gpipe.idle(0) < 1.0
    assert gpipe.ideal == 0.25


def interpreted(*given):
    """A pipeline whose programs are not compiled, which takes most of the time."""
    with weft.knobs.set(device="reference"):
        return tools.pipelined(*given)


@pytest.mark.slow
def test_an_embedding_that_two_stages_share_gets_the_sum_of_their_gradients(four):
    with weft.knobs.set(device="reference"):
        wanted = tools.one_process("tied", 4, 2, clip_norm=0.5)
    found = four.run(interpreted, "tied", 4, 4, 2, "1f1b", (), (("clip_norm", 0.5),))
    check(found, wanted, 1e-6)
    assert found[0][3].layers[-1] == "after layers.4 to the loss"


def with_data_axis():
    with weft.knobs.set(device="reference"):
        return two_pipelines()


def two_pipelines():
    mesh = tools.mesh_of(data=2, stage=2)
    x, y = (np.split(part, 2)[mesh.index("data")] for part in tools.data("mlp"))
    weft.random.seed(5)
    made = parallel.Pipeline(tools.mlp(), weft.cross_entropy, tools.sgd, x, data="data", micro_batches=2)
    return [made.step(x, y) for _ in range(2)], made.named_tensors(), made.optimizer_state(), None


@pytest.mark.slow
def test_a_pipeline_can_be_data_parallel_as_well(four):
    """Two pipelines with two micro-batches each train like one process with four."""
    found = four.run(with_data_axis)
    with weft.knobs.set(device="reference"):
        check(found, tools.one_process("mlp", 4, 2), 1e-6)


def scaled(stages, steps, bad):
    """A training in float16 with a loss scale; in one step an input is so large that gradients overflow."""
    if stages > 1:
        tools.mesh_of(stage=stages)
    else:
        parallel.Mesh(stage=1)
    x, y = tools.data("mlp")
    weft.random.seed(5)
    scale = LossScale(start=2.0**12, grow_after=3)
    made = parallel.Pipeline(
        tools.mlp(), weft.cross_entropy, lambda p: tools.sgd(p, clip_norm=0.5), x, micro_batches=2, precision="float16", scale=scale
    )  # fmt: skip
    scales, weights = [], [made.named_tensors()]
    for step in range(steps):
        made.step(np.where(step == bad, 1e30, 1.0).astype(np.float32) * x, y)
        scales.append(float(scale.scale.item()))
        weights.append(made.named_tensors())
    return scales, weights, made.optimizer_state()


def test_stages_agree_on_the_loss_scale_and_skip_steps_that_overflow(pair):
    """Only the first stage sees the large input at once; all stages leave their parameters and moments as they were."""
    wanted, values, state = scaled(1, 6, 3)
    assert wanted == [4096.0, 4096.0, 8192.0, 4096.0, 4096.0, 4096.0]
    assert tools.difference(values[3], values[4]) == 0.0 < tools.difference(values[4], values[5])
    for scales, found, moments in pair.run(scaled, 2, 6, 3):
        assert scales == wanted
        assert tools.difference(found[3], found[4]) == 0.0
        assert tools.difference(found[-1], values[-1]) <= 1e-3  # products are rounded to float16 where stages meet
        assert tools.difference(moments, state) <= 1e-3


def test_an_overflow_is_noticed_before_gradients_are_clipped():
    """Clipping by value would make an infinite gradient a large one."""
    parallel.Mesh(stage=1)
    scale = LossScale(start=2.0**24)
    made = parallel.Pipeline(
        nn.Linear(4, 3), weft.cross_entropy, lambda p: tools.sgd(p, clip_value=0.5), (2, 4), micro_batches=2, precision="float16", scale=scale
    )  # fmt: skip
    before = made.named_tensors()
    made.step(np.ones((2, 4), np.float32), np.zeros(2, np.int64))
    assert scale.scale.item() == 2.0**23
    assert tools.difference(before, made.named_tensors()) == 0.0


def resumed(values, state):
    tools.mesh_of(stage=2)
    x, y = tools.data("mlp")
    made = parallel.Pipeline(tools.mlp(), weft.cross_entropy, tools.sgd, x.shape, micro_batches=4)
    own = {n for n, t in made.model.named_tensors().items() if not t._node.abstract}
    made.load(values, state)
    before = made.predict(x)
    return [made.step(x, y)], made.named_tensors(), made.optimizer_state(), (own, before)


def test_checkpoints_are_whole_and_each_stage_holds_its_part(pair):
    _, values, state = tools.one_process("mlp", 4, 2)
    wanted = tools.one_process("mlp", 4, 3)
    found = pair.run(resumed, values, state)
    check(found, (wanted[0][2:], *wanted[1:]), 0.0)
    (first, before), (second, same) = (result[3] for result in found)
    assert min(len(first), len(second)) > 0
    assert first.isdisjoint(second)
    assert first | second == set(values)
    whole = tools.mlp().load(values)
    assert np.allclose(before, whole(tools.data("mlp")[0]).numpy(), atol=1e-6)
    assert np.array_equal(before, same)


# --- messages -------------------------------------------------------------------------------------------------------------------


def both_ways(size):
    mesh = tools.mesh_of(stage=size)
    here = mesh.index("stage")
    links = Neighbours(mesh, "stage", [4 * 1000 * (i + 1) for i in range(size - 1)], slots=2)
    found = []
    for number in range(7):
        if links.to_next is not None:
            links.to_next.send(np.full((10, 100 * (here + 1)), 10 * here + number, np.float32))
        if links.to_previous is not None:  # before it receives: a slot holds a whole message
            links.to_previous.send(np.full((number, here), -here, np.int16))
        if links.from_previous is not None:
            got = links.from_previous.receive((10, 100 * here), np.dtype("float32"))
            found.append((got.min() == got.max(), float(got[0, 0])))
        if links.from_next is not None:
            got = links.from_next.receive((number, here + 1), np.dtype("int16"))
            found.append(got.tolist() == np.full((number, here + 1), -here - 1).tolist())
    return found


def test_messages_arrive_in_order_and_neighbours_may_send_before_they_receive(four):
    found = four.run(both_ways, 4)
    assert found[0] == [True] * 7
    for rank in (1, 2):
        assert found[rank] == [answer for n in range(7) for answer in ((True, 10.0 * (rank - 1) + n), True)]
    assert found[3] == [(True, 20.0 + n) for n in range(7)]


# --- cuts and schedules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "stages"), [([3, 1, 4, 1, 5, 9, 2, 6], 3), ([1, 1, 1, 1], 4), ([5], 1), ([9, 1, 1], 2)]
)
def test_the_largest_stage_is_as_small_as_any_cuts_can_make_it(costs, stages):
    def largest(cuts):
        return max(sum(costs[a:b]) for a, b in zip([0, *cuts], [*cuts, len(costs)], strict=True))

    def every(first, left):
        if left == 0:
            yield ()
        for k in range(first, len(costs)):
            yield from ((k, *rest) for rest in every(k + 1, left - 1) if left)

    assert largest(balanced(costs, stages)) == min(map(largest, every(1, stages - 1)))


def test_networks_are_cut_where_one_value_is_all_that_is_needed():
    network = trace_network(tools.make("gpt"), Type((3, 6), weft.int64))
    assert [p.path for p in network.points] == ["tokens", "dropout", "blocks.0", "blocks.1", "norm"]
    network = trace_network(tools.make("resnet"), Type((3, 1, 8, 8), weft.float32))
    paths = [p.path for p in network.points]
    assert {"layers.0.layers.0", "layers.1"} <= set(paths)
    assert not any(path.startswith("layers.1.") for path in paths), "a residual connection passes by"


def test_measured_times_move_the_cut():
    network = trace_network(
        tools.mlp(), Type((3, 12), weft.float32), {"layers.0": 5.0, "layers.2": 1.0, "layers.8": 1.0}
    )
    assert [p.path for p in cut(network, 2)] == ["layers.0"]
    with pytest.raises(UserError, match="there is no layer 'top'"):
        trace_network(tools.mlp(), Type((3, 12), weft.float32), {"top": 1.0})
    with pytest.raises(UserError, match="can be cut into 2 stages with parameters, 3 are required"):
        cut(trace_network(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), Type((2, 3), weft.float32)), 3)


def test_a_network_is_cut_after_the_layers_that_are_named():
    network = trace_network(tools.mlp(), Type((3, 12), weft.float32))
    for names in (["layers.2"], ["layers.0", "layers.4"]):
        assert cut_names(network, cut_after(network, len(names) + 1, names)) == names
    for stages, names, message in (
        (2, ["layers.3a"], "cannot be cut after 'layers.3a'. It can be cut after layers.0, layers.1, "),
        (3, ["layers.4", "layers.0"], "the 2 layers that end all 3 stages but the last .* in the order of the network"),
        (3, ["layers.4"], "the 2 layers that end all 3 stages but the last"),
        (3, ["layers.0", "layers.1"], "each stage needs parameters to train, and the one after layers.0 has none"),
    ):
        with pytest.raises(UserError, match=message):
            cut_after(network, stages, names)


def test_each_call_of_a_layer_is_a_cut_of_its_own():
    layer = nn.Linear(4, 4)
    network = trace_network(nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(4, 2)), Type((3, 4), weft.float32))
    names = network.point_names
    assert len(set(names)) == len(names) == 3
    assert names[0] + ":2" == names[2]
    assert cut_after(network, 2, names[2:]) == network.points[2:]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_stage_passes_each_micro_batch_forward_and_then_back(name):
    for stages, count in ((1, 1), (2, 5), (4, 2), (4, 8)):
        for stage in range(stages):
            work = schedule(name, stage, stages, count)
            assert len(set(work)) == len(work) == 2 * count
            assert all(work.index(("forward", m)) < work.index(("backward", m)) for m in range(count))
            assert most_stored(work) == (count if name == "gpipe" else min(stages - stage, count))


# --- in one process ---------------------------------------------------------------------------------------------------------------


def test_one_process_is_a_pipeline_of_one_stage():
    parallel.Mesh(stage=1)
    found = tools.pipelined("mlp", 1, 4, 2, "1f1b", (), (("clip_norm", 0.1),))
    check([found], tools.one_process("mlp", 4, 2, clip_norm=0.1), 1e-6)
    assert weft.report.pipeline_svg(found[3]).count("forward of micro-batch") == 4
    assert str(found[3]).startswith("1f1b, 1 stages, 4 micro-batches: ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "zigzag"}, "a schedule is one of gpipe, 1f1b, got 'zigzag'."),
        ({"micro_batches": 0}, "at least 1 micro-batch is required, got 0"),
        ({"micro_batches": 5}, "a multiple of the 5 micro-batches is required, got 12"),
        ({"axis": "stages"}, "is required, got 'stages'"),
    ],
)
def test_settings_are_checked(settings, message):
    parallel.Mesh(stage=1)
    with pytest.raises(UserError, match=message):
        parallel.Pipeline(tools.mlp(), weft.cross_entropy, optim.sgd, (12, 12), **settings)


# --- what goes wrong --------------------------------------------------------------------------------------------------------------


def other_shape():
    mesh = tools.mesh_of(stage=2)
    links = Neighbours(mesh, "stage", [100], slots=2)
    if mesh.index("stage") == 0:
        links.to_next.send(np.zeros(3, np.float32))
        links.from_next.receive((1,), np.dtype("float32"))
    else:
        links.from_previous.receive((4,), np.dtype("float32"))


def test_a_message_of_another_shape_ends_both_processes():
    with pytest.raises(RunError, match="runs another program than the other ranks"):
        parallel.run(other_shape, 2, threads=1)
