"""Plans of many ranks: the arithmetic of the model against cases computed by hand, and memory against planned programs."""

import itertools
import json
from dataclasses import replace

import pytest

import weft
from benchmarks import plan as benchmark
from rank_tools import mesh_of
from weft import nn, optim, parallel
from weft.cli import main
from weft.errors import UserError
from weft.insight import memory_timeline
from weft.plan import (
    AlphaBeta,
    LayerWork,
    MeasuredCluster,
    NodeLinks,
    ParallelSplit,
    RankGroup,
    RankMeasures,
    StepWork,
    cluster,
    clusters,
    here,
    measured_work,
    predict,
    published_checks,
    scaling_plan,
    scaling_svg,
)
from weft.plan.calibration import measured_by
from weft.plan.clusters import published_scaling
from weft.plan.plan_text import checks_text
from weft.plan.rank_measures import AloneMeasures, RankBenchmarks
from weft.plan.scaling_plan import family
from weft.plan.splits import splits
from weft.plan.step_time import buckets, cut
from weft.plan.step_work import BatchLine

LINKS = NodeLinks(AlphaBeta(1e-6, 10e9), AlphaBeta(10e-6, 1e9))


def test_all_reduce_costs_what_its_formula_says():
    eight = RankGroup(8, per_node=8)
    assert LINKS.half_ring(eight, 8e6) == pytest.approx(7 * (1e-6 + 1e6 / 10e9))
    assert LINKS._tree(eight, 8e6) == pytest.approx(2 * (3e-6 + 8e6 / 10e9))
    two_nodes = RankGroup(8, per_node=4)
    inside = 2 * 3 * (1e-6 + 2e6 / 10e9)
    assert LINKS._hierarchical(two_nodes, 8e6) == pytest.approx(inside + 2 * (10e-6 + 4e6 / 1e9))
    assert LINKS.half_ring(two_nodes, 8e6) == pytest.approx(6 * 1e-6 + 10e-6 + 7 * 1e6 / 1e9)


def test_small_messages_take_the_tree_and_large_ones_a_ring_or_the_hierarchy():
    many = RankGroup(64, per_node=8)
    assert LINKS.all_reduce(many, 100).algorithm == "tree"
    assert LINKS.all_reduce(many, 1e9).algorithm in ("ring", "hierarchical")
    assert LINKS.all_reduce(RankGroup(1, 1), 1e9).seconds == 0
    assert LINKS.half_all_reduce(RankGroup(1, 1), 1e9) == 0


def test_groups_that_share_a_network_have_a_part_of_it():
    alone, shared = RankGroup(4, per_node=1), RankGroup(4, per_node=1, sharing=4)
    assert LINKS.half_ring(shared, 4e9) == pytest.approx(4 * LINKS.half_ring(alone, 4e9), rel=1e-3)


def layer(name, forward, backward, parameters, activations=0.0, live=0.0, output=0.0, fixed=0.0):
    lines = BatchLine(fixed, forward), BatchLine(fixed, backward)
    sizes = ((output, output),) if parameters else ()
    return LayerWork(name, *lines, parameters, BatchLine(0.0, activations), BatchLine(0.0, live), output, sizes)


WORK = StepWork(
    (
        layer("a", 1e-3, 2e-3, 4e6, activations=1e5, live=1e5, output=1e4),
        layer("b", 1e-3, 2e-3, 40e6, activations=2e5, live=3e5, output=1e4),
        layer("c", 2e-3, 4e-3, 16e6, activations=4e5, live=7e5, output=1e4),
    ),
    update=1e-3,
    optimizer_state=60e6,
)


class FakeCluster:
    """Times that can be added up by hand: a byte takes a nanosecond, whoever else there is."""

    name = title = "fake"
    ranks_per_node = 4

    def __init__(self, overlap=True, memory=None):
        self.overlap, self.memory = overlap, memory

    def most_ranks(self):
        return None

    def rank_memory(self, ranks):
        return self.memory

    def work(self, measured, ranks, format=None):
        return measured

    def copy_seconds(self, nbytes, ranks):
        return 0.0

    def all_reduce(self, group, nbytes):
        return weft.plan.CollectiveCost(0.0 if group.size == 1 else nbytes * 1e-9, "fake")

    def half_all_reduce(self, group, nbytes):
        return self.all_reduce(group, nbytes).seconds / 2

    def send(self, nbytes, crosses_nodes, sharing=1):
        return nbytes * 1e-9


def predicted(split, batch=8, overlap=True, bucket=25e6):
    return predict(WORK, WORK, split, FakeCluster(overlap), batch, bucket)


def test_one_rank_takes_the_time_of_its_work():
    row = predicted(ParallelSplit())
    assert row.seconds == pytest.approx(8 * 12e-3 + 1e-3)
    assert row.efficiency == pytest.approx(1)
    assert row.exposed == 0


def test_without_overlap_all_communication_is_exposed():
    row = predicted(ParallelSplit(data=4), overlap=False)
    assert row.exposed == row.communication == pytest.approx(60e-3)
    assert row.seconds == pytest.approx(97e-3 + 60e-3)


def test_buckets_hide_behind_the_rest_of_the_backward_pass():
    """c is ready after 32 ms; b fills a bucket of 25 MB after 48 ms (c and a part of b), the rest of b another; a comes after 64 ms."""
    row = predicted(ParallelSplit(data=4), bucket=25e6)
    made = [(32e-3, 16e6), (16e-3, 40e6), (16e-3, 4e6)]
    assert buckets(made, 25e6) == [(48e-3, 25e6), (48e-3, 25e6), (64e-3, 10e6)]
    assert row.communication == pytest.approx(60e-3)
    end = max(48e-3 + 50e-3, 64e-3) + 10e-3
    assert row.exposed == pytest.approx(end - 64e-3)


def test_zero_gathers_parameters_and_shares_update_and_memory():
    plain, one, two = (predicted(ParallelSplit(data=4, zero=zero), overlap=False) for zero in (0, 1, 2))
    assert one.communication == pytest.approx(plain.communication)  # half for gradients, half for parameters
    assert one.update == pytest.approx(plain.update / 4)
    assert one.memory.optimizer_state == pytest.approx(15e6)
    assert plain.memory.optimizer_state == pytest.approx(60e6)
    assert two.memory.gradients < one.memory.gradients == plain.memory.gradients
    assert two.memory.total < one.memory.total < plain.memory.total


def test_a_pipeline_waits_for_its_bubble():
    """Stages a+b and c are equal: 4 micro-batches of 4 examples, 24 ms each; 5 rounds."""
    row = predicted(ParallelSplit(pipeline=2, micro_batches=4))
    assert [[one.name for one in stage] for stage in cut(WORK.layers, 2, 1)] == [["a", "b"], ["c"]]
    assert row.compute == pytest.approx(4 * 24e-3)
    assert row.waiting == pytest.approx(24e-3)  # (p - 1) / (m + p - 1) of 120 ms
    assert row.exposed == pytest.approx(4 * 2 * 4 * 1e4 * 1e-9)


def test_stages_have_at_least_a_layer_each():
    assert [len(stage) for stage in cut(WORK.layers, 3, 1)] == [1, 1, 1]
    uneven = [layer(str(i), t, 0.0, 1.0) for i, t in enumerate((9.0, 1.0, 1.0, 1.0))]
    assert [len(stage) for stage in cut(uneven, 3, 1)] in ([1, 1, 2], [1, 2, 1])


def test_a_split_of_layers_exchanges_activations_and_fewer_gradients():
    row = predicted(ParallelSplit(data=2, model=2), overlap=False)
    exchanged = 3 * (0.5 + 1) * 8 * 2 * 1e4 * 1e-9  # three layers: outputs gathered, derivatives of inputs summed
    assert row.communication == pytest.approx(exchanged + 30e-3)
    assert row.compute == pytest.approx(8 * 12e-3)
    assert row.memory.parameters == pytest.approx(30e6)


def test_what_does_not_shrink_with_the_batch_is_paid_for_each_micro_batch():
    slow = StepWork((layer("a", 1e-3, 0.0, 1.0, fixed=1e-3), layer("b", 1e-3, 0.0, 1.0, fixed=1e-3)), 0.0, 0.0)
    few, many = (
        predict(slow, slow, ParallelSplit(pipeline=2, micro_batches=m), FakeCluster(), 8).compute for m in (2, 16)
    )
    assert many > few


def test_gradients_come_while_activations_go():
    few = predicted(ParallelSplit(data=2), overlap=False).memory
    # at c: 8 * 7e5; at b: 8 * 3e5 and 16e6; at a: 8e5 and 56e6; at the end 60e6, packed as one buffer
    assert (few.activations, few.gradients, few.buffers) == (0.0, 60e6, 60e6)
    many = predicted(ParallelSplit(data=2), batch=400, overlap=False).memory
    assert (many.activations, many.gradients, many.buffers) == (400 * 7e5, 0.0, 0.0)
    between = predicted(ParallelSplit(data=2), batch=200, bucket=1e6).memory
    assert (between.activations, between.gradients, between.buffers) == (200 * 7e5, 0.0, 1e6)


def test_a_stage_keeps_the_activations_of_the_micro_batches_behind_it():
    memory = predicted(ParallelSplit(pipeline=2, micro_batches=4)).memory
    # the first stage is a and b: two micro-batches of 4 examples, and all of its gradients
    assert (memory.parameters, memory.gradients) == (44e6, 44e6)
    assert memory.activations == pytest.approx(4 * 3e5 + 4 * 3e5)


def test_efficiency_falls_and_throughput_grows_with_ranks():
    plan = scaling_plan(WORK, cluster("dgx1-v100"), 8, [1, 8, 64, 512, 4096])
    found = [next(row for row in plan.of(n) if family(row.split) == "data") for n in plan.ranks]
    assert all(a.efficiency >= b.efficiency for a, b in itertools.pairwise(found))
    assert all(a.per_second < b.per_second for a, b in itertools.pairwise(found))
    assert found[0].efficiency == 1


def test_a_faster_network_is_not_slower():
    rows = [predict(WORK, WORK, ParallelSplit(data=64), cluster(name), 8) for name in ("p100-roce-25", "dgx1-p100")]
    assert rows[1].seconds < rows[0].seconds


def test_memory_decides_before_speed():
    wide = scaling_plan(WORK, FakeCluster(), 8, [8])
    fastest = wide.best(8)
    assert fastest.seconds == pytest.approx(min(row.seconds for row in wide.rows), rel=0.02)
    tight = scaling_plan(WORK, FakeCluster(memory=0.99 * fastest.memory.total), 8, [8])
    assert tight.fits(tight.best(8))
    assert tight.best(8).split != fastest.split
    assert "too much" in str(scaling_plan(WORK, FakeCluster(memory=60e6), 8, [8]))
    none = scaling_plan(WORK, FakeCluster(memory=1.0), 8, [8])
    assert "no split fits" in str(none)


def test_a_given_total_is_shared_by_the_ranks():
    plan = scaling_plan(WORK, FakeCluster(), 0, [1, 4], total=32)
    assert [plan.best(n).batch for n in (1, 4)] == [32, 32]
    with pytest.raises(UserError, match="at least one example per rank is required, got 0.5 for 64 ranks"):
        scaling_plan(WORK, FakeCluster(), 0, [64], total=32)
    with pytest.raises(UserError, match="got 0.5 for 64 ranks"):
        scaling_plan(WORK, FakeCluster(), 0, [1, 64], total=32)


def test_splits_multiply_to_the_ranks():
    found = list(splits(24, per_node=8, stages=3, batch=4))
    assert all(split.ranks == 24 for split in found)
    assert len(found) == len(set(found))
    assert ParallelSplit(data=3, model=8) in found
    assert max(split.model for split in found) <= 8


# --- clusters ---------------------------------------------------------------------------------------------------------------------------


def test_every_figure_of_the_table_has_a_source():
    for one in clusters().values():
        assert one.rank.peak_for("float32").value > 0
        for figure in (one.inside_latency, one.inside_bandwidth, one.between_latency, one.between_bandwidth):
            assert len(figure.source) > 20


def test_a_file_adds_clusters_and_its_errors_name_the_line(tmp_path):
    file = tmp_path / "ours.yaml"
    text = "clusters:\n  ours:\n    machine: v100\n    ranks_per_node: 2\n    inside: {LINK}\n    between: {LINK}\n"
    link = "{latency: {value: 1e-6, source: our own test}, bandwidth: {value: 1e9, source: our own test}}"
    file.write_text(text.replace("{LINK}", link))
    assert clusters(file)["ours"].ranks_per_node == 2
    file.write_text(text.replace("{LINK}", link.replace("1e9", "0")))
    with pytest.raises(UserError, match="line 5: clusters.ours.inside.bandwidth requires a number above 0"):
        clusters(file)
    with pytest.raises(UserError, match="there is no cluster 'dgx-h10'. Did you mean dgx-h100"):
        cluster("dgx-h10")


def test_published_efficiencies_are_predicted_in_their_order():
    checks = {check.published.network: check for check in published_checks()}
    assert set(checks) == {row.network for row in published_scaling()}
    for check in checks.values():
        assert abs(check.predicted.memory.parameters / 4 / check.published.parameters - 1) < 0.15
        assert 0 <= check.difference < 0.2, "the model leaves out waiting, so it is optimistic"
    assert checks["vgg16"].predicted.efficiency < checks["resnet101"].predicted.efficiency
    assert "68%" in checks_text(list(checks.values()))


# --- this machine -----------------------------------------------------------------------------------------------------------------------


def machine_with(products=1.5, convolutions=1.5, memory=2.0):
    one = RankMeasures((), 1e-3, 2e-3, ((1e6, 1e-4), (1e8, 1e-2)))
    two = RankMeasures(
        ((1e3, 1e-6), (1e6, 1e-3), (1e8, 1e-1)), products * 1e-3 + 1e-6, convolutions * 2e-3 + 1e-6,
        ((1e6, memory * 1e-4 + 1e-6), (1e8, memory * 1e-2 + 1e-6)),
    )  # fmt: skip
    return MeasuredCluster({1: one, 2: two}, "a test", 2, 8e9)


def test_measured_all_reduces_are_interpolated():
    found = machine_with(convolutions=1.25)
    assert found.all_reduce(RankGroup(2, 2), 1e6).seconds == pytest.approx(1e-3)
    assert found.all_reduce(RankGroup(2, 2), 1e7).seconds == pytest.approx(1e-2)
    assert found.all_reduce(RankGroup(2, 2), 1e9).seconds == pytest.approx(1)
    assert found.all_reduce(RankGroup(1, 1), 1e9).seconds == 0
    assert found.compute_factor(1) == 1
    assert found.compute_factor(2) == pytest.approx(1.5)
    assert found.convolution_factor(1) == 1
    assert found.convolution_factor(2) == pytest.approx(1.25)
    assert found.memory_factor(2, 1e7) == pytest.approx(2.0, rel=0.01)


def test_more_ranks_are_not_faster_than_fewer():
    beside = AloneMeasures(1e-3, 2e-3, ((1e6, 1e-4),))
    slowdowns = {2: 1.44, 4: 1.0, 8: 1.44, 16: 2.0}
    measures = {
        n: RankMeasures((), slow * 1e-3, slow * 2e-3, ((1e6, slow * 1e-4),), beside) for n, slow in slowdowns.items()
    }
    found = MeasuredCluster(measures, "a test", 16, 8e9)
    assert [found.compute_factor(n) for n in (1, 2, 4, 8, 16)] == pytest.approx([1, 1.2, 1.2, 1.44, 2.0])
    assert [found.convolution_factor(n) for n in (4, 32)] == pytest.approx([1.2, 2.0])
    assert [found.memory_factor(n, 1e6) for n in (2, 4, 32)] == pytest.approx([1.2, 1.2, 2.0])


@pytest.mark.slow
def test_one_rank_alone_is_measured_in_turns_with_all(shared_pools):
    found = measured_by(shared_pools[2], 2, [1 << 10], [1 << 17], rounds=2)
    assert found.alone is not None
    assert min(found.alone.products, found.products, found.alone.sweeps[0][1], found.all_reduce[0][1]) > 0
    assert min(found.alone.convolutions, found.convolutions) > 0
    assert [[size for size, _ in rows] for rows in (found.sweeps, found.alone.sweeps)] == [[1 << 17], [1 << 17]]


def test_benchmarks_are_measured_round_by_round(monkeypatch):
    benchmarks = RankBenchmarks(1, [], [1 << 17])
    windows = {name: iter(range(1, 10)) for name in ("products", "convolutions")}
    for name, seconds in windows.items():
        one = getattr(benchmarks._together, name)
        monkeypatch.setattr(one, "_run", lambda calls, seconds=seconds: float(next(seconds)))
    for _ in range(5):
        benchmarks.add()
    found = benchmarks.measures()
    assert (found.products, found.convolutions, found.alone) == (2.0, 2.0, None)
    assert [size for size, _ in found.sweeps] == [1 << 17]
    for _ in range(3):
        benchmarks.add()
    assert benchmarks.measures(last=5).products == benchmarks.measures(last=5).convolutions == 5.0


@pytest.mark.parametrize("windows", [[1.0], [1.0, 10.0], [1.0, 2.0, 40.0]])
def test_a_benchmark_takes_no_less_than_its_fastest_window(windows):
    products = RankBenchmarks(1, [], [])._together.products
    products.found = windows
    assert 1.0 <= products.seconds() <= windows[-1]


def test_the_convolutions_of_the_benchmark_are_convolutions():
    """Both are computed whole, though one element is read; and products are none."""
    benchmarks = RankBenchmarks(1, [], [])._together
    images = benchmarks.convolutions.args[0].shape[0]
    kernels = weft.profile(benchmarks.convolutions.function, *benchmarks.convolutions.args, repeats=1).kernels
    flops = 2 * images * 16 * 16 * 128 * 128 * 9
    assert [kernel.flops for kernel in kernels if kernel.is_convolution] == [flops, flops]
    products = weft.profile(benchmarks.products.function, *benchmarks.products.args, repeats=1).kernels
    assert not any(kernel.is_convolution for kernel in products)


def test_a_line_gives_latency_and_bandwidth():
    line = RankMeasures(tuple((s, 5e-6 + s / 2e9) for s in (1e3, 1e5, 1e7)), 0.0, 0.0, ()).line
    assert (line.latency, line.bandwidth) == (pytest.approx(5e-6), pytest.approx(2e9))
    noisy = RankMeasures(((1e3, 1e-6), (1e5, 1e-3), (1e6, 2e-3)), 0.0, 0.0, ()).line
    assert (noisy.latency, noisy.bandwidth) == (pytest.approx(1e-6), pytest.approx(5e8))


def test_what_was_measured_is_kept(tmp_path):
    path = machine_with().save(tmp_path / "here.json")
    assert here(path) == machine_with()
    with pytest.raises(UserError, match="weft plan --measure"):
        here(tmp_path / "nothing.json")
    path.write_text(json.dumps(machine_with().to_dict() | {"format": 2}))
    told = r"a calibration of format 3 is required, .* has format 2\. Run weft plan --measure again\."
    with pytest.raises(UserError, match=told):
        here(path)
    with pytest.raises(UserError, match="this machine has 2 cores, .* got ranks=4"):
        scaling_plan(WORK, machine_with(), 8, [4])


# --- real programs ------------------------------------------------------------------------------------------------------------------------


def small_model(size=8):
    features = 8 * (size - 2) ** 2
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 4)
    )


def small_step(batch, size=8):
    model = small_model(size)
    optimizer = optim.sgd(model, rate=0.1, momentum=0.9)

    def train(x):
        loss = (model(x) ** 2).mean()
        optimizer.minimize(loss)
        return loss

    return weft.jit(train), (weft.ones((batch, 3, size, size)),)


@pytest.fixture(scope="module")
def small_work():
    return measured_work(small_step, 16, repeats=2)


def test_the_work_of_a_step_is_that_of_its_layers(small_work):
    sizes = [4 * (3 * 8 * 9 + 8), 4 * (288 * 64 + 64), 4 * (64 * 4 + 4)]
    assert [one.parameters for one in small_work.layers if one.name.startswith("layers") and one.parameters] == sizes
    assert [one.output for one in small_work.layers[:2]] == [4 * 8 * 36, 4 * 8 * 36]
    assert small_work.optimizer_state == pytest.approx(sum(sizes), rel=0.01)
    measured = small_work.profiles[0][1]
    counted = sum(one.seconds for one in measured.layers)
    assert small_work.seconds(16) == pytest.approx(counted, rel=1e-6)


@pytest.mark.slow
def test_memory_is_that_of_the_planned_program(small_work):
    """One rank: persistent memory and arena as the compiler planned them."""
    row = predict(small_work, small_work, ParallelSplit(), cluster("dgx1-v100"), 16)
    planned = memory_timeline(*_flat(small_step(16)))
    assert row.memory.total == pytest.approx(planned.allocated, rel=0.01)


def _flat(step):
    return step[0], *step[1]


SIZE = 16  # of images: activations take more memory than what algorithms need beside them, which does not grow steadily


def planned_bytes(batch):
    """Runs in each of two ranks: what the compiler planned for a data parallel step."""
    mesh_of(data=2)
    model, x = small_model(SIZE), weft.ones((batch, 3, SIZE, SIZE))
    model(x)
    weights = model.parameters()
    moments = [weft.parameter(0 * w) for w in weights]

    def train(x):
        made = weft.gradients((model(x) ** 2).mean(), weights)
        total = parallel.all_reduce(weft.concat([g.reshape(-1) for g in made]), "data")
        first = 0
        for w, moment in zip(weights, moments, strict=True):
            moment.assign(0.9 * moment + total[first : first + w.size].reshape(w.shape))
            w.assign(w - 0.1 * moment)
            first += w.size
        return total[0]

    return memory_timeline(weft.jit(train), x).allocated


@pytest.mark.parametrize("batch", [16, 8])  # the batch that was profiled, and one between it and its quarter
@pytest.mark.slow
def test_memory_of_two_ranks_is_that_of_the_planned_data_parallel_program(shared_pools, batch):
    work = measured_work(lambda batch: small_step(batch, SIZE), 16, repeats=2)
    made = predict(work, work, ParallelSplit(data=2), FakeCluster(overlap=False), batch)
    assert made.memory.total == pytest.approx(shared_pools[2].run(planned_bytes, batch)[0], rel=0.03)


def test_projection_to_a_faster_machine_is_faster(small_work):
    slow, fast = (cluster(name).work(small_work, 1).seconds(16) for name in ("dgx1-p100", "dgx-h100"))
    assert fast <= slow
    assert small_work.on(cluster("dgx1-p100").rank).parameters == small_work.parameters


def test_ranks_beside_each_other_are_slower(small_work):
    found = machine_with(products=1.5, convolutions=1.5, memory=2.0)
    ratio = found.work(small_work, 2).seconds(16) / small_work.seconds(16)
    assert 1.5 <= ratio <= 2.0
    with pytest.raises(UserError, match="format of the network"):
        found.work(small_work, 2, "float16")


def test_convolutions_are_slowed_down_like_convolutions_and_others_like_products(small_work):
    """Without a slowdown of memory, that of the kernel's own class of compute is the only one."""

    def slower(name, **slowdowns):
        found = machine_with(**slowdowns, memory=1.0).work(small_work, 2)
        now, before = ({layer.name: layer.forward.at(16) for layer in work.layers} for work in (found, small_work))
        return now[name] / before[name]

    only_products, only_convolutions = ({"products": x, "convolutions": 3 - x} for x in (2.0, 1.0))
    assert slower("layers.0", **only_products) == pytest.approx(1, abs=0.02)
    assert slower("layers.0", **only_convolutions) > 1.05
    assert slower("layers.3", **only_products) > 1.05
    assert slower("layers.3", **only_convolutions) == pytest.approx(1, abs=0.02)
    kernels = small_work.profiles[0][1].kernels
    assert {k.name.split("x")[0] for k in kernels if k.is_convolution} == {"conv 3", "conv filter gradient 3"}


def test_the_benchmark_predicts_the_steps_in_its_file_again(small_work, tmp_path):
    """From the calibration of each row, and the profile: with another calibration, another prediction follows."""
    alone, two = (machine_with(convolutions=1.25).measures[n] for n in (1, 2))
    measures = replace(two, alone=AloneMeasures(alone.products, alone.convolutions, alone.sweeps))
    slower = replace(measures, convolutions=2 * measures.convolutions)
    turns = [benchmark.Turns("small", 2, [[1e-3, 3e-3]], [[2e-3], [2.5e-3]], one) for one in (measures, slower)]
    rows = [benchmark.row(small_work, one, 16) for one in turns]
    assert 1e-3 < rows[0].predicted < rows[1].predicted
    settings = {"save": f"{tmp_path}/found.json", "batch": "16"}
    benchmark.save(settings, machine_with(), {"small": small_work}, rows)
    here, again = benchmark.stored(tmp_path / "found.json")
    assert here == machine_with()
    assert [one.turns for one in again] == turns
    assert [one.predicted for one in again] == pytest.approx([one.predicted for one in rows], rel=1e-9)
    assert "convolutions 1.50x" in benchmark.text(here, again)
    assert {row["ranks"] for row in json.loads((tmp_path / "found.json").read_text())["rows"]} == {2}


def test_the_picture_has_a_line_for_each_family(small_work):
    plan = scaling_plan(small_work, cluster("dgx-h100"), 16, [1, 8, 64], subject="small")
    picture = scaling_svg(plan)
    assert picture.count("<path") >= 3
    assert "data zero:2" in picture
    assert "64" in picture
    told = json.loads(json.dumps(plan.to_dict()))
    assert told["best"]["1"] == "data:1"
    assert {row["ranks"] for row in told["rows"]} == {1, 8, 64}


def test_the_command_plans_and_draws(tmp_path, capsys):
    machine_with().save(tmp_path / "here.json")
    words = ["plan", "lenet5", "machines=here,dgx-h100", "rate=1000", f"calibration={tmp_path}/here.json"]
    assert main([*words, "json=true", f"plot={tmp_path}/plan.svg"]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert [one["cluster"] for one in plans] == ["here", "dgx-h100"]
    assert (tmp_path / "plan.svg").exists()
    assert (tmp_path / "plan-dgx-h100.svg").exists()
    assert main(["plan", "--published"]) == 0
    assert "resnet101" in capsys.readouterr().out
    assert main(["plan"]) == 2
    assert "a network is required" in capsys.readouterr().err
    assert main(["plan", "lenet5", "machines=dgx"]) == 2
    assert "a cluster is one of here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lenet5", "rate=10", "format=nosuch", "machines=dgx-h100"], "format=nosuch needs a profile"),
        (["lenet5", "format=float16"], "format=float16 needs a described cluster, got machines=here"),
        (["lenet5", "rate=10", "batch=2", "total=8", "machines=dgx-h100"], "one of batch= (per rank) and total="),
        (["lenet55", "calibration=none.json"], "lenet55"),
    ],
)
def test_settings_without_effect_are_rejected(words, message, capsys):
    assert main(["plan", *words]) == 2
    assert message in capsys.readouterr().err


def test_networks_that_read_tokens_are_planned_by_their_rate(capsys):
    assert main(["plan", "gpt2", "rate=10", "length=16", "machines=dgx-h100", "ranks=2", "batch=1"]) == 0
    assert "; 1 example per rank" in capsys.readouterr().out
