"""What is kept of a profile, the page that is written from it, and the job that measures."""

import json
import re
from dataclasses import replace

import pytest

import weft
from trace_tools import checked, names
from weft import insight, nn
from weft.errors import RunError, UserError
from weft.insight.call_times import RECORDED, call_times
from weft.insight.memory_areas import memory_areas
from weft.insight.profile_file import profile_from_json, record_from_json
from weft.insight.profile_record import CallTimes, MemoryRecord, MemoryStep, profile_record
from weft.insight.roofline_plot import roofline_svg
from weft.jobs import JobQueue, named_subject, submit_profile
from weft.jobs.profiles.job import profile_job
from weft.jobs.profiles.store import delete_profile, network_profiles, stored_profile, stored_profiles


@pytest.fixture(scope="module")
def net():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)).eval()


@pytest.fixture(scope="module")
def profile(net):
    return weft.profile(net, weft.ones((4, 16)), repeats=3)


@pytest.fixture(scope="module")
def record(profile):
    return profile_record(profile, "net", batch=4, times=CallTimes.of([1e-3, 2e-3, 4e-3], 1), arguments=4 * 16 * 4)


def test_a_record_survives_the_disk(record, profile):
    assert record_from_json(record.to_json()) == record
    assert [one.label for one in record.layers] == [one.label for one in profile.by_layer]
    assert record.seconds == profile.seconds
    assert record.per_second == pytest.approx(4 / 2e-3)
    parameters = 4 * (16 * 64 + 64 + 64 * 8 + 8)
    assert record.memory.weights >= parameters
    assert record.memory.inputs == 4 * 16 * 4
    assert record.memory.peak > record.memory.weights


def test_files_of_older_versions_are_read(record, profile):
    """A record without its program, and a program as `weft.profile(...).to_json()` wrote it."""
    known = json.loads(record.to_json())
    first = record_from_json(
        json.dumps({"format": 1} | {k: v for k, v in known.items() if k not in ("format", "program")})
    )
    assert first == replace(record, program=None)
    with pytest.raises(UserError, match="a profile with its kernels is required, got one of an older version"):
        profile_from_json(json.loads(first.to_json()))

    told = known["program"]["explanation"]
    new_fields = ("workspace", "persistent")
    kernels = [
        {k: v for k, v in one.items() if k not in new_fields} | {"roof": 0.5, "bound": "compute"}
        for one in known["program"]["kernels"]
    ]
    second = {
        "where": told["where"], "seconds": told["plain"], "clock_overhead": told["overhead"], "runs": told["runs"], "roof": told["roof"],
        "memory": {k: v for k, v in told["memory"].items() if k not in new_fields},
        "energy": {"joules": 1.0, "modelled": True, "process_nm": 45}, "layers": [], "kernels": kernels,
    }  # fmt: skip
    assert profile_from_json(second).total == profile.total
    assert [one.label for one in record_from_json(json.dumps(second)).layers] == [one.label for one in record.layers]
    with pytest.raises(RunError, match="damaged: 'where'"):
        profile_from_json({})


def test_a_kept_profile_is_projected(record, profile):
    again = profile_from_json(json.loads(record.to_json()))
    assert again.kernels == profile.kernels
    titan = insight.machine("titan-x")
    assert insight.project(again, titan).seconds == insight.project(profile, titan).seconds


def test_layers_that_are_renamed_alike_are_one(profile, record):
    found = profile_record(profile, rename=lambda label: "net")
    assert [one.label for one in found.layers] == ["net"]
    assert found.layers[0].seconds == pytest.approx(record.layer_seconds)
    assert found.layers[0].roof == pytest.approx(profile.total.roof)


def test_profiles_of_other_versions_and_damaged_ones_are_refused(record):
    text = json.loads(record.to_json())
    with pytest.raises(RunError, match="another version of weft .0.0.1.. Measure again"):
        record_from_json(json.dumps({**text, "format": 0, "weft": "0.0.1"}))
    with pytest.raises(RunError, match="damaged"):
        record_from_json("{")
    del text["layers"]
    with pytest.raises(RunError, match="damaged: layers"):
        record_from_json(json.dumps(text))


def test_calls_are_timed_after_warming_up():
    calls = []
    found = call_times(lambda x: calls.append(x), (1,), calls=7)
    assert found.calls == 7
    assert found.warmup == 7
    assert len(calls) == 14
    assert found.p50 <= found.p95 <= found.p99


def test_the_report_page_stands_by_itself(tmp_path, record, profile):
    faster = replace(record, layers=tuple(replace(one, seconds=one.seconds / 2) for one in record.layers))
    insight.save_report(tmp_path / "two.html", {"<before>": record, "after": faster})
    text = (tmp_path / "two.html").read_text()
    assert "<script" not in text
    assert not re.search(r'(src|href)="(?!#|data:)', text), "nothing is loaded"
    assert "&lt;before&gt;" in text
    assert "2.00 times as fast" in text
    assert "modelled" in text
    assert text.count("layers.0") >= 2
    assert "Memory through one call" in text
    insight.save_report(tmp_path / "one.html", {"net": profile})  # as it comes from weft.profile
    assert "Whole calls were not timed" in (tmp_path / "one.html").read_text()


def test_the_roofline_has_its_bandwidth_at_the_slope_and_one_roof_a_machine(record):
    text = roofline_svg({"a": record, "b": record})
    assert text.count("<polyline") == len(record.roof.peaks)
    assert text.count("B/s</text>") == 1
    other = replace(record, where="a GPU", roof=replace(record.roof, peaks={"32 bits": 3e13, "16 bits": 3e14}))
    both = roofline_svg({"a": record, "b": other})
    assert both.count("<polyline") == len(record.roof.peaks) + 2
    assert "in 16 bits" in both


def test_areas_of_memory_are_stacked():
    steps = (MemoryStep("conv", 0.0, 1.0, 2_000_000, 1_000_000), MemoryStep("fc", 1.0, 3.0, 1_000_000, 0))
    areas = memory_areas(MemoryRecord(1_000_000, 0, 0, steps), 2e-3)
    assert (
        areas.paths[0]
        == "M0.0 750.0L250.0 750.0L250.0 750.0L1000.0 750.0L1000.0 1000.0L250.0 1000.0L250.0 1000.0L0.0 1000.0Z"
    )
    assert areas.paths[2].startswith("M0.0 0.0L250.0 0.0L250.0 500.0")
    assert areas.y_ticks[-1] == (1.0, "4 MB")
    assert [name for _, name in areas.notes] == ["conv", "fc"]


def test_the_job_keeps_several_profiles_the_newest_first(tmp_path):
    runs = tmp_path / "runs"
    job = submit_profile(JobQueue(runs), named_subject("lenet_300_100", runs), {"repeats": 2})
    assert job.kind == "profile"
    assert job.settings["name"] == "Profile of lenet_300_100"
    told = []
    profile_job(job.settings, None, told.append)
    profile_job({**job.settings, "batch": 2}, None)
    first, second = stored_profiles(network_profiles(runs, "lenet_300_100"))
    assert (first.record.batch, second.record.batch) == (2, 1)
    assert told[-1].type == "result"
    calls = names(checked(first.trace)["main thread"], "user")
    assert calls == [f"call {number} on cpu" for number in range(1, RECORDED + 1)]
    delete_profile(first)
    assert [one.id for one in stored_profiles(first.folder)] == [second.id]
    with pytest.raises(UserError, match="no profile"):
        stored_profile(first.folder, "../secret")


def test_what_cannot_be_measured_is_known_before(tmp_path):
    queue = JobQueue(tmp_path)
    with pytest.raises(UserError, match="neither a run nor a network. Did you mean lenet"):
        named_subject("lenet6", tmp_path)
    (tmp_path / "r").mkdir()
    with pytest.raises(UserError, match="a run with weights is required"):
        submit_profile(queue, {"run": str(tmp_path / "r")}, {})
    with pytest.raises(UserError, match="a device of this machine is required"):
        submit_profile(queue, {"network": "lenet5"}, {"device": "cuda:99"})
    with pytest.raises(UserError, match="batch=0"):
        submit_profile(queue, {"network": "lenet5"}, {"batch": 0})
    assert not queue.jobs()


def test_the_profile_of_a_function_counts_calls(tmp_path) -> None:
    """It does not know the batch: 16 examples are one call."""
    found = weft.profile(nn.Linear(8, 4), weft.ones((16, 8)), repeats=1)
    insight.save_report(tmp_path / "page.html", {"net": found})
    page = (tmp_path / "page.html").read_text()
    assert "calls/s" in page
    assert "inferences/s" not in page
    assert "batch" not in page.partition("<h2>")[0].partition("<header>")[2]
