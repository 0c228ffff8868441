"""Profiles of the simulated TPU: its own stages, times and bytes, checked against counts by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import compress, nn, tpu
from weft.insight import ProgramProfile, machine, profile, profile_from_json, side_by_side, throughput
from weft.insight.machines import machine_like
from weft.insight.roof_lines import roof_lines
from weft.insight.roofline_plot import roofline_svg
from weft.jobs.profiles import job
from weft.jobs.profiles.settings import PROFILE_SETTINGS
from weft.jobs.profiles.subject import find_subject
from weft.runtime import device as find_device

TILE, BATCH = 256 * 256, 4


@pytest.fixture(scope="module")
def network() -> tuple[nn.Module, np.ndarray]:
    weft.seed(0)
    x = np.random.default_rng(0).normal(size=(BATCH, 1, 28, 28)).astype(np.float32)
    layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(None, 64), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(64, 10), nn.Softmax()).eval()
    model(x)
    compress.int8(model, x)
    return compress.to_int8(model), x


@pytest.fixture(scope="module")
def found(network: Any) -> ProgramProfile:
    model, x = network
    with weft.knobs.set(device="tpu"):
        return profile(tpu.to_tpu(model), x)


def test_every_stage_has_its_own_time_and_work(network: Any, found: ProgramProfile) -> None:
    report = tpu.simulate(*network)
    stages = [number for number in range(len(report.program.stages)) if report.stage_seconds(number)]
    assert [k.seconds for k in found.kernels] == pytest.approx([report.stage_seconds(number) for number in stages])
    assert found.seconds == found.total.seconds == pytest.approx(report.seconds)
    conv, first, second, host = found.kernels
    # a convolution of 3 x 3 to 26 x 26 positions, two products, and the logits that go to the host
    flops = [2 * BATCH * 26 * 26 * 9 * 8, 2 * BATCH * 1352 * 64, 2 * BATCH * 64 * 10]
    assert [k.flops for k in (conv, first, second)] == flops
    assert [k.persistent for k in (conv, first, second, host)] == [TILE, 6 * TILE, TILE, 0]  # 1352 rows: six tiles
    assert conv.nbytes == TILE + BATCH * 28 * 28  # and the images in int8
    assert host.nbytes == 4 * BATCH * 10
    assert [max(k.layers, key=lambda pair: pair[1])[0].path for k in (conv, first, second)] == [
        "body.layers.0",
        "body.layers.4",
        "body.layers.6",
    ]


def test_no_stage_is_above_the_roof_and_each_says_what_bounds_it(found: ProgramProfile) -> None:
    assert all(k.least <= k.seconds * (1 + 1e-9) for k in found.kernels)
    assert found.kernels[1].least == pytest.approx(1352 * 64 / 34e9)  # its weights once
    assert found.kernels[-1].least == pytest.approx(4 * BATCH * 10 / 14e9)  # the bandwidth of the host
    assert [found.bound(k).limit for k in found.kernels] == ["compute", "memory", "memory", "memory"]
    assert "a call on simulated TPU, modelled: " in str(found)
    assert "simulated TPU, modelled" in roofline_svg({"tpu": found})
    assert not found.cache.keeps  # weights come from their memory in every run


def test_a_stored_profile_is_read_again(found: ProgramProfile) -> None:
    again = profile_from_json(json.loads(found.to_json()))
    assert again.explanation.roof == found.explanation.roof
    assert again.kernels == found.kernels
    assert roof_lines(again.explanation.roof).peaks == {"8 bits": pytest.approx(91.75e12, rel=1e-3)}


def test_throughput_is_that_of_the_machine_and_not_of_the_simulation(network: Any, found: ProgramProfile) -> None:
    model, x = network
    with weft.knobs.set(device="tpu"):
        here = tpu.to_tpu(model)
        table = throughput(lambda batch: (weft.jit(here), (x,)), [BATCH], device="tpu", seconds=0.01)
        rows = side_by_side(found, BATCH, [("here", None)], measured=table.rows[0], here=machine_like(find_device()))
    [row] = table.rows
    assert (row.p50, row.p99, row.timing, row.energy) == (found.seconds, found.seconds, "modelled", "modelled")
    assert row.per_second == BATCH / found.seconds
    assert row.power_limit == machine("tpu-v1").power.value
    assert "tpu: times are modelled, without computation on the host" in table.notes
    assert (rows[0].how, rows[0].watts) == ("modelled", 75)


def test_another_machine_has_no_price() -> None:
    tpu.register_machine("tpu-half", tpu.TpuMachine(rows=128))
    assert machine_like(find_device("tpu-half")) is None


def test_the_job_does_not_time_the_simulation(network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weft.save(tmp_path / "net.weft", *network)
    monkeypatch.setattr(job, "subject_of", lambda settings: find_subject(str(tmp_path / "net.weft")))
    settings = {name: setting.default for name, setting in PROFILE_SETTINGS.items()}
    told = {"network": "lenet", "device": "tpu", "batch": BATCH, "runs": str(tmp_path)}
    stored = job.measure(settings | told)
    assert stored.record.times is None
    assert stored.record.latency == pytest.approx(tpu.simulate(*network).seconds)
