"""Profiles of programs: sums, phases, the JSON and projections. Nothing here depends on how long something takes."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.compiler.cpu.roofline import Roof
from weft.errors import Scope, UserError
from weft.insight import Figure, ProgramProfile, machine, measured_machine, profile, project, side_by_side
from weft.insight.bounds import bound_of
from weft.insight.layer_profile import KernelProfile
from weft.insight.projection import USUAL, parse_machines
from weft.insight.published_ratios import published_ratios, published_text
from weft.insight.side_by_side import MachineRow, check_machines, machine_text
from weft.insight.start_cost import StartCost
from weft.knobs import knobs
from weft.runtime import profile as runtime_profile

LAUNCH = 0.9e-6  # seconds, of the GPUs in the table


@pytest.fixture(scope="module")
def trained() -> ProgramProfile:
    """A training step with a convolution, a fused activation, a linear layer and a loss outside of layers."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x, y = weft.asarray(np.ones((2, 1, 8, 8), np.float32)), weft.asarray(np.array([0, 1]))
    optimizer = optim.find("sgd")(model, rate=0.1, momentum=0.9)

    @weft.jit
    def step(x, y):
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    return profile(step, x, y, repeats=1)


def test_layers_phases_and_kernels_have_the_same_sums(trained: ProgramProfile) -> None:
    for name in ("seconds", "flops", "nbytes", "least", "joules"):
        whole = sum(getattr(kernel, name) for kernel in trained.kernels)
        for parts in (trained.layers, trained.by_layer, trained.by_phase.values(), [trained.total]):
            assert math.isclose(sum(getattr(one, name) for one in parts), whole, rel_tol=1e-6), name
    assert list(trained.by_phase) == ["forward", "backward", "update"]
    assert {number for one in trained.layers for number in one.kernels} == {k.number for k in trained.kernels}
    assert {"layers.0", "layers.3", "optimizer"} <= {one.label for one in trained.by_layer}


def test_the_json_has_everything(trained: ProgramProfile) -> None:
    known = json.loads(trained.to_json())
    assert {"where", "seconds", "overhead", "roof", "memory", "joules", "node_nm", "layers", "worst"} <= known.keys()
    assert known["energy_measured"] is False
    assert {"label", "kind", "phases", "seconds", "flops", "nbytes", "joules", "bound"} <= known["layers"][0].keys()
    assert {"number", "name", "seconds", "format", "sources"} <= known["program"]["kernels"][0].keys()
    assert {layer["bound"] for layer in known["layers"]} <= {"compute", "memory", "launch", "waiting"}


def test_threads_that_wait_for_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread of two works on a fifth of the kernel: both together wait for two fifths of their time, and the report says so."""
    roof = Roof(1e12, 1e11)
    assert bound_of("add", 1e-3, 1e6, 1e6, 1e-5, "float32", roof, waiting=0.6).limit == "waiting"
    assert bound_of("add", 1e-3, 1e6, 1e6, 1e-5, "float32", roof, waiting=0.4).limit == "memory"
    for weights, larger in ((0.1, False), (0.9, True)):
        found = bound_of("conv 5x5", 1e-3, 1e6, 1e8, 1e-4, "float32", roof, weights=weights * 1e8)
        assert (found.limit, "larger batch" in found.advice) == ("memory", larger), (
            "which reuses weights, not activations"
        )
    near = bound_of("add", 1e-3, 1e6, 1e8, 0.9e-3, "float32", roof, waiting=0.6)
    assert near.limit == "memory", "what is near the roof does not wait"
    clocked = runtime_profile._IsolatedRun.seconds

    def seconds(run: runtime_profile._IsolatedRun, timed: bool) -> float:
        taken = clocked(run, timed)
        run.stamps[:] = [[[1000, 2000]], [[1000, 1200]]]  # threads, calls, begin and end
        return taken

    monkeypatch.setattr(runtime_profile._IsolatedRun, "seconds", seconds)
    with knobs.set(threads=2):
        (kernel,) = weft.profile(weft.jit(lambda x: x * 2.0), weft.ones((1, 200_000)), repeats=3).kernels
    assert math.isclose(kernel.waiting, 0.4)


def test_the_text_names_the_overhead_of_the_clock_and_what_is_modelled(trained: ProgramProfile) -> None:
    text = str(trained)
    assert "longer than others" in text
    assert "energy: modelled" in text
    assert "phases: forward" in text


def test_time_outside_of_kernels_is_told(trained: ProgramProfile) -> None:
    """On a busy machine most of a call may be waiting for a core, which no kernel's median shows."""
    whole = sum(kernel.seconds for kernel in trained.kernels)
    for plain, is_told in ((whole / 0.9, False), (whole / 0.5, True)):
        text = str(replace(trained, explanation=replace(trained.explanation, plain=plain)))
        assert ("the rest of the time threads wait for a core" in text) is is_told


def test_the_same_layers_in_two_networks_keep_their_names() -> None:
    def labels(width: int) -> list[str]:
        model = nn.Sequential(nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, width))
        networks.append(jitted := weft.jit(model))
        return [one.label for one in profile(jitted, weft.ones((3, 7)), repeats=1).by_layer]

    networks: list[object] = []  # alive, and with them their nodes
    assert labels(3) == ["layers.0", "layers.2"]
    assert labels(5) == ["layers.0", "layers.2"]


# --- projections ------------------------------------------------------------------------------------------------------------------


class FakeRoof:
    """A machine of 1 TFLOP/s and 100 GB/s."""

    bandwidth = 1e11

    def seconds(self, flops: float, nbytes: float, *, itemsize: int = 4) -> float:
        return max(flops * max(1, itemsize // 4) / 1e12, nbytes / self.bandwidth)


def made_up(trained: ProgramProfile, *kernels: KernelProfile) -> ProgramProfile:
    explanation = trained.explanation
    fake = type(explanation)(explanation.rows, explanation.memory, FakeRoof(), "made up", 1)
    return ProgramProfile(kernels, fake, 45)


def kernel(
    flops: float, nbytes: float, efficiency: float, format: str = "float32", live: int = 1 << 40
) -> KernelProfile:
    least = FakeRoof().seconds(flops, nbytes)
    return KernelProfile(
        0, "matmul", least / efficiency, flops, nbytes, least, live, format, 0.0, ((Scope("a", "Linear"), 1.0),), ()
    )


def test_efficiency_carries_over(trained: ProgramProfile) -> None:
    titan = machine("titan-x")
    compute, memory = kernel(1e12, 1e6, 0.5), kernel(1e6, 1e11, 0.25)
    found = project(made_up(trained, compute, memory), titan)
    assert found.kernels[0].seconds == pytest.approx(1e12 / 6.144e12 / 0.5 + LAUNCH)
    assert found.kernels[1].seconds == pytest.approx(1e11 / 336.5e9 / 0.25 + LAUNCH)
    assert found.bounds == ("compute", "memory")
    assert found.seconds == pytest.approx(sum(one.seconds for one in found.layers))
    assert found.joules == pytest.approx(250 * found.seconds)


def test_a_projection_to_the_machine_that_was_measured_is_the_measurement(trained: ProgramProfile) -> None:
    found = made_up(trained, kernel(1e12, 1e6, 0.5), kernel(1e6, 1e11, 0.25), kernel(1e9, 1e9, 0.9))
    same = project(found, measured_machine("same", found))
    assert same.seconds == pytest.approx(sum(one.seconds for one in found.kernels))


def test_more_than_the_roof_of_the_memory_needs_a_cache_there_too(trained: ProgramProfile) -> None:
    """20 MB come from the cache here, five times as fast as memory: they fit into 40 MB of an A100, not into 3 MB of a Titan X."""
    found = made_up(trained, kernel(1e3, 20e6, 5.0, live=20_000_000))
    assert project(found, machine("a100")).seconds == pytest.approx(20e6 / 1555e9 / 5 + LAUNCH)
    assert project(found, machine("titan-x")).seconds == pytest.approx(20e6 / 336.5e9 + LAUNCH)


def test_kernels_that_only_start_cost_a_launch(trained: ProgramProfile) -> None:
    tiny = kernel(10, 40, 1e-3)
    found = project(made_up(trained, tiny, kernel(1e12, 1e6, 0.5)), machine("titan-x"))
    assert found.bounds[0] == "launch"
    assert found.kernels[0].seconds == pytest.approx(LAUNCH, rel=1e-3)


def test_starts_and_little_work_say_nothing_about_the_rate(trained: ProgramProfile) -> None:
    """A scan of 100 steps and a short kernel, on a machine where a start takes 4 microseconds and filling it 3 more."""
    short = replace(kernel(1e3, 4.0, 1.0), seconds=4e-6)
    others = [replace(kernel(1e3, 4.0, 1.0), seconds=7e-6)] * 4
    scan = replace(kernel(1e6, 4.0, 1.0), seconds=404e-6, starts=100)
    large = replace(kernel(1e9, 4.0, 1.0), seconds=2e-3 + 7e-6)  # half of the roof
    found = made_up(trained, short, *others, scan, large)
    start = StartCost.of([found])
    assert (start.launch, start.fill) == (pytest.approx(4e-6, rel=0.02), pytest.approx(3e-6, rel=0.02))
    there = replace(machine("titan-x"), fill_time=Figure(2e-6, "made up"))
    times = [one.seconds for one in project(found, there).kernels]
    assert times[0] == pytest.approx(1e3 / 6.144e12 / 0.5 + LAUNCH + 2e-6, rel=0.01)
    assert times[-2] == pytest.approx(1e6 / 6.144e12 / 0.5 + 100 * LAUNCH + 2e-6, rel=0.01)
    assert times[-1] == pytest.approx(1e9 / 6.144e12 / 0.5 + LAUNCH + 2e-6, rel=0.01)
    slow = made_up(trained, kernel(1e9, 4.0, 0.01))
    assert StartCost.of([slow]) == StartCost(0.0, 0.0), "a tenth of a second is no start"
    alone = project(made_up(trained, short), there).kernels[0]
    assert alone.seconds == pytest.approx(1e3 / 6.144e12 / USUAL + LAUNCH + 2e-6, rel=0.01)


def test_the_time_of_one_short_kernel_is_not_the_launch_overhead(trained: ProgramProfile) -> None:
    """The difference of two measurements may be almost 0; the mean over the steps of a scan is not."""
    noise = [replace(kernel(10, 4.0, 1.0), seconds=2e-8)] * 2
    scan = replace(kernel(1e6, 4.0, 1.0), seconds=404e-6, starts=100)
    start = StartCost.of([made_up(trained, *noise, scan)])
    assert start.launch == pytest.approx(4e-6, rel=0.02)
    assert start.fill == 0.0, "the median kernel is shorter than a launch"


def test_two_kernels_in_a_row_share_their_launch_overheads(trained: ProgramProfile) -> None:
    """A kernel starts while the one before still runs: how their time divides depends on how it is measured, its sum does not."""
    apart, overlapping = (
        made_up(trained, *(replace(kernel(10, 4.0, 1.0), seconds=seconds) for seconds in times))
        for times in ((3e-6, 5e-6), (1e-6, 7e-6))
    )
    for found in (apart, overlapping):
        assert StartCost.of([found]).launch == pytest.approx(4e-6, rel=1e-3)
    alone = made_up(trained, replace(kernel(10, 4.0, 1.0), seconds=3e-6))
    assert StartCost.of([alone]).launch == pytest.approx(3e-6, rel=1e-3)


def test_algorithms_of_fewer_operations_do_not_carry_over_to_machines_without_them(trained: ProgramProfile) -> None:
    winograd = replace(kernel(1e12, 1e6, 1.5), name="conv 3x3 8->8 WINOGRAD, packed once")
    direct = replace(kernel(1e12, 1e6, 0.5), name="conv 3x3 8->8 IMPLICIT_GEMM")
    here = made_up(trained, winograd, direct)
    without = measured_machine("direct", made_up(trained, direct, kernel(1e12, 1e6, 0.5)))
    assert [one.roof for one in project(here, without).kernels] == pytest.approx([0.5, 0.5])
    for found in (here, made_up(trained, kernel(1e12, 1e6, 0.5))):  # has them; no convolution says that it has not
        assert [one.roof for one in project(here, measured_machine("has", found)).kernels] == pytest.approx([1.5, 0.5])


def test_a_similar_convolution_tells_which_algorithm_the_other_machine_takes(trained: ProgramProfile) -> None:
    def conv(name: str, efficiency: float) -> KernelProfile:
        return replace(kernel(1e12, 1e6, efficiency), name=f"conv {name}, packed once")

    there = measured_machine(
        "there",
        made_up(trained, conv("3x3 64->64 WINOGRAD", 2.0), conv("3x3 512->512 DIRECT", 0.6), kernel(1e12, 1e6, 0.8)),
    )
    expected = {
        "3x3 64->128 DIRECT": 2.0,  # there it would be fast
        "3x3 96->128 WINOGRAD": 0.4,  # as here
        "3x3 512->384 WINOGRAD": 0.6,  # there it would be direct
        "3x3 512->384 DIRECT": 0.4,
        "3x3 8->16 DIRECT": 0.4,  # nothing similar: too few channels, another stride, another filter
        "3x3 64->64 stride 2x2 DIRECT": 0.4,
        "5x5 64->64 FFT_TILED": 0.4,
    }
    found = project(made_up(trained, *(conv(name, 0.4) for name in expected)), there)
    assert [one.roof for one in found.kernels] == pytest.approx(list(expected.values()))


def test_launch_bound_kernels_get_the_usual_efficiency_of_the_other_machine(trained: ProgramProfile) -> None:
    short = [replace(kernel(1e3, 4.0, 1.0), seconds=4e-6)] * 4
    here = made_up(trained, *short, kernel(1e12, 1e6, 0.2))
    there = measured_machine("there", made_up(trained, kernel(1e12, 1e6, 0.8), kernel(1e12, 1e6, 0.8)))
    assert [one.roof for one in project(here, there).kernels] == pytest.approx([0.8] * 4 + [0.2])


def test_another_format_has_another_peak_and_fewer_bytes(trained: ProgramProfile) -> None:
    found = made_up(trained, kernel(1e12, 1e6, 0.5), kernel(1e6, 1e11, 0.5))
    single, half = (project(found, machine("tegra-x1"), format) for format in (None, "float16"))
    assert half.kernels[0].seconds == pytest.approx(single.kernels[0].seconds / 2)
    assert half.kernels[1].seconds == pytest.approx(single.kernels[1].seconds / 2)


def test_bytes_are_projected_in_the_peak_of_int8(trained: ProgramProfile) -> None:
    found = made_up(trained, kernel(1e12, 1e6, 0.5, "uint8"), kernel(1e6, 1e11, 0.5, "uint8"))
    tesla = machine("p40")
    for format in (None, "int8"):  # a format is of floats: bytes stay as they are
        made = project(found, tesla, format)
        assert made.kernels[0].seconds == pytest.approx(1e12 / tesla.peak["int8"].value / 0.5, rel=1e-3)
        assert made.kernels[1].nbytes == 1e11
    wide = made_up(trained, kernel(1e12, 1e6, 0.5, "bfloat16"))
    assert project(wide, machine("tegra-x1"), "float16").kernels[0].seconds == pytest.approx(2.0, rel=0.1)


def test_dot_products_of_bytes_have_their_own_roof(trained: ProgramProfile) -> None:
    roof = Roof(1e12, 1e11, byte_rate=4.0)
    assert [roof.seconds(1e12, 0, itemsize=size) for size in (1, 2, 4, 8)] == [0.25, 1.0, 1.0, 2.0]
    assert "4 times as many operations on bytes, modelled" in str(roof)
    explanation = replace(trained.explanation, roof=roof)
    there = measured_machine("there", replace(trained, explanation=explanation))
    assert float(there.peak["int8"]) == pytest.approx(4e12)
    assert "int8" not in measured_machine("there", made_up(trained, kernel(1e12, 1e6, 0.5))).peak


def test_machines_side_by_side(trained: ProgramProfile) -> None:
    wanted = parse_machines("titan-x, tegra-x1:float16 ,here")
    rows = side_by_side(trained, 2, wanted)
    assert [(row.machine, row.how) for row in rows] == [
        ("titan-x", "projected"),
        ("tegra-x1", "projected"),
        ("here", "measured"),
    ]
    assert rows[0].per_second_per_watt == pytest.approx(rows[0].per_second / 250)
    assert rows[1].format == "float16"
    assert rows[2].seconds == trained.seconds
    text = machine_text(rows)
    assert "projected" in text
    assert "250 limit" in text
    assert "999" in text


def test_projected_ratios_beside_those_that_were_published() -> None:
    """NVIDIA 2015, AlexNet: a Titan X beats a Xeon in efficiency, and a Tegra X1 in float16 beats a Core i7 by 11.5 times."""

    def row(name: str, seconds: float, watts: float, format: str = "float32", batch: int = 128) -> MachineRow:
        return MachineRow(name, name, "projected", format, batch, seconds, "compute", watts, "limit")

    here = replace(row("titan-x", 1.0, 1.0), how="measured")
    rows = [row("xeon-e5-2698-v3", 1.0, 100.0), row("core-i7-6700k", 1.0, 50.0), row("titan-x", 0.2, 200.0), row("tegra-x1", 2.0, 5.0, "float16"), here]  # fmt: skip
    found = {one.machines: one for one in published_ratios(rows, "alexnet")}
    assert len(found) == 6, "each pair once"
    titan = found["titan-x", "xeon-e5-2698-v3"]
    assert (titan.speed, titan.efficiency) == (pytest.approx(3216 / 476), pytest.approx(3216 / 476 / (227 / 149)))
    assert (titan.projected_speed, titan.projected_efficiency) == (pytest.approx(5), pytest.approx(2.5))
    tegra = found["tegra-x1:float16", "core-i7-6700k"]
    assert tegra.efficiency == pytest.approx(11.5, rel=0.02)
    assert tegra.projected_efficiency == pytest.approx(5)
    text = published_text([titan], "alexnet", 128)
    [line] = [line for line in text.splitlines() if line.startswith("titan-x")]
    assert line.split() == [
        "titan-x",
        "/",
        "xeon-e5-2698-v3",
        "6.8x",
        "5.0x",
        "-26%",
        "4.4x",
        "2.5x",
        "-44%",
        "-26%",
        "-24%",
    ]
    assert "published for alexnet at batch 128: NVIDIA" in text
    assert published_ratios(rows, "lenet5") == ()
    assert published_ratios([replace(one, batch=3) for one in rows], "alexnet") == ()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("titan-y", "there is no machine 'titan-y'. Did you mean titan-x"),
        ("titan-x:float12", "a format is one of"),
        ("tpu-v1", "tpu-v1 computes in int8, got float32. Choose one of these (tpu-v1:int8)"),
        ("here:float16", "here is measured in the format of the network"),
    ],
)
def test_machines_that_cannot_be(names: str, message: str) -> None:
    with pytest.raises(UserError, match="machine") as error:
        check_machines(parse_machines(names))
    assert message in str(error.value)
