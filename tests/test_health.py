"""How a GPU is doing, as the management library tells: here one that is made up."""

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from weft.cli import main
from weft.runtime.cuda.health import health
from weft.runtime.facts import Health

BUS = "0000:3b:00.0"
GIB = 2**30


class NVMLError(Exception):
    """As the package has it."""


class NVMLLibraryMismatchError(Exception):
    """As the package has it."""


class FakeNvml:
    """The module pynvml, on a machine with one GPU."""

    NVMLError, NVMLLibraryMismatchError = NVMLError, NVMLLibraryMismatchError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        self.opened = 0
        mine, other, both = (os.getpid(), 5 * GIB), (1, 2 * GIB), (2, GIB)
        self.answers: dict[str, Any] = {
            "Temperature": 41, "PowerUsage": 76_400, "EnforcedPowerLimit": 700_000,
            "UtilizationRates": SimpleNamespace(gpu=3, memory=55),
            "ComputeRunningProcesses": [process(*p) for p in (mine, other, both)],
            "GraphicsRunningProcesses": [process(*both), process(3, None)],
        }  # fmt: skip

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> str:
        if bus != BUS:
            raise NVMLError("Not Found")
        return "the GPU"

    def __getattr__(self, name: str) -> Any:
        question = name.removeprefix("nvmlDeviceGet")
        if question not in self.answers:
            raise AttributeError(name)
        answer = self.answers[question]

        def ask(gpu: str, *more: int) -> Any:
            assert self.opened == 1
            assert gpu == "the GPU"
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask


def process(pid: int, memory: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_everything_is_known(nvml: FakeNvml) -> None:
    """What this process holds itself is not counted, and what does graphics and computes is counted once."""
    found = health(BUS)
    assert found == Health(41, 76.4, 700.0, 3, 3 * GIB)
    assert str(found) == "41 degrees Celsius, 76 of 700 W, 3 % busy, other processes hold 3.0 GiB"
    assert nvml.opened == 0


def test_a_gpu_need_not_answer(nvml: FakeNvml) -> None:
    nvml.answers |= dict.fromkeys(("Temperature", "EnforcedPowerLimit", "UtilizationRates"), NVMLError("Not Supported"))
    nvml.answers["ComputeRunningProcesses"] = NVMLLibraryMismatchError("versions")
    assert str(health(BUS)) == "76 W, other processes hold 1.0 GiB"
    nvml.answers = dict.fromkeys(nvml.answers, NVMLError("Not Supported"))
    assert health(BUS) == Health(None, None, None, None, None)
    assert nvml.opened == 0


def test_a_gpu_that_is_not_found(nvml: FakeNvml) -> None:
    assert health("0000:00:00.0") is None
    assert nvml.opened == 0


def test_a_library_that_does_not_start(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", fail)
    assert health(BUS) is None
    assert nvml.opened == 0


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert health(BUS) is None


def test_devices_of_the_command_line(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton")
    import fake_gpu
    import weft

    fake_gpu.install(monkeypatch)
    assert main(["devices"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cuda:")]
    assert line.startswith("cuda: fake, 0.2 of 0.2 GiB free")
    assert line.endswith("; now 41 degrees Celsius, 76 of 700 W, 3 % busy, other processes hold 3.0 GiB")
    assert main(["devices", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["gpus"].keys() == {"cuda"}
    assert known["health"]["cuda"]["power_limit"] == 700.0
    assert "Celsius" not in repr(weft.device("cuda"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert main(["devices"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cuda:")]
    assert "now" not in line
