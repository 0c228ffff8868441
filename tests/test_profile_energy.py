"""Measured energy: counters of Linux and of NVIDIA's management library, here files and a library that are made up."""

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from test_health import BUS, FakeNvml, NVMLError
from weft.insight import energy_counters
from weft.insight.counter_error import CounterError
from weft.insight.energy_counters import NvmlCounter, RaplCounter, idle_power, measured_energy
from weft.insight.perf_energy import PerfCounter, open_perf_event
from weft.runtime import device as find_device


class FakeGpuDevice:
    name, is_accelerator = "cuda", True

    def bus(self) -> str:
        return BUS

    def wait(self) -> None:
        pass


def domain(folder: Path, number: str, name: str, uj: int, most: int = 262_143_328_850) -> Path:
    path = folder / f"intel-rapl:{number}"
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{uj}\n")
    (path / "max_energy_range_uj").write_text(f"{most}\n")
    return path


@pytest.fixture
def rapl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(energy_counters, "POWERCAP", tmp_path)
    domain(tmp_path, "0", "package-0", 1_000_000)
    domain(tmp_path, "0:0", "core", 900_000)  # a part of the package
    domain(tmp_path, "0:1", "dram", 200_000)
    return tmp_path


def test_packages_and_memory_are_added_and_cores_are_not(rapl: Path) -> None:
    with measured_energy(find_device("cpu")) as used:
        (rapl / "intel-rapl:0/energy_uj").write_text("3500000")
        (rapl / "intel-rapl:0:0/energy_uj").write_text("9000000")
        (rapl / "intel-rapl:0:1/energy_uj").write_text("700000")
    assert used.joules == pytest.approx(3.0)
    assert used.source == "RAPL: package-0, dram"
    assert "idle power is included" in str(used)
    assert "too short for an energy counter" in used.note


def test_a_counter_that_begins_again_at_zero(tmp_path: Path) -> None:
    domain(tmp_path, "0", "package-0", 9_000_000, most=10_000_000)
    counter = RaplCounter(tmp_path)
    assert counter.joules(counter.read(), (500_000,)) == pytest.approx(1.5)
    assert counter.joules((2_000_000,), (5_000_000,)) == pytest.approx(3.0)


def test_idle_power_is_subtracted_if_it_is_given(rapl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 2.0))
    monkeypatch.setattr(energy_counters.time, "perf_counter", lambda: next(clock))
    with measured_energy(find_device("cpu"), idle_watts=5.0) as used:
        (rapl / "intel-rapl:0/energy_uj").write_text("31000000")
    assert used.joules == pytest.approx(30 - 2 * 5)
    assert used.watts == pytest.approx(10)
    assert str(used) == "20 J in 2 s, 10 W (RAPL: package-0, dram; 5 W of idle power are subtracted)"


def test_without_counters_there_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy_counters, "POWERCAP", tmp_path / "none")
    with measured_energy(find_device("cpu")) as used:
        pass
    assert used.joules is None
    assert "there is no energy counter of the processor (RAPL)" in str(used)
    assert idle_power(find_device("cpu"), seconds=0.0) is None
    with measured_energy(find_device("reference")) as used:
        pass
    assert used.note == "there is no energy counter for the device reference"


def test_a_counter_that_may_not_be_read(rapl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, *_: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    if os.geteuid():
        (rapl / "intel-rapl:0/energy_uj").chmod(0)
    else:  # the administrator may read everything
        monkeypatch.setattr(
            Path,
            "read_text",
            lambda p, *a: denied(p) if p.name == "energy_uj" else "package-0" if p.name == "name" else "1",
        )
    with measured_energy(find_device("cpu")) as used:
        pass
    assert used.joules is None
    assert "permission denied" in used.note


def test_a_counter_with_nonsense_in_it(rapl: Path) -> None:
    (rapl / "intel-rapl:0:1/energy_uj").write_text("many")
    with measured_energy(find_device("cpu")) as used:
        pass
    assert used.joules is None
    assert "cannot be read" in used.note


def test_a_counter_that_goes_away(rapl: Path) -> None:
    with measured_energy(find_device("cpu")) as used:
        (rapl / "intel-rapl:0/energy_uj").unlink()
    assert used.joules is None
    assert "cannot be read" in used.note


# --- perf -----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pmu(tmp_path: Path) -> Path:
    """The power PMU of a machine with two packages, as Linux shows it."""
    folder = tmp_path / "power"
    (folder / "events").mkdir(parents=True)
    files = {
        "type": "9", "cpumask": "0,18", "events/energy-cores": "event=0x01", "events/energy-pkg": "event=0x02", "events/energy-ram": "event=0x03",
        "events/energy-pkg.scale": "2.3283064365386962e-10", "events/energy-pkg.unit": "Joules", "events/energy-ram.scale": "1e-6", "events/energy-ram.unit": "Joules",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return folder


class FakeEvents:
    """Counters that show the values that a test writes: pipes, which are read once."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error, self.opened = error, dict[tuple[int, int, int], tuple[int, int]]()

    def __call__(self, kind: int, event: int, cpu: int) -> int:
        if self.error is not None and self.opened:
            raise self.error
        ends = self.opened[kind, event, cpu] = os.pipe()
        self.show({(kind, event, cpu): 0})
        return ends[0]

    def show(self, values: dict[tuple[int, int, int], int]) -> None:
        for key, value in values.items():
            os.write(self.opened[key][1], value.to_bytes(8, sys.byteorder))


def test_perf_counts_packages_and_memory_of_all_sockets(pmu: Path) -> None:
    events = FakeEvents()
    counter = PerfCounter(pmu, events)
    assert sorted(events.opened) == [(9, 2, 0), (9, 2, 18), (9, 3, 0), (9, 3, 18)], "cores are a part of the package"
    assert counter.source == "RAPL by perf: packages and memory"
    events.show(dict.fromkeys(events.opened, 100))
    before = counter.read()
    events.show({(9, 2, 0): 100 + 2**32, (9, 2, 18): 100 + 2**33, (9, 3, 0): 500_100, (9, 3, 18): 100})
    assert counter.joules(before, counter.read()) == pytest.approx(1 + 2 + 0.5)
    counter.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(events.opened[9, 2, 0][0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: shutil.rmtree(folder), "there is no power PMU"),
        (lambda folder: (folder / "events" / "energy-pkg").unlink(), "has no event energy-pkg, as in most virtual machines"),
        (lambda folder: (folder / "events" / "energy-pkg").write_text("config=1"), "energy-pkg is 'config=1'"),
        (lambda folder: (folder / "events" / "energy-ram.unit").write_text("Watts"), "energy-ram is counted in 'Watts'"),
        (lambda folder: (folder / "cpumask").write_text(""), "unknown format"),
    ],
)  # fmt: skip
def test_a_power_pmu_that_is_not_as_expected(pmu: Path, change: Callable[[Path], object], said: str) -> None:
    change(pmu)
    with pytest.raises(CounterError) as error:
        PerfCounter(pmu, FakeEvents())
    assert said in str(error.value)


def test_perf_that_is_not_allowed(pmu: Path) -> None:
    events = FakeEvents(PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(
        CounterError, match=r"Permission denied. An administrator can allow it: sysctl kernel.perf_event_paranoid=0"
    ):
        PerfCounter(pmu, events)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(next(iter(events.opened.values()))[0])  # what was opened before is closed


def test_perf_is_asked_where_powercap_is_not_there(pmu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy_counters, "POWERCAP", tmp_path / "none")
    events = FakeEvents()
    monkeypatch.setattr(energy_counters, "PerfCounter", lambda folder: PerfCounter(pmu, events))
    found = energy_counters.counter_of(find_device("cpu"))
    assert found.source == "RAPL by perf: packages and memory"
    found.close()
    monkeypatch.setattr(energy_counters, "PerfCounter", PerfCounter)
    monkeypatch.setattr(energy_counters, "PMU", tmp_path / "no-pmu")
    with measured_energy(find_device("cpu")) as used:
        pass
    assert "(RAPL) under" in used.note
    assert "there is no power PMU" in used.note


def test_the_system_call_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel itself: nanoseconds of this process by the software event cpu-clock, beside Python's clock of processor time."""
    try:
        file = open_perf_event(1, 0, cpu=-1, pid=0)  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK
    except OSError as error:
        pytest.skip(f"perf is not allowed here: {error}")
    with os.fdopen(file, "rb", buffering=0) as counter:

        def read() -> int:
            return int.from_bytes(counter.read(8), sys.byteorder)

        begin, before = time.thread_time_ns(), read()
        sum(range(2_000_000))
        counted, used = read() - before, time.thread_time_ns() - begin
    assert counted == pytest.approx(used, rel=0.2)
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(OSError, match="perf is not supported on"):
        open_perf_event(1, 0, 0)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    fake.answers["TotalEnergyConsumption"] = 5_000_000
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_the_counter_of_a_gpu(nvml: FakeNvml) -> None:
    with measured_energy(FakeGpuDevice()) as used:
        nvml.answers["TotalEnergyConsumption"] = 5_042_500
    assert used.joules == pytest.approx(42.5)
    assert used.source == "NVML: the board of the GPU"
    assert nvml.opened == 0


def test_a_gpu_that_disappears_meanwhile(nvml: FakeNvml) -> None:
    with measured_energy(FakeGpuDevice()) as used:
        nvml.answers["TotalEnergyConsumption"] = NVMLError("GPU is lost")
    assert used.joules is None
    assert used.note == "the energy counter of the GPU cannot be read: GPU is lost"
    assert nvml.opened == 0


def test_an_error_inside_is_not_hidden(nvml: FakeNvml) -> None:
    with pytest.raises(ValueError, match="mine"), measured_energy(FakeGpuDevice()):
        raise ValueError("mine")
    assert nvml.opened == 0


def test_gpus_without_the_library_or_unknown_to_it(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CounterError, match="NVML has no GPU at 0000:00:00.0: Not Found"):
        NvmlCounter("0000:00:00.0")
    assert nvml.opened == 0
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with measured_energy(FakeGpuDevice()) as used:
        pass
    assert "no management library" in used.note
