"""The tab Profile of runs and networks and its REST routes: what is shown of stored profiles, comparisons, jobs, and what a browser does with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studio_tools import BROWSER, LocalStudio, chromium, make_run, page_errors, served_studio
from weft.errors import RunError
from weft.insight.call_timeline import call_timeline
from weft.insight.energy_comparison import EnergyComparison, EnergyForm
from weft.insight.profile_record import CallTimes, LayerRecord, MemoryRecord, MemoryStep, Offender, ProfileRecord
from weft.insight.roof_lines import RoofLines
from weft.jobs import JobQueue
from weft.jobs.profiles.energy_job import energy_job, keep_energy, stored_energies
from weft.jobs.profiles.store import StoredProfile, network_profiles, run_profiles, stored_profiles
from weft.jobs.profiles.subject import ProfileSubject
from weft.jobs.queue.kinds import PROFILE
from weft.studio.library.profile_choice import Compared, ProfileChoice, Shelf
from weft.studio.library.profiles import ProfiledThing
from weft.studio.ui.energy_view import energy_bars, layer_energies, moved_text
from weft.studio.ui.profile_view import advice, costs, figures, layer_rows, roofline_spec, timeline_ticks, which

needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
PATH = "/api/v1/runs/classify/base/profiles"
SLICE = {"ph": "X", "pid": 1, "tid": 1, "args": {}}
TRACE = {
    "traceEvents": [
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "main thread"}},
        SLICE | {"name": "call 1 on cpu", "cat": "user", "ts": 0, "dur": 9000},
        SLICE | {"name": "call 2 on cpu", "cat": "user", "ts": 10_000, "dur": 4000},
        SLICE | {"name": "network.body.conv1", "cat": "layer", "ts": 10_000, "dur": 2000},  # as in a saved int8 network
        SLICE | {"name": "conv 3x3", "cat": "kernel", "ts": 10_000, "dur": 1900, "args": {"layer": "network.body.conv1", "FLOP": 2e6, "bytes": 1e3}},
        SLICE | {"name": "matmul", "cat": "kernel", "ts": 12_000, "dur": 1000, "args": {"layer": "fc"}},
        SLICE | {"name": "tiny", "cat": "kernel", "ts": 13_400, "dur": 5},
        SLICE | {"name": "tiniest", "cat": "kernel", "ts": 13_500, "dur": 1},
    ]
}  # fmt: skip
BOX = re.compile(r"pslice c-layer.{0,300}?&gt;(\w+)&lt;/button")
MORE_BATCH = "A larger batch reuses the weights that it reads."


def layer(label: str, ms: float, roof: float = 0.5, bound: str = "compute") -> LayerRecord:
    seconds = ms / 1e3
    return LayerRecord(label, "Conv2d", seconds, 1e6, 1e5, roof * seconds, 1e-6 * ms, 4096, bound, "float32", {"forward": seconds}, 1)  # fmt: skip


def record(
    device: str = "cpu", batch: int = 1, made: float = 1.0, scale: float = 1.0, what: str = "infer"
) -> ProfileRecord:
    layers = (layer("conv1", 2 * scale, 0.3), layer("conv2", 1 * scale, 0.9), layer("fc", 1 * scale, 0.1, "memory"))
    worst = tuple(
        Offender(f"kernel of {one.label}", one.label, one.seconds, one.seconds - one.least, one.roof, one.bound, MORE_BATCH, "net.py:1")
        for one in layers
    )  # fmt: skip
    memory = MemoryRecord(
        1_000_000, 3136, 40, (MemoryStep("conv1", 0.0, 2e-3, 50_000, 10_000), MemoryStep("fc", 2e-3, 2e-3, 9_000, 0))
    )
    return ProfileRecord(
        "base", what, batch, device, "2 threads", made, "0.1.0", CallTimes(4e-3 * scale, 5e-3, 6e-3 * scale, 0.02, 200, 20), 4e-3 * scale, 0.01,
        RoofLines(2e10, {"32 bits": 4e10}), "40 GFLOP/s", 5e-6, False, 45, layers, worst, memory,
    )  # fmt: skip


def store(folder: Path, id: str, found: ProfileRecord) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{id}.json").write_text(found.to_json())
    (folder / f"{id}.trace.json").write_text(json.dumps(TRACE))


def compressed_from(root: Path, source: Path) -> Path:
    made = make_run(root, "base-small-1", [0.9])
    settings = {"method": "prune,share,rans", "target": None, "density": [0.3], "tolerance": 1.0}
    state = {"settings": settings, "source": str(source.resolve()), "points": [], "done": True}
    (made / "compression.json").write_text(json.dumps(state))
    return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with profiles on the CPU and a GPU, its compression that is twice as fast, and one that was never trained."""
    root = tmp_path_factory.mktemp("profile") / "runs"
    base = make_run(root, "base", [0.9, 0.98])
    (base / "weights").mkdir()
    (base / "weights" / "best.safetensors").write_bytes(b"weights")
    store(run_profiles(base), "20261101-100000-cuda0-b1-infer", record("cuda:0", made=1.0, scale=0.1))
    store(run_profiles(base), "20261101-110000-cpu-b1-infer", record(made=2.0))
    store(run_profiles(compressed_from(root, base)), "20261101-120000-cpu-b1-infer", record(made=3.0, scale=0.5))
    make_run(root, "young", [], ended=False)
    old = network_profiles(root, "lenet5")
    old.mkdir(parents=True)
    (old / "20251101-100000-cpu-b1-infer.json").write_text('{"format": 0, "weft": "0.0.1"}')
    return root


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[LocalStudio]:
    with served_studio(runs) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


# --- what is said ---------------------------------------------------------------------------------------------------------------------


def test_figures_say_what_changed_and_what_is_modelled():
    rate, p50, p99, energy, near = figures(Compared(record(scale=0.5), record()))
    assert (rate.number, rate.unit, rate.context, rate.tone) == ("500", "on CPU", "250 before, 2 times as fast", "up")
    assert (p50.number, p50.context) == ("2.00", "4.00 ms before")
    assert p99.context == "6.00 ms before"
    assert energy.title == "Inferences/J, modelled"
    assert (near.number, near.context) == ("25", "25 % before")
    measured = replace(record(), energy_measured=True)
    assert figures(Compared(measured))[3].title == "Inferences/J"
    assert figures(Compared(measured, record()))[3].context == "0.00500 mJ a call"  # modelled energy is no comparison
    assert "before" in figures(Compared(measured, measured))[3].context
    assert figures(Compared(record(what="train")))[0].title == "Samples/s"


def test_a_profile_that_was_measured_in_another_way_is_not_called_before():
    earlier, gpu, training = record(batch=8), record("cuda:0"), record(what="train")
    assert which(Compared(record(), record())) == ("before", "after")
    assert which(Compared(record(), earlier)) == ("at batch 8", "this one")
    assert which(Compared(record(), gpu)) == ("on GPU 0", "this one")
    assert which(Compared(record(), training)) == ("in training", "this one")
    pair = Compared(record(), earlier)
    assert not any("before" in tile.context for tile in figures(pair))
    assert figures(pair)[1].context == "4.00 ms at batch 8"
    assert roofline_spec([pair], None)["series"][0]["names"] == ["at batch 8", "this one"]


def test_layers_are_matched_by_name_and_sorted():
    after = record(scale=0.5)
    pair = Compared(replace(after, layers=(*after.layers[:2], layer("quantize", 3))), record())
    rows = layer_rows(pair)
    assert [row.label for row in rows] == ["quantize", "conv1", "conv2", "fc"]
    assert [(row.before is None, row.after is None) for row in rows] == [(True, False), (False, False), (False, False), (False, True)]  # fmt: skip
    assert [row.label for row in layer_rows(pair, "layer", False)] == ["conv1", "conv2", "fc", "quantize"]
    assert [step for _, step, _ in costs(record(), "seconds")] == [6, 3, 3]


def test_blocks_are_the_sums_of_their_layers():
    parts = [layer("layers.3.body.layers.0", 2), layer("layers.3.shortcut", 1, bound="memory"), layer("layers.4", 1)]
    found = replace(record(), layers=tuple(parts)).in_blocks()
    assert [(one.label, one.kind, round(1e3 * one.seconds, 6), one.bound) for one in found.layers] == [
        ("layers.3", "2 layers", 3.0, "compute"),
        ("layers.4", "Conv2d", 1.0, "compute"),
    ]
    assert found.layer_seconds == pytest.approx(4e-3)


def test_layers_with_one_remedy_are_one_advice_and_offer_a_larger_batch():
    first, second, last = advice(record())
    assert first.title == "conv1 and conv2 reach 30 to 90 % of the roof"
    assert first.measure == {"device": "cpu", "batch": 8, "what": "infer"}
    assert second.title == "fc waits for memory"
    assert "Up to 0.900 ms of 4.00 ms" in second.text
    assert last.is_good
    shaky = replace(record(), times=CallTimes(4e-3, 5e-3, 6e-3, 0.4, 200, 20))
    assert advice(shaky)[-1].title == "Other work disturbed the measurement"


def test_the_choice_follows_devices_and_knows_what_is_before_and_after():
    def shelf(is_later: bool | None, *found: ProfileRecord) -> Shelf:
        thing = ProfiledThing("x", Path("/x"), "/x", {})
        return Shelf(
            thing, [StoredProfile(f"p{i}", Path("/x"), one.made, one) for i, one in enumerate(found)], is_later
        )

    choice = ProfileChoice([shelf(None, record(made=3), record("cuda:0", made=2), record(made=1, batch=8)), shelf(True, record(made=0, scale=0.5))])  # fmt: skip
    assert choice.known("device") == ["cuda:0", "cpu"]
    choice.set_device("cuda:0")
    assert [pair.after.device for pair in choice.pairs] == ["cuda:0"]
    choice.set_device("both")
    assert [pair.after.device for pair in choice.pairs] == ["cuda:0", "cpu"]
    choice.set_device("cpu")
    choice.compare_with("1:")
    assert choice.pair.after.latency == pytest.approx(2e-3), "a compression is after, though it was measured before"
    choice.set_device("both")
    assert [pair.before is None for pair in choice.pairs] == [False, True], (
        "the compression was not measured on the GPU"
    )
    choice.set_device("cpu")
    choice.compare_with("0:p2")
    assert (choice.pair.before.made, choice.pair.after.made) == (1, 3)
    choice.show("p2")
    choice.compare_with("0:p0")
    assert (choice.pair.before.made, choice.pair.after.made) == (3, 1), "another batch is neither before nor after"
    choice.show("p0")
    choice.set("batch", 8)
    assert choice.record.batch == 8
    choice.compare_with("1:")
    assert choice.unmeasured is choice.shelves[1].thing, "it was measured with another batch only"
    choice.update([shelf(None), *choice.shelves[1:]])
    assert choice.pair is None
    spec = roofline_spec([Compared(record(), record())], "fc")
    assert [len(spec["series"][0][when]) for when in ("before", "after")] == [3, 3]


# --- REST -----------------------------------------------------------------------------------------------------------------------------


def test_profiles_are_listed_read_and_deleted(server: LocalStudio, runs: Path):
    status, found = server.request("GET", PATH)
    assert status == 200
    assert [one["device"] for one in found["profiles"]] == ["cpu", "cuda:0"]
    assert found["profiles"][0]["per_second"] == pytest.approx(250)
    id = found["profiles"][1]["id"]
    status, one = server.request("GET", f"{PATH}/{id}")
    assert (status, one["device"], len(one["layers"])) == (200, "cuda:0", 3)
    assert server.request("GET", f"{PATH}/{id}/trace") == (200, TRACE)
    status, page = server.request("GET", f"{PATH}/{id}/report")
    assert status == 200
    assert b"Memory through one call" in page
    assert server.request("GET", f"{PATH}/20200101-000000-cpu-b1-infer")[0] == 404
    assert server.request("GET", "/api/v1/networks/nothing/profiles")[0] == 404
    folder = run_profiles(runs / "classify" / "base")
    store(folder, "20261101-090000-cpu-b4-infer", record(batch=4))
    assert server.request("DELETE", f"{PATH}/20261101-090000-cpu-b4-infer")[0] == 200
    assert len(stored_profiles(folder)) == 2


def test_old_profiles_say_so_and_bad_settings_are_refused_at_once(server: LocalStudio):
    _, found = server.request("GET", "/api/v1/networks/lenet5/profiles")
    assert "another version of weft (0.0.1)" in found["profiles"][0]["problem"]
    status, said = server.request("GET", f"/api/v1/networks/lenet5/profiles/{found['profiles'][0]['id']}")
    assert status == 409
    assert "Measure again" in said["message"]
    for path, body, words in (
        (PATH, {"device": "cuda:9"}, "a device of this machine"),
        ("/api/v1/runs/classify/young/profiles", {}, "a run with weights"),
        ("/api/v1/runs/classify/base-small-1/profiles", {"what": "train"}, "no training step"),
        (PATH, {"speed": 1}, "speed"),
    ):
        status, said = server.request("POST", path, body)
        assert status in (400, 422)
        assert words in json.dumps(said)
    assert not server.studio.queue.jobs()


def test_the_timeline_of_the_shortest_call():
    found = call_timeline(TRACE)
    assert (found.title, found.seconds, found.dropped) == ("call 2 on cpu", pytest.approx(4e-3), 1)
    [lane] = found.lanes
    assert (lane.name, lane.depth) == ("main thread", 2)
    boxes = {box.name: box for box in lane.boxes}
    assert (boxes["network.body.conv1"].depth, boxes["conv 3x3"].depth, boxes["matmul"].depth) == (0, 1, 0)
    assert (boxes["matmul"].left, boxes["matmul"].width) == (0.5, 0.25)
    assert boxes["conv 3x3"].note == "conv 3x3, 1.90 ms, network.body.conv1, 2.00 MFLOP, 1.00 kB"
    assert boxes["tiny"].note == "tiny, 5.00 µs"
    assert found.layers == ("network.body.conv1", "fc")
    assert next(text for _, text in timeline_ticks(found)) == "0"
    assert call_timeline({"traceEvents": []}) is None


def test_the_tab_has_the_timeline_or_says_why_not(server: LocalStudio):
    page = server.web.get("/runs/classify/base?tab=profile").text
    assert "Timeline of one call" in page
    assert "matmul, 1.00 ms, fc" in page
    assert "conv1" in BOX.findall(page), "layers are called as in the table"
    folder = run_profiles(server.runs / "classify" / "base")
    newest = folder / f"{stored_profiles(folder)[0].id}.trace.json"
    before = newest.read_text()
    try:
        newest.write_text("{damaged")
        assert "The trace of this measurement is gone or cannot be read" in server.web.get("/runs/classify/base?tab=profile").text  # fmt: skip
    finally:
        newest.write_text(before)


# --- in a browser ---------------------------------------------------------------------------------------------------------------------


@needs_browser
def test_the_tab_shows_compares_selects_and_measures(server: LocalStudio, browser: Any):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    problems = page_errors(page)
    page.goto(server.way_in)
    page.goto(f"{server.address}/runs/classify/base?tab=profile")
    page.wait_for_selector(".metric b:has-text('250')")
    page.wait_for_selector(".pbody canvas")
    page.select_option(".pwith select", "1:")
    page.wait_for_selector(".metric em:has-text('250 before, 2 times as fast')")
    page.wait_for_selector(".players thead:has-text('Time before, ms')")  # the table follows the numbers above it
    assert page.locator(".players th").first.text_content() == "Layer"
    page.get_by_role("button", name="conv2 Conv2d").click()
    page.wait_for_selector(".costs button.on:has-text('conv2')")
    assert page.locator(".players tr.sel").count() == 1
    page.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".costs button.on:not(:has-text('conv2'))")
    page.get_by_role("button", name="Both").click()
    page.wait_for_selector(".legend:has-text('GPU 0')")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 900})
    page.get_by_role("button", name="Measure again").click()
    page.wait_for_selector(".pjob:has-text('To be measured on CPU')")
    (job,) = server.studio.queue.jobs()
    assert (job.kind, job.settings["batch"], job.settings["device"]) == (PROFILE, 1, "cpu")
    job.set("failed", "[profile] the machine was on fire.")
    page.wait_for_selector(".pjob .problem:has-text('the machine was on fire')")
    store(run_profiles(server.runs / "classify" / "base"), "20261101-130000-cpu-b1-infer", record(made=9.0, scale=0.25))
    page.wait_for_selector("text=Measurements3, the newest first")
    page.goto(f"{server.address}/networks/lenet5?tab=profile")
    page.wait_for_selector(".pnote:has-text('another version of weft')")
    page.goto(f"{server.address}/runs/classify/young?tab=profile")
    page.wait_for_selector("h2:has-text('No weights yet')")
    assert not problems
    context.close()


# --- energy in other forms --------------------------------------------------------------------------------------------------------


def forms() -> EnergyComparison:
    """float32, an int8 program of its own, and a compression beside them."""
    layers = {
        "float32": {"conv1": {"mac float32": 4e-6, "register": 4e-6, "dram": 8e-6}, "fc": {"dram": 4e-6}},
        "int8": {"conv1": {"mac int8": 1e-6, "register": 2e-6, "dram": 2e-6}, "fc": {"dram": 1e-6}},
        "base-small-1": {
            "conv1": {"mac float32": 4e-6, "register": 4e-6, "dram": 8e-6},
            "fc": {"dram": 1e-6, "l3": 1e-6},
        },
    }
    made = tuple(
        EnergyForm(name, one, name != "int8", "5 bits" if name == "int8" else "") for name, one in layers.items()
    )
    return EnergyComparison(made, 45, 32e6, "base, infer, batch 1", ("sparse: cannot be made of this network.",))


def test_a_comparison_of_forms_is_kept_and_read_again(tmp_path: Path) -> None:
    found = forms()
    again = EnergyComparison.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found
    keep_energy(tmp_path, {"device": "cpu", "batch": 1, "density": 0.1}, found)
    keep_energy(tmp_path, {"device": "cuda:0", "batch": 8, "density": 0.1}, found)
    (tmp_path / "energy-cpu-b2.json").write_text('{"device": "cpu", "batch": 2, "comparison": {}}')
    assert sorted((one.device, one.batch) for one in stored_energies(tmp_path)) == [("cpu", 1), ("cuda:0", 8)]
    with pytest.raises(RunError, match="is damaged"):
        EnergyComparison.from_dict({"forms": []})


def test_bars_are_as_long_as_the_energy_and_say_what_moved() -> None:
    first, int8 = energy_bars(forms())[:2]
    assert (first.energy, first.share, sum(part.width for part in first.parts)) == ("20.0 µJ", "", pytest.approx(100))
    assert (int8.share, int8.is_less, int8.own_program, int8.computes_in) == ("30 %", True, False, "int8")
    assert [(part.group, pytest.approx(part.width)) for part in int8.parts] == [("arithmetic", 5), ("register", 10), ("dram", 15)]  # fmt: skip
    assert moved_text(forms(), "int8") == [("DRAM", "−9.00 µJ (−75 %)", True), ("arithmetic", "−3.00 µJ (−75 %)", True), ("registers", "−2.00 µJ (−50 %)", True)]  # fmt: skip
    assert moved_text(forms(), "base-small-1") == [("DRAM", "−3.00 µJ (−25 %)", True), ("cache", "+1.00 µJ", False)]
    assert layer_energies(forms(), "int8") == [("conv1", "16.0 µJ", "5.00 µJ", pytest.approx(0.3125)), ("fc", "4.00 µJ", "1.00 µJ", 0.25)]  # fmt: skip


def test_forms_are_compared_as_a_job_beside_the_compressions(server: LocalStudio, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    status, made = server.request("POST", "/api/v1/runs/classify/base/energy", {"batch": 2})
    assert status == 200
    job = JobQueue(runs).job(made["number"])
    assert (job.kind, job.settings["batch"], [Path(one).name for one in job.settings["against"]]) == ("energy", 2, ["base-small-1"])  # fmt: skip
    asked: list[str] = []

    def compared(subjects: Any, options: Any, names: Any, density: float) -> EnergyComparison:
        asked.extend([*(one.title for one in subjects), str(options.batches), str(density)])
        return forms()

    monkeypatch.setattr("weft.jobs.profiles.energy_job.compare_energy", compared)
    monkeypatch.setattr("weft.jobs.profiles.energy_job.subject_of", lambda settings: ProfileSubject("a subject", lambda: None, lambda batch: ()))  # fmt: skip
    energy_job(job.settings, None)
    assert asked == ["a subject", "base-small-1", "(2,)", "0.1"]
    (read,) = server.request("GET", "/api/v1/runs/classify/base/energy")[1]
    assert (read["batch"], read["forms"][1]["name"], read["forms"][1]["moved"]["dram"]) == (
        2,
        "int8",
        pytest.approx(-9e-6),
    )
    page = server.web.get("/runs/classify/base?tab=profile").text
    for text in ("Energy in other forms", "counted on float32", "20.0 µJ", "base-small-1", "Compare again"):
        assert text in page, text
    assert "Compare forms" in server.web.get("/networks/lenet5?tab=profile").text
    assert server.request("POST", "/api/v1/runs/classify/young/energy")[0] == 400
    assert server.request("POST", "/api/v1/runs/classify/base/energy", {"density": 2})[0] == 422
