"""Checks comparisons of runs: tables, sweeps with the importance of settings, disagreements, and their API."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from run_tools import EXAMPLES, api, evaluated_run
from studio_tools import make_run
from weft.report.parallel_coordinates import axis_of, parallel_axes
from weft.report.predictions import read_predictions
from weft.studio.library.run_comparison import best_runs, disagreements, metrics_of, sweep_view, table, value_at
from weft.studio.pages.compare import assigned
from weft.studio.ui.context import Studio

RUNS = "classify/one,classify/two,classify/three"


@pytest.fixture
def web(tmp_path: Path) -> tuple[TestClient, Studio]:
    evaluated_run(tmp_path, "one", 0, [0.5, 0.9, 0.8], rate=0.1)
    evaluated_run(tmp_path, "two", 1, [0.6, 0.7], rate=0.01, model="mlp")
    evaluated_run(tmp_path, "three", 2, [0.6, 0.95], rate=0.001)
    return api(tmp_path)


def test_values_at_the_best_the_last_and_a_chosen_epoch(web: tuple[TestClient, Studio]) -> None:
    _, studio = web
    rows = [studio.index.get(name) for name in RUNS.split(",")]
    one, two, three = (row for row in rows if row is not None)
    metric = "validation_accuracy"
    assert [value_at(one, metric, at) for at in ("best", "last", "1", "9")] == [0.9, 0.8, 0.5, None]
    assert best_runs([one, two, three], metric, "best") == {three.id}
    assert best_runs([one, two, three], "validation_loss", "1") == {two.id, three.id}
    assert best_runs([one, one], metric, "best") == set()
    assert metrics_of([one, two])[:2] == ["validation_accuracy", "validation_loss"]
    assert [line["best_epoch"] for line in table([one, two, three])] == [2, 2, 2]


def test_the_comparison_over_the_api(web: tuple[TestClient, Studio]) -> None:
    client, _ = web
    found = client.get(f"/compare?runs={RUNS}&at=last").json()
    assert [line["validation_accuracy"] for line in found["results"]] == [0.8, 0.7, 0.95]
    assert {one["name"]: one["others"] for one in found["settings"]}["model"] == ["mlp", None]
    rows = list(csv.DictReader(io.StringIO(client.get(f"/compare/table.csv?runs={RUNS}").text)))
    assert [row["setting rate"] for row in rows] == ["0.1", "0.01", "0.001"]
    assert rows[2]["validation_accuracy"] == "0.95"
    page = client.get(f"/compare/report.html?runs={RUNS}").text
    assert "What mattered" in page
    assert "Equal predictions" in page
    assert client.get(f"/compare?runs={RUNS}&at=often").status_code == 400
    assert client.get("/compare?runs=nothing").status_code == 404
    assert client.get("/compare?runs=").status_code == 400


def test_where_networks_disagree(web: tuple[TestClient, Studio]) -> None:
    client, studio = web
    found = client.get(f"/compare/disagreements?runs={RUNS}&limit=500").json()
    predictions = [read_predictions(studio.config.runs / name) for name in RUNS.split(",")]
    predicted = [one.predicted.tolist() for one in predictions if one is not None]
    different = {i for i in range(EXAMPLES) if len({column[i] for column in predicted}) > 1}
    assert {one["index"] for one in found["shown"]} == different
    assert found["disagree"] == len(different)
    assert len(found["tests"]) == 3
    first = found["shown"][0]
    assert [vote["predicted"] for vote in first["votes"]] == [("cat", "dog", "owl")[column[first["index"]]] for column in predicted]  # fmt: skip
    assert client.get(f"/runs/{first['picture']}/examples/{first['index']}.png").status_code == 200
    make_run(studio.config.runs, "old", [0.5])
    studio.index.refresh()
    old = studio.index.get("classify/old")
    assert old is not None
    assert disagreements([old, old]) is None
    assert client.get("/compare/disagreements?runs=classify/one,classify/old").status_code == 400


def test_a_sweep_shows_its_settings_and_what_mattered(tmp_path: Path) -> None:
    for i, rate in enumerate([0.1, 0.03, 0.01, 0.003] * 4):
        make_run(tmp_path, f"run{i}", [0.5, 0.5 + rate], rate=rate, seed=i)
    client, studio = api(tmp_path)
    view = sweep_view(studio.index.rows())
    assert view is not None
    assert [axis.name for axis in view.axes] == ["rate", "seed", "validation_accuracy"]
    assert view.axes[-1].ticks[-1] == (1.0, "60 %")
    assert max(view.ranks) == 1.0
    runs = ",".join(row.id for row in studio.index.rows())
    found = client.get(f"/compare/importance?runs={runs}").json()
    assert (found["method"], found["runs"], found["settings"][0]["name"]) == ("forest", 16, "rate")
    assert found["settings"][0]["share"] > 0.9
    assert client.get("/compare/importance?runs=classify/run0,classify/run1").status_code == 400


def test_axes_of_parallel_coordinates() -> None:
    rate = axis_of("rate", [0.1, None, 0.001])
    assert rate.places == [1.0, 0.0, 0.2]
    assert rate.ticks == [(0.0, "default"), (0.2, "0.001"), (0.6, "0.01"), (1.0, "0.1")]
    assert axis_of("batch", [32, 64, 48]).places == [0.0, 1.0, 0.5]
    assert axis_of("batch", [32, 32]).places == [0.5, 0.5]
    words = axis_of("model", [f"net{i}" for i in range(20)])
    assert len(words.ticks) < 9
    assert [axis.name for axis in parallel_axes({"rate": [1, 2]}, "loss", [0.1, 0.2])] == ["rate", "loss"]


def test_runs_keep_their_colours() -> None:
    assert assigned(["a", "b"], []) == {"a": 1, "b": 2}
    assert assigned(["b", "c"], [2]) == {"b": 2, "c": 1}
    assert len(set(assigned([str(i) for i in range(20)], [3, 1]).values())) == 20
