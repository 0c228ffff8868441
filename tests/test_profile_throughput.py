"""Tables of throughput: rows, units and marks. How fast something is, is not tested."""

import importlib
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

import weft
from test_health import FakeNvml, NVMLError
from weft.errors import RunError
from weft.insight import machine, throughput, throughput_svg
from weft.insight.energy_counters import EnergyReading
from weft.insight.machines import machine_like
from weft.insight.profile_record import CallTimes, percentiles
from weft.insight.throughput_table import ThroughputRow, ThroughputTable
from weft.knobs import knobs
from weft.runtime import Device
from weft.runtime import device as find_device

MODULE = importlib.import_module("weft.insight.throughput")  # the package has a function of this name
ROW = ThroughputRow("cpu", "infer", 8, 200, 0.01, 0.02, 0.04, 800.0, 0.005, "measured", 100.0, 400.0, 1.8)


def square(batch: int):
    return weft.jit(lambda x: x @ x.T), (weft.asarray(np.ones((batch, 4), np.float32)),)


def test_figures_of_a_row() -> None:
    assert ROW.per_joule == pytest.approx(200)
    assert ROW.per_second_per_watt == pytest.approx(8)
    assert ROW.per_second_per_dollar == pytest.approx(2)
    assert ROW.per_dollar == pytest.approx(800 * 3600 / 1.8)


def test_the_table_counts_what_was_measured() -> None:
    head = str(ThroughputTable((ROW,))).splitlines()[0]
    assert "inferences/s/W of the limit" in head
    assert "images" not in head


def test_latencies_are_those_of_real_calls() -> None:
    times = [1.0] * 94 + [2.0] * 4 + [50.0] * 2
    assert percentiles(times) == (1.0, 2.0, 50.0)
    kept = CallTimes.of([1.0, 2.0, 3.0, 10.0], warmup=0)
    assert (kept.p50, kept.p95, kept.p99) == (2.0, 10.0, 10.0)


def test_every_batch_is_a_row_and_energy_says_how_it_is_known() -> None:
    table = throughput(square, [1, 3], seconds=0.0, examples=100)
    assert [row.batch for row in table.rows] == [1, 3]
    for row in table.rows:
        assert row.p50 <= row.p95 <= row.p99
        assert row.joules is not None
        assert row.energy in ("measured", "modelled")
        assert row.calls >= 5
    assert any("energy is m" in note for note in table.notes)
    assert json.loads(json.dumps(table.to_dict()))["rows"][1]["batch"] == 3


def test_measured_energy_is_divided_by_calls_and_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted:
        def __init__(self, *_: object, **__: object) -> None:
            self.reading = EnergyReading(None, 1.0, "a counter")

        def __enter__(self) -> EnergyReading:
            return self.reading

        def __exit__(self, *_: object) -> None:
            self.reading.joules = 30.0

    monkeypatch.setattr("weft.insight.call_times.measured_energy", Counted)
    [row] = throughput(square, [3], seconds=0.0).rows
    assert row.energy == "measured"
    assert row.joules == pytest.approx(30.0 / 5 / 3)  # five calls of three examples


def test_sizes_double_until_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    free = square(4)[0].memory(*square(4)[1]).total / MODULE.SHARE
    monkeypatch.setattr(MODULE, "free_bytes", lambda: free)
    table = throughput(square, seconds=0.0)
    assert [row.batch for row in table.rows] == [1, 2, 4]
    assert any("batch 8 needs" in note and "more than is free" in note for note in table.notes)
    monkeypatch.setattr(MODULE, "free_bytes", lambda: None)
    assert [row.batch for row in throughput(square, seconds=0.0, most=2).rows] == [1, 2]


def test_calls_that_take_long_end_the_doubling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "LONGEST", -1.0)
    table = throughput(square, seconds=0.0)
    assert [row.batch for row in table.rows] == [1]
    assert any("batches above 1 were not tried" in note for note in table.notes)


def test_a_device_that_is_lost_ends_the_table_with_a_note() -> None:
    def step(batch: int):
        if batch == 2:
            raise RunError("cuda", "the GPU is lost.")
        return square(batch)

    table = throughput(step, [1, 2, 4], seconds=0.0)
    assert [row.batch for row in table.rows] == [1]
    assert any("the GPU is lost." in note for note in table.notes)


def test_the_text_has_columns_of_what_is_known() -> None:
    cheap = ThroughputRow("cuda", "infer", 8, 200, 0.01, 0.02, 0.04, 1600.0, 0.5, "modelled")
    text = str(ThroughputTable((ROW,)) + ThroughputTable((cheap,), ("a note",)))
    assert "200 measured" in text
    assert "2.00 modelled" in text
    assert "inferences/s/$" in text
    assert "a note" in text
    without = str(ThroughputTable((cheap,)))
    assert "$" not in without
    assert "/W" not in without


def test_training_has_the_cost_of_an_epoch() -> None:
    row = ThroughputRow("cuda", "train", 8, 9, 0.1, 0.1, 0.1, 1000.0, 2.0, "measured", None, None, 3.6)
    text = str(ThroughputTable((row,), (), 60_000))
    assert "samples/s" in text
    assert "120 k measured" in text  # joules
    assert text.splitlines()[2].endswith("0.06")  # dollars: a minute of 3.6 an hour


def test_the_picture_has_a_line_for_each_device_and_a_dot_for_each_row() -> None:
    rows = [ThroughputRow(d, "infer", b, 9, 1e-3, 1e-3, 1e-3, 100.0 * b) for d in ("cpu", "cuda") for b in (1, 2, 4)]
    root = ElementTree.fromstring(throughput_svg(rows))
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{name}path")) == 2
    assert len(root.findall(f"{name}circle")) == 6 + 2  # and two in the legend
    ys = [float(c.get("cy")) for c in root.findall(f"{name}circle")[-3:]]
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2), "doubling is the same distance everywhere"


def test_a_machine_of_the_table_is_recognized_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Gpu:
        is_host_processor = False
        hardware_name = Device.hardware_name

        def __init__(self, text: str) -> None:
            self.text = text

        def about(self) -> str:
            return f"{self.text}, 10.0 of 139.8 GiB free"

    assert machine_like(Gpu("NVIDIA H200")) is machine("h200")
    assert machine_like(Gpu("NVIDIA GeForce GTX TITAN X")) is machine("titan-x")
    assert machine_like(Gpu("NVIDIA B200")) is None
    monkeypatch.setattr(
        importlib.import_module("weft.insight.machines"),
        "processor_name",
        lambda: "Intel(R) Xeon(R) CPU E5-2698 v3 @ 2.30GHz",
    )
    assert machine_like(find_device("cpu")) is machine("xeon-e5-2698-v3")
    mine = "machines: {b200: {kind: gpu, peak: {float32: {value: 1e12, source: a data sheet}}, memory_bandwidth: {value: 1e12, source: a data sheet}}}"
    (tmp_path / "mine.yaml").write_text(mine)
    with knobs.set(machines=str(tmp_path / "mine.yaml")):
        assert machine_like(Gpu("NVIDIA B200")).name == "b200"


def test_a_gpu_with_a_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The energy of a GPU's board is measured, here one that is made up: each call of the step takes three joules."""
    pytest.importorskip("triton")
    import fake_gpu

    nvml = FakeNvml()
    nvml.answers["TotalEnergyConsumption"] = 0
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    fake_gpu.install(monkeypatch)
    x = weft.asarray(np.ones((2, 3), np.float32), device="cuda")
    compiled = weft.jit(lambda x: weft.softmax(x))

    class Counted:
        memory = compiled.memory

        def __call__(self, x):
            nvml.answers["TotalEnergyConsumption"] += 3000
            return compiled(x)

    table = throughput(lambda batch: (Counted(), (x,)), [2], device="cuda", seconds=0.0)
    [row] = table.rows
    assert (row.device, row.energy, row.joules) == ("cuda", "measured", pytest.approx(1.5))
    assert "cuda: energy is measured by NVML: the board of the GPU; idle power is included" in table.notes
    nvml.answers["TotalEnergyConsumption"] = NVMLError("Not Supported")  # a GPU older than Volta
    [row] = throughput(lambda batch: (compiled, (x,)), [2], device="cuda", seconds=0.0).rows
    assert row.energy == "modelled"
    assert nvml.opened == 0
