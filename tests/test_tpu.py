"""The simulated TPU: values to the bit of the CPU's, cycles that agree with the array cell by cell, and the published networks."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import compress, nn, tpu
from weft.cli import main
from weft.errors import UserError
from weft.graph import Graph
from weft.runtime.device import Executable
from weft.tpu.animation import animate_systolic
from weft.tpu.instructions import Activate, MatrixMultiply, ReadHostMemory, ReadWeights, WriteHostMemory
from weft.tpu.lowering import lowered
from weft.tpu.machine import TpuMachine
from weft.tpu.products import convolution_sums, exact_product
from weft.tpu.stages import HostStage, MatrixStage, Stage, TpuValue, VectorStage
from weft.tpu.systolic import systolic_product
from weft.tpu.timing import ACTIVATION, COMPUTE, HAZARD, HOST, WEIGHT_SHIFT, WEIGHT_WAIT, Timing, timed

RNG = np.random.default_rng(0)
FAST_MEMORY = {"weight_bandwidth": 1e18, "host_bandwidth": 1e18}
SMALL = TpuMachine(
    rows=16, columns=8, accumulator_bytes=2048
)  # every layer takes several tiles, and rows several parts


class Residual(nn.Module):
    """Padding, a stride, odd sizes, a depthwise convolution, two products that meet in an addition, pooling and averages."""

    def __init__(self) -> None:
        self.first = nn.Conv2d(3, 10, 3, stride=2, padding=1, activation="relu")
        self.second = nn.Conv2d(10, 10, 3, padding=1, groups=10)
        self.third = nn.Conv2d(10, 10, 1)
        self.pool, self.last = nn.MaxPool2d(2), nn.Linear(10, 5)

    def forward(self, x: Any) -> Any:
        x = self.pool(self.first(x))
        x = weft.relu(self.third(weft.relu(self.second(x))) + x)
        return weft.softmax(self.last(x.mean((2, 3)))) + x.mean(1).mean((1, 2))[:, None]


def quantized(model: nn.Module, *shape: int) -> tuple[nn.Module, np.ndarray]:
    x = RNG.normal(size=shape).astype(np.float32)
    model.eval()(x)
    compress.int8(model, x)
    return compress.to_int8(model), x


@pytest.fixture(scope="module")
def mlp() -> tuple[nn.Module, np.ndarray]:
    weft.seed(0)
    return quantized(nn.Sequential(nn.Linear(37, 21), nn.ReLU(), nn.Linear(21, 9)), 7, 37)


@pytest.fixture(scope="module")
def cnn() -> tuple[nn.Module, np.ndarray]:
    weft.seed(0)
    return quantized(Residual(), 5, 3, 13, 11)


@pytest.fixture(params=["tpu", "tpu-test"])
def device(request: Any) -> Iterator[str]:
    tpu.register_machine("tpu-test", SMALL)
    with weft.knobs.set(device=request.param):
        yield request.param


def executable(network: Any, x: np.ndarray) -> Any:
    return weft.jit(network)._for((x,), {}).executable


# --- values -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 7])
def test_an_mlp_has_the_bits_of_the_cpu(mlp: Any, device: str, batch: int) -> None:
    network, x = mlp
    with weft.knobs.set(device="cpu"):
        expected = weft.jit(network)(x[:batch]).numpy()
    np.testing.assert_array_equal(weft.jit(tpu.to_tpu(network, device))(x[:batch]).numpy(), expected)


@pytest.mark.parametrize("batch", [1, 5])
def test_a_cnn_has_the_bits_of_the_cpu(cnn: Any, device: str, batch: int) -> None:
    network, x = cnn
    with weft.knobs.set(device="cpu"):
        expected = weft.jit(network)(x[:batch]).numpy()
    moved = tpu.to_tpu(network, device)
    np.testing.assert_array_equal(weft.jit(moved)(x[:batch]).numpy(), expected)
    found = executable(moved, x[:batch])
    assert len(found.parts.products) == 4
    assert found.report.macs == sum(p.rows * p.inner * p.columns * p.groups for p in found.parts.products)


def test_unsigned_activations_are_multiplied_too() -> None:
    """As in networks made by `to_integers`: shifts, and uint8 after a ReLU."""
    weights = [RNG.integers(-128, 128, (6, 6)).astype(np.int8) for _ in range(2)]
    x = RNG.integers(-128, 128, (3, 6)).astype(np.int8)

    def network(x: Any) -> Any:
        first = weft.matmul(x, held[0], dtype="int32")
        bytes_ = weft.clip(first >> 6, 0, 255).astype("uint8")
        return weft.matmul(bytes_.astype("int32"), held[1].astype("int32"))

    with weft.knobs.set(device="tpu"):
        held = [weft.asarray(weight) for weight in weights]
        found = executable(network, x)
        result = weft.jit(network)(x).numpy()
    middle = np.clip((x.astype(np.int32) @ weights[0]) >> 6, 0, 255)
    assert middle.max() > 127
    np.testing.assert_array_equal(result, middle @ weights[1].astype(np.int32))
    assert len(found.parts.products) == 2


def test_a_saved_program_runs_on_it(mlp: Any, tmp_path: Path) -> None:
    network, x = mlp
    weft.save(tmp_path / "net.weft", network, weft.TensorSpec(("n", 37)), train=False)
    expected = weft.load(tmp_path / "net.weft")(x).numpy()
    with weft.knobs.set(device="tpu"):
        found = weft.load(tmp_path / "net.weft")(x)
        assert found.device.name == "tpu"
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("inner", [255, 256, 257, 1025])
def test_products_are_exact_at_the_ends_of_the_range(inner: int) -> None:
    x, w = np.full((1, inner), 255, np.float32), np.full((inner, 1), 255, np.float32)
    assert exact_product(x, w).item() == inner * 255 * 255


@pytest.mark.parametrize(
    ("shape", "filters", "how"),
    [
        ((2, 6, 9, 11), (8, 3, 3, 3), ((2, 1), ((1, 2), (0, 1)), (1, 2), 2)),
        ((1, 4, 7, 7), (4, 1, 3, 3), ((1, 1), ((1, 1), (1, 1)), (1, 1), 4)),
        ((3, 5, 17), (7, 5, 4), ((3,), ((2, 0),), (1,), 1)),
    ],
)
def test_convolutions_are_exact(shape: Any, filters: Any, how: Any) -> None:
    x, w = (RNG.integers(-128, 128, size).astype(np.int32) for size in (shape, filters))
    stride, padding, dilation, groups = how
    expected = weft.conv(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups).numpy()
    np.testing.assert_array_equal(convolution_sums(x, w, *how), expected)


# --- what runs where --------------------------------------------------------------------------------------------------------------


def test_the_host_computes_what_the_machine_cannot_and_says_so(cnn: Any) -> None:
    network, x = cnn
    with weft.knobs.set(device="tpu"):
        found = executable(tpu.to_tpu(network), x)
    inputs, average, softmax = found.notes()
    assert inputs.startswith("on the host: inputs: ")
    assert "round" in inputs
    assert "sum" in average
    assert "exp" in softmax
    assert found.report.host_parts == tuple(note.removeprefix("on the host: ") for note in found.notes())
    assert [step.kind for step in found.parts.steps].count("host") == 3


def test_a_program_without_int8_products_is_refused() -> None:
    message = (
        r"\[tpu\] products of int8 with constant weights are required, got contract of float32. Quantize the network"
    )
    with weft.knobs.set(device="tpu"), pytest.raises(UserError, match=message):
        weft.jit(nn.Linear(3, 4))(np.ones((2, 3), np.float32))
    with pytest.raises(UserError, match=r"\[tpu\] a function with products of int8 is required, got one without"):
        tpu.simulate(nn.Linear(3, 4), np.ones((2, 3), np.float32))


def test_a_program_without_products_runs_on_the_host_and_says_so() -> None:
    x = np.ones((2, 3), np.float32)
    with weft.knobs.set(device="tpu"):
        f = weft.jit(lambda x: weft.softmax(x))
        np.testing.assert_allclose(f(x).numpy(), x / 3)
        assert executable(lambda x: weft.softmax(x), x).notes() == [
            "the whole program runs on the host: it has no product of int8"
        ]


def test_a_padding_that_is_no_byte_stays_on_the_host() -> None:
    """The array could not hold it, and float32 not sum it exactly."""
    x, w = np.full((1, 1, 4, 4), 127, np.int8), np.full((1, 1, 3, 3), 127, np.int8)

    def padded(value: int) -> Any:
        def network(x: Any) -> Any:
            wide = weft.pad(x.astype("int32"), ((0, 0), (0, 0), (1, 1), (1, 1)), value=value)
            return weft.conv(wide, held.astype("int32"))

        return network

    with weft.knobs.set(device="tpu"):
        held = weft.asarray(w)
        assert executable(padded(100), x).parts.products
        with pytest.raises(UserError, match="products of int8 with constant weights are required, got conv of int32"):
            executable(padded(10**6), x)


def test_a_float_layer_between_others_is_named() -> None:
    weft.seed(0)
    model, x = (
        nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 4)).eval(),
        RNG.normal(size=(3, 9)).astype(np.float32),
    )
    compress.int8(model, x, skip=["layers.2"])
    report = tpu.simulate(compress.to_int8(model), x)
    assert any("contract of float32 (the array multiplies int8)" in part for part in report.host_parts)
    assert sum(isinstance(stage, MatrixStage) for stage in report.program.stages) == 1


# --- the interface of a device ----------------------------------------------------------------------------------------------------


def test_the_executable_has_every_member_of_the_protocol(mlp: Any) -> None:
    network, x = mlp
    members = [name for name in {*vars(Executable), *Executable.__annotations__} if not name.startswith("_")]
    with weft.knobs.set(device="tpu"):
        compiled = weft.jit(tpu.to_tpu(network))._for((x,), {})
        found = compiled.executable
        held, addresses = compiled.inputs([x])
        assert not [name for name in members if not hasattr(found, name)]
        profile = found.profile(addresses)
        assert sum(stage.seconds for stage in profile.stages) == pytest.approx(found.report.seconds)
        assert found.seconds(addresses) == found.report.seconds
        del held
        assert isinstance(found.passes().popitem()[1], Graph)
        assert found.sources() == [str(found.report.program)]
        assert found.roof().seconds(91.7504e12, 0, itemsize=1) == pytest.approx(1.0)
        assert "simulated TPU" in str(weft.jit(tpu.to_tpu(network)).explain(x))


def test_state_is_replaced() -> None:
    with weft.knobs.set(device="tpu"):
        weight, count = weft.asarray(np.eye(4, dtype=np.int8)), weft.asarray(np.zeros((2, 4), np.int32))

        @weft.jit
        def step(x: Any) -> Any:
            count.assign(count + weft.matmul(x.astype("int32"), weight.astype("int32")))
            return count.sum()

        x = np.ones((2, 4), np.int8)
        assert executable(step.function, x).parts.products
        assert [step(x).item(), step(x).item()] == [8, 16]


def test_the_command_line_lists_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["devices"])
    assert "tpu: simulated TPU: 256 x 256 cells at 700 MHz (91.8 TOPS)" in capsys.readouterr().out


def test_the_command_line_simulates(mlp: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network, x = mlp
    path = str(tmp_path / "net.weft")
    weft.save(path, network, weft.TensorSpec(("n", 37)), train=False)
    assert main(["tpu", path, "batch=7", "rows=16", "columns=8", "changes=true", "listing=true"]) == 0
    text = capsys.readouterr().out
    expected = tpu.simulate(network, x, machine=TpuMachine(rows=16, columns=8))
    assert text.startswith(str(expected))
    assert "weight bandwidth x 4" in text
    assert text.rstrip().endswith("halt")
    assert main(["tpu", "MLP0", "weight_bandwidth=136e9", "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)["tops"] == pytest.approx(12.0 * 3.16, rel=0.01)
    for words in (["tpu", "mlp7"], ["tpu"]):
        assert main(words) == 2
    error = capsys.readouterr().err
    assert "[weft tpu] there is no published network 'mlp7'" in error
    assert "[weft tpu] a saved int8 network, or one of mlp0" in error


# --- instructions -----------------------------------------------------------------------------------------------------------------


def product(rows: int, inner: int, columns: int, **settings: Any) -> list[Stage]:
    x, y = TpuValue("x", rows * inner), TpuValue("y", rows * columns)
    stage = MatrixStage("p", (x,), (y,), rows, inner, columns, **settings)
    return [HostStage("in", (), (x,)), stage, HostStage("out", (y,), ())]


def test_the_listing_of_a_small_program() -> None:
    program = lowered(product(3, 6, 5), TpuMachine(rows=4, columns=8))
    assert program.text().splitlines()[1:] == [
        "; in",
        "  (host)            ",
        "  read_host_memory  x, 18 bytes",
        "; p",
        "  synchronize       x",
        "  read_weights      tile 0, inputs 0..3, outputs 0..4",
        "  matrix_multiply   rows 0..2 x tile 0, into sums 0  ; 3 cycles",
        "  read_weights      tile 1, inputs 4..5, outputs 0..4",
        "  matrix_multiply   rows 0..2 x tile 1, add to sums 0  ; 3 cycles",
        "  activate          requantize, sums 0: rows 0..2, outputs 0..4 -> y",
        "; out",
        "  write_host_memory y, 15 bytes",
        "  (host)            ",
        "  halt",
    ]
    assert program.text(most=2).endswith("; 8 more instructions\n  halt")


def test_tiles_respect_array_and_accumulators() -> None:
    machine = TpuMachine(rows=4, columns=4, accumulator_bytes=160)  # 10 rows of sums
    program = lowered(product(23, 9, 6), machine)
    found = [i for i in program.instructions if isinstance(i, MatrixMultiply)]
    assert max(i.rows[1] - i.rows[0] for i in found) == 5
    tiles = {i.tile: i for i in program.instructions if isinstance(i, ReadWeights)}
    assert all(t.inner[1] - t.inner[0] <= 4 and t.columns[1] - t.columns[0] <= 4 for t in tiles.values())
    assert sum(i.macs for i in found) == 23 * 9 * 6
    assert sum(isinstance(i, Activate) for i in program.instructions) == 5 * 2


def test_small_groups_share_a_tile() -> None:
    program = lowered(product(5, 9, 1, groups=50), TpuMachine(rows=64, columns=64))
    found = [i for i in program.instructions if isinstance(i, MatrixMultiply)]
    assert len(found) == 8  # 64 // 9 = 7 groups in each
    assert sum(i.macs for i in found) == 5 * 9 * 50


def test_a_single_tile_is_read_once_for_all_rows() -> None:
    program = lowered(product(50, 4, 4), TpuMachine(rows=4, columns=4, accumulator_bytes=160))
    assert sum(isinstance(i, ReadWeights) for i in program.instructions) == 1
    assert sum(isinstance(i, MatrixMultiply) for i in program.instructions) == 10


def chain(*, reads_both: bool) -> list[Stage]:
    """The first value is read again at the end, alone or with another, when others have filled the buffer."""
    a, b, c, d = (TpuValue(name, 40) for name in "abcd")
    last = VectorStage("3", (a, c), (d,), 80) if reads_both else VectorStage("3", (a,), (d,), 40)
    return [HostStage("in", (), (a,)), VectorStage("1", (a,), (b,), 40), VectorStage("2", (b,), (c,), 40), last]


def test_what_does_not_fit_is_spilled() -> None:
    assert lowered(chain(reads_both=False), TpuMachine(unified_buffer_bytes=120)).spilled == ()
    program = lowered(chain(reads_both=False), TpuMachine(unified_buffer_bytes=100))
    assert program.spilled == ("a",)
    moved = [i for i in program.instructions if isinstance(i, (ReadHostMemory, WriteHostMemory))]
    assert [(type(i).__name__, i.value.name) for i in moved] == [
        ("ReadHostMemory", "a"),
        ("WriteHostMemory", "a"),
        ("ReadHostMemory", "a"),
    ]
    assert program.buffer_bytes == 80
    free = timed(lowered(chain(reads_both=False), TpuMachine(unified_buffer_bytes=120, host_bandwidth=1e9)))
    assert timed(lowered(program.stages, TpuMachine(unified_buffer_bytes=100, host_bandwidth=1e9))).total > free.total


def test_a_stage_that_cannot_fit_is_refused() -> None:
    message = (
        r"\[tpu\] 3 reads and writes 0.1172 KiB at a time, and the unified buffer has 0.09766 KiB. Use smaller batches"
    )
    with pytest.raises(UserError, match=message):
        lowered(chain(reads_both=True), TpuMachine(unified_buffer_bytes=100))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clock": 0}, "clock must be a positive number, got 0"),
        ({"rows": "4"}, "rows must be a positive number, got '4'"),
        ({"accumulator_bytes": 1024}, "accumulators of 2048 bytes or more are required"),
    ],
)
def test_impossible_machines_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TpuMachine(**settings)
    with pytest.raises(UserError, match="one of the settings rows, columns, .* is required, got 'speed'"):
        TpuMachine().with_settings(speed=3)


# --- cycles -----------------------------------------------------------------------------------------------------------------------


def end_of_sums(found: Timing, machine: TpuMachine) -> int:
    """The cycle in which the last sum leaves the array, counted from the first shift of weights."""
    last = max(i.end for i in found.instructions if isinstance(i.instruction, MatrixMultiply))
    return last + machine.fill_cycles - machine.weight_tile_cycles


@pytest.mark.parametrize(
    ("rows", "columns", "size"),
    [
        (4, 4, (4, 4, 4)),
        (4, 4, (1, 4, 4)),
        (4, 4, (7, 10, 9)),
        (3, 5, (2, 7, 11)),
        (8, 8, (20, 30, 5)),
        (5, 3, (9, 2, 8)),
    ],
)
def test_the_array_cell_by_cell_gives_the_same_numbers_and_cycles(rows: int, columns: int, size: Any) -> None:
    m, k, n = size
    x, w = RNG.integers(-128, 128, (m, k)), RNG.integers(-128, 128, (k, n))
    run = systolic_product(x, w, rows, columns)
    np.testing.assert_array_equal(run.result, x @ w)
    machine = TpuMachine(rows=rows, columns=columns, **FAST_MEMORY)
    found = timed(lowered(product(m, k, n), machine))
    assert run.compute_cycles == found.cycles[COMPUTE]
    assert run.cycles == end_of_sums(found, machine)
    assert len(run.frames) == run.cycles


def test_the_wave_moves_diagonally() -> None:
    frames = systolic_product(np.ones((1, 3)), np.ones((3, 3)), 3, 3).frames
    active = [{(int(r), int(c)) for r, c in np.argwhere(frame.is_active)} for frame in frames]
    assert active[3:] == [{(r, d - r) for r in range(3) if 0 <= d - r < 3} for d in range(5)]


def test_a_product_that_waits_for_weights_by_hand() -> None:
    """200 rows, tiles of 64 KiB at 34 GB/s: each takes 1350 cycles, of which 256 are its shift and 200 its rows."""
    machine = TpuMachine(host_bandwidth=1e18)
    found = timed(lowered(product(200, 256 * 10, 256), machine))
    assert machine.weight_tile_cycles == 1350
    assert found.cycles[COMPUTE] == 10 * 200
    assert found.cycles[WEIGHT_SHIFT] == 10 * 256
    assert found.cycles[WEIGHT_WAIT] == 1350 + 9 * (1350 - 256 - 200)
    assert found.cycles[ACTIVATION] == machine.fill_cycles + 200
    assert found.cycles[HAZARD] == 0
    assert found.total == max(i.end for i in found.instructions)


def test_weights_are_prefetched_while_the_array_computes() -> None:
    """2000 rows take longer than a tile: only the first one is waited for."""
    found = timed(lowered(product(2000, 256 * 30, 256), TpuMachine(host_bandwidth=1e18)))
    assert (found.cycles[WEIGHT_WAIT], found.cycles[WEIGHT_SHIFT]) == (1350, 256)
    reads = [i for i in found.instructions if isinstance(i.instruction, ReadWeights)]
    products = [i for i in found.instructions if isinstance(i.instruction, MatrixMultiply)]
    ahead = [sum(read.start < p.start for read in reads) - number for number, p in enumerate(products)]
    assert max(ahead) == 5  # the tile that is used, and four in the FIFO


def test_a_deeper_fifo_fills_while_the_array_waits_for_inputs() -> None:
    """A slow host: while inputs arrive, the FIFO fills; the deeper it is, the fewer tiles are waited for after the first."""
    slow = TpuMachine(host_bandwidth=1e7)
    waits = [
        timed(lowered(product(200, 2560, 256), slow.with_settings(weight_fifo_tiles=depth))).cycles[WEIGHT_WAIT]
        for depth in (1, 4, 8)
    ]
    assert waits[0] > waits[1] > waits[2] == 1350


def test_the_next_layer_waits_for_activations() -> None:
    a, b, c = (TpuValue(name, 256 * 2000) for name in "abc")
    layers = [MatrixStage("1", (a,), (b,), 2000, 256, 256), MatrixStage("2", (b,), (c,), 2000, 256, 256)]
    machine = TpuMachine(**FAST_MEMORY)
    found = timed(lowered([HostStage("in", (), (a,)), *layers], machine))
    assert found.by_stage[2][HAZARD] == machine.fill_cycles + 2000  # the wave leaves, then 2000 rows of activations
    assert found.by_stage[1][HAZARD] == 0


def test_accumulators_are_double_buffered() -> None:
    """Activations of one part of the rows run while the next is multiplied."""
    work = product(4000, 256, 256)
    enough = timed(lowered(work, TpuMachine(**FAST_MEMORY)))
    assert enough.cycles[ACTIVATION] == TpuMachine().fill_cycles + 2000
    few = timed(lowered(work, TpuMachine(accumulator_bytes=4 * 256 * 200, **FAST_MEMORY)))
    assert few.cycles[ACTIVATION] > TpuMachine().fill_cycles + 100  # parts of 100 rows are not emptied in time


def test_16_bit_activations_take_twice_the_cycles() -> None:
    one, two = (timed(lowered(product(64, 256, 256, cycles_per_row=n), TpuMachine())) for n in (1, 2))
    assert two.cycles[COMPUTE] == 2 * one.cycles[COMPUTE] == 128
    assert two.macs == one.macs


def test_every_cycle_has_one_cause(cnn: Any) -> None:
    network, x = cnn
    report = tpu.simulate(network, x, machine=SMALL)
    assert sum(report.cycles.values()) == report.total_cycles == max(i.end for i in report.timing.instructions)
    assert sum(report.stage_seconds(i) for i in range(len(report.program.stages))) == pytest.approx(report.seconds)
    assert all(cycles >= 0 for stage in report.timing.by_stage for cycles in stage.values())
    assert {cause for cause, cycles in report.cycles.items() if cycles} >= {COMPUTE, WEIGHT_SHIFT, ACTIVATION, HOST}
    assert "5 x 10 x 5" in str(report)


# --- published networks -----------------------------------------------------------------------------------------------------------


def test_the_published_networks_are_those_of_table_1() -> None:
    for network in tpu.PUBLISHED:
        stages = [s for s in network.stages() if isinstance(s, MatrixStage)]
        weights, macs = sum(s.weights for s in stages), sum(s.macs for s in stages)
        assert weights / 1e6 == pytest.approx(network.weights, rel=0.04), network.name
        assert macs / weights == pytest.approx(network.intensity, rel=0.01), network.name
    names = [s.name.split(".")[0] for s in tpu.PUBLISHED[3].stages() if isinstance(s, MatrixStage)]
    assert len(set(names)) == 37


def test_four_of_the_six_published_networks_are_within_25_percent() -> None:
    found = {network.name: network.simulate().tops / network.tops - 1 for network in tpu.PUBLISHED}
    assert {name for name, error in found.items() if abs(error) < 0.25} == {"MLP0", "MLP1", "LSTM0", "CNN0"}


def test_matrix_cycles_are_split_as_the_counters_of_mlp0() -> None:
    """Of the cycles that the paper's counters put down to the matrix unit: 15 % active, 65 % weight stall, 19 % weight shift."""
    network = tpu.PUBLISHED[0]
    cycles = network.simulate().cycles
    ours = [cycles[cause] for cause in (COMPUTE, WEIGHT_WAIT, WEIGHT_SHIFT)]
    theirs = [network.active, network.weight_wait, network.weight_shift]
    np.testing.assert_allclose(np.divide(ours, sum(ours)), np.divide(theirs, sum(theirs)), atol=0.01)


def test_what_changes() -> None:
    mlp0, cnn0 = (tpu.what_changes(tpu.PUBLISHED[i]) for i in (0, 4))
    speedup = {name: mlp0["as it is"].seconds / report.seconds for name, report in mlp0.items()}
    assert speedup["weight bandwidth x 4"] > 2.5
    assert speedup["clock x 2"] < 1.1
    assert cnn0["as it is"].seconds / cnn0["weight bandwidth x 4"].seconds < 1.1
    lines = tpu.changes_table(mlp0).splitlines()
    assert lines[0].split()[:2] == ["machine", "ms"]
    assert lines[2].startswith("as it is")
    assert len(lines) == 2 + len(mlp0)


def test_a_600_x_600_matrix_takes_the_times_of_the_paper() -> None:
    """Section 7: 9 steps and 18 us on 256 x 256 cells, 4 steps and 32 us on 512 x 512."""
    for size, steps, microseconds in ((256, 9, 18), (512, 4, 32)):
        machine = TpuMachine(rows=size, columns=size)
        assert sum(isinstance(i, ReadWeights) for i in lowered(product(96, 600, 600), machine).instructions) == steps
        assert machine.seconds(steps * machine.weight_tile_cycles) * 1e6 == pytest.approx(microseconds, rel=0.05)


# --- the picture ------------------------------------------------------------------------------------------------------------------


def test_the_animation_shows_the_product_and_needs_no_script() -> None:
    x, w = np.array([[1, 2], [3, -4], [5, 6]]), np.array([[1, 0, 2], [-1, 7, 1]])
    svg = animate_systolic(x, w)
    root = ElementTree.fromstring(svg)
    texts = {"".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {f"{v}".replace("-", "−") for v in (x @ w).ravel()} <= texts
    assert {"3 × 0", "−4 × −1", "cycle 8 of 8"} <= texts
    assert "<script" not in svg
    assert all(element.get("dur") == "16.5s" for element in root.iter() if element.get("dur"))


def test_a_picture_that_nobody_could_read_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"\[tpu\] two matrices of up to 8 x 8 that can be multiplied are required, got \(9, 9\)"
    ):
        animate_systolic(np.ones((9, 9)), np.ones((9, 9)))
