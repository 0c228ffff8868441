"""The page docs/insight.md shows what the measured files say, and projections between the measured machines stay as good as it says."""

import json

import pytest

from benchmarks import insight, insight_page


def test_tables_and_pictures_are_those_of_the_files() -> None:
    text = insight_page.PAGE.read_text(encoding="utf-8")
    assert {found[2] for found in insight_page.MARK.finditer(text)} == set(insight_page.TABLES)
    assert insight_page.page(text) == text, "run python -m benchmarks.insight_page"
    drawn = insight_page.pictures()
    assert {path.name for path in insight_page.PICTURES.glob("*.svg")} == set(drawn)
    for name, content in drawn.items():
        assert (insight_page.PICTURES / name).read_text(encoding="utf-8") == content, name


def test_no_table_is_empty_and_no_column_is_without_figures() -> None:
    rows = [["network", "A", "B", "C"], ["LeNet-5", insight_page.MISSING, "2", insight_page.MISSING], ["GPT", insight_page.MISSING, "3", insight_page.MISSING]]  # fmt: skip
    assert insight_page.markdown(rows).splitlines() == [
        "| network | B |",
        "| --- | ---: |",
        "| LeNet-5 | 2 |",
        "| GPT | 3 |",
        "",
        "Not measured: A; C.",
    ]
    assert insight_page.markdown(rows[:1]) == "Not measured."


def test_projections_between_measured_machines() -> None:
    """Nothing of the projected network is used of the other machine."""
    errors = insight_page.errors_of(insight_page.profiles_of_one_version())
    assert len(errors) == 4 * 3 * len(insight_page.NETWORKS)
    good = sum(abs(one.error) <= 0.25 for one in errors)
    assert good / len(errors) > 0.92
    shared = "emeraldrapids-16-threads"  # of which other programs held cores
    assert all(abs(one.error) <= 0.25 for one in errors if shared not in (one.source, one.target))
    assert max(abs(one.error) for one in errors) < 0.4


def test_projections_of_the_newer_version() -> None:
    """Its programs compute some convolutions by other algorithms than the machine from which a network is projected."""
    errors = insight_page.errors_of(insight_page.newer_profiles())
    assert len(errors) == 3 * 2 * len(insight_page.NETWORKS)
    assert all(abs(one.error) <= 0.25 for one in errors if one.target == "h200")
    missed = {(one.network, one.target) for one in errors if abs(one.error) > 0.25}
    assert missed == {("mobilenet_v2", "emeraldrapids-16-threads")}


def test_a_measurement_is_continued(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "here.json"
    words = {"save": str(path), "networks": "mlp", "batch": "2", "seconds": "0", "threads": "1", "repeats": "1"}
    insight.measure(insight.DEFAULTS | words | {"parts": "profile,infer,training,memory", "batches": "2"})
    found = json.loads(path.read_text())
    own = found["networks"]["mlp"]
    assert own["profile"]["program"]["kernels"]
    assert set(own["training"]["phases"]) == {"forward", "backward", "update"}
    assert own["memory"]["forecast"] > 0 < own["memory"]["allocated"]
    monkeypatch.setattr(insight, "measured_profile", lambda *_: pytest.fail("it is there already"))
    insight.measure(insight.DEFAULTS | words | {"parts": "profile,infer", "batches": "1,2"})
    again = json.loads(path.read_text())["networks"]["mlp"]
    assert [row["batch"] for row in again["infer"]] == [1, 2]
    assert again["profile"] == own["profile"]


def test_growing_batches_end_where_one_failed(tmp_path) -> None:
    kept = insight.Measurement(tmp_path / "x.json", {"networks": {}})
    for batch in (1, 4):
        kept.add_row("net", "infer", batch, lambda: {"p50": 20.0})
    rows = kept.found["networks"]["net"]["infer"]
    assert [row["batch"] for row in rows] == [1, 4]
    assert rows[1]["note"] == "not tried: a smaller batch takes 20 s"
    kept.add_row("net", "infer", 8, lambda: pytest.fail("4 was not possible"))
    assert len(rows) == 2
