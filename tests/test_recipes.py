"""Checks recipes: their settings are valid, they give way to the command, and they claim only what was measured."""

import json
from pathlib import Path

import pytest

from weft.cli import main
from weft.errors import UserError
from weft.jobs.checks import check_settings
from weft.jobs.recipes import with_recipe
from weft.zoo.recipes import RECIPES, find_recipe


@pytest.mark.parametrize("name", RECIPES)
def test_the_settings_of_a_recipe_are_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "weights.safetensors"
    weights.touch()
    given = {"recipe": name, **({"weights": str(weights)} if "freeze" in RECIPES[name].settings else {})}
    check_settings("train", with_recipe("train", given))


def test_a_recipe_says_what_was_measured_and_what_was_not() -> None:
    for recipe in RECIPES.values():
        if recipe.measured is None:
            assert recipe.result().startswith("not yet measured here")
        else:
            assert recipe.measured.values
            assert all(0.0 < value < 1.0 for value in recipe.measured.values)
            assert recipe.result().startswith("measured: test accuracy")
    with pytest.raises(UserError, match="there is no recipe 'mnst'. Did you mean mnist?"):
        find_recipe("mnst")


def test_the_command_goes_before_the_recipe_and_the_recipe_before_defaults() -> None:
    found = with_recipe("train", {"recipe": "cifar10-resnet20", "epochs": 3})
    assert (found["epochs"], found["momentum"], found["model"], found["seed"]) == (3, 0.9, "resnet20", 0)


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
