"""Checks recipes: their settings are valid, they give way to the command, and they claim only what was measured."""

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from weft.cli import main
from weft.errors import UserError
from weft.jobs.checks import check_settings
from weft.jobs.recipes import RecipeStore, with_recipe
from weft.jobs.sweeps.settings import checked_sweep
from weft.zoo.recipes import RECIPES, Measurement, find_recipe


@pytest.mark.parametrize("name", RECIPES)
def test_the_settings_of_a_recipe_are_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "weights.safetensors"
    weights.touch()
    given = {"recipe": name, **({"weights": str(weights)} if "freeze" in RECIPES[name].settings else {})}
    check_settings("train", with_recipe("train", given))


def test_a_recipe_separates_what_was_measured_from_what_was_published() -> None:
    for recipe in RECIPES.values():
        first, *rest = recipe.results()
        assert first.startswith("measured with weft: ")
        assert rest == ([f"published: {recipe.published}"] if recipe.published else [])
        if recipe.measured is None:
            assert first.endswith("not yet")
        else:
            assert all(value > 0.0 for value in recipe.measured.values)
            assert "accuracy" not in recipe.measured.metric or max(recipe.measured.values) < 1.0
    found = Measurement("test accuracy", (0.5, 0.25), "2026-01-02", "0.1.0", "CPU", changed="epochs=2")
    assert str(found) == "test accuracy 50.00 %, 25.00 % with epochs=2 (2 runs on CPU, 2026-01-02, weft 0.1.0)"
    assert str(replace(found, metric="loss", values=(2.5,))).startswith("loss 2.5000 with epochs=2 (1 run on CPU")
    with pytest.raises(UserError, match="there is no recipe 'mnst'. Did you mean mnist?"):
        find_recipe("mnst")


def test_the_command_goes_before_the_recipe_and_the_recipe_before_defaults() -> None:
    found = with_recipe("train", {"recipe": "cifar10-resnet20", "epochs": 3})
    assert (found["epochs"], found["momentum"], found["model"], found["seed"]) == (3, 0.9, "resnet20", 0)


def test_settings_are_saved_as_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "save", "mine", "recipe=digits", "model=mlp", "rate=1e-3", "size=64x48", "name=first"]) == 0
    store = RecipeStore("runs")
    assert store.settings("mine") == {"recipe": "digits", "model": "mlp", "rate": "0.001", "size": "64x48"}
    found = with_recipe("train", {"recipe": "mine", "epochs": 3})
    assert (found["model"], found["rate"], found["epochs"], found["size"]) == ("mlp", 1e-3, 3, (64, 48))
    assert (found["recipe"], found["augment"], found["name"]) == ("digits", "light", None)
    assert checked_sweep({"recipe": "mine", "batch": "32,64"}).settings["model"] == "mlp"
    assert main(["recipes"]) == 0
    assert "mine: saved in" in capsys.readouterr().out
    assert main(["recipes", "delete", "mine"]) == 0
    assert store.names() == []
    check_settings("train", found)  # a run does not need the recipe any more


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("digits", {"epochs": 3}, "digits is a recipe of weft"),
        ("../x", {"epochs": 3}, "a name of letters"),
        ("mine", {"name": "first"}, "requires settings, got none"),
        ("mine", {"epoch": 3}, "Did you mean epochs?"),
        ("mine", {"rate": "0.1,0.03"}, "rate=0.1,0.03"),
    ],
)
def test_what_is_no_recipe_is_not_saved(tmp_path: Path, name: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        RecipeStore(tmp_path).save(name, given)
    with pytest.raises(UserError, match="there is no recipe 'other'"):
        RecipeStore(tmp_path).delete("other")
    assert not (tmp_path / ".recipes").exists()


def test_a_network_is_trained_by_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "recipe=digits", "epochs=1", "name=quick"]) == 0
    args = (tmp_path / "runs" / "classify" / "quick" / "args.yaml").read_text().splitlines()
    assert {'recipe: "digits"', 'model: "lenet5_classic"', "epochs: 1", 'augment: "light"'} <= set(args)
    assert main(["cfg", "recipe=digits"]) == 0
    assert 'model: "lenet5_classic"' in capsys.readouterr().out.splitlines()
    assert main(["recipes"]) == 0
    said = capsys.readouterr().out
    assert all(f"{name}: {recipe.about}" in said for name, recipe in RECIPES.items())
    assert main(["recipes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digits"]["measured"]["values"]


def test_the_benchmark_of_recipes_records_a_row_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parent.parent / "benchmarks")
    monkeypatch.chdir(tmp_path)
    benchmark = importlib.import_module("recipes")
    monkeypatch.delitem(sys.modules, "recipes")
    small = ["epochs=1", "model=logistic_regression", "augment=none"]
    benchmark.main(["digits", "--data", ".", "--seeds", "0", "1", "--json", "rows.json", "--set", *small])
    rows = json.loads(Path("rows.json").read_text())
    assert [(row["recipe"], row["seed"], row["split"], row["epochs"]) for row in rows] == [
        ("digits", 0, "test", 1), ("digits", 1, "test", 1),
    ]  # fmt: skip
    assert all(row["accuracy"] > 0.5 and row["seconds"] >= row["epoch_seconds"] for row in rows)
    assert rows[0]["changed"] == {"epochs": "1", "model": "logistic_regression", "augment": "none"}
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
