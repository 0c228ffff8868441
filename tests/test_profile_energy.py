"""Measured energy: counters of Linux and of NVIDIA's management library, here files and a library that are made up."""

import os
import sys
from pathlib import Path

import pytest

from test_health import BUS, FakeNvml, NVMLError
from weft.insight import energy_counters
from weft.insight.energy_counters import CounterError, NvmlCounter, RaplCounter, idle_power, measured_energy
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
    assert "short for a counter" in used.note


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
    with pytest.raises(CounterError, match="does not know the GPU at 0000:00:00.0: Not Found"):
        NvmlCounter("0000:00:00.0")
    assert nvml.opened == 0
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with measured_energy(FakeGpuDevice()) as used:
        pass
    assert "no management library" in used.note
