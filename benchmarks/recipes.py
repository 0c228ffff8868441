"""Runs recipes of `weft recipes` and records what they reach: one JSON row a run in benchmarks/results/recipes.json.

    python benchmarks/recipes.py fashion-mnist --data DIR --seeds 0 1 2 --device cuda
    python benchmarks/recipes.py char-text --data input.txt --seeds 0 --set epochs=1     # a shorter run says so in its row

DIR holds the files of the dataset that the recipe names; where it names none, DIR is the data: an image folder or a text file.
Each run is a job of its own below --runs, so a row also says where its report is. Every run is measured on the test split if the data
has one, else on the validation split; the row says which.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.jobs.events import Event
from weft.jobs.recipes import with_recipe
from weft.jobs.training import train
from weft.version import __version__
from weft.zoo.recipes import find_recipe

RESULTS = Path(__file__).parent / "results" / "recipes.json"


def main(words: Sequence[str] | None = None) -> None:
    given = arguments().parse_args(words)
    changed = dict(text.split("=", 1) for text in given.set)
    for seed in given.seeds:
        row = measured(given.name, given.data, {"seed": seed, "device": given.device, "runs": given.runs, **changed})
        row["changed"] = changed
        append(given.json, row)
        print(json.dumps(row), flush=True)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run a recipe with several seeds and record what it reaches.")
    parser.add_argument("name", help="a recipe: weft recipes")
    parser.add_argument("--data", required=True, help="folder with the dataset's files, an image folder or a text file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings that differ from the recipe"
    )
    parser.add_argument("--runs", default="runs", help="folder that runs are kept in")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file that rows are added to")
    return parser


def measured(name: str, data: str, settings: dict[str, Any]) -> dict[str, Any]:
    """One run of a recipe, in figures."""
    where = {"from": data} if "data" in find_recipe(name).settings else {"data": data}
    events: list[Event] = []
    begin = time.monotonic()
    train(with_recipe("recipes", {"recipe": name, **where, **settings}), events.append)
    seconds = time.monotonic() - begin
    epochs = [event.facts for event in events if event.type == "epoch"]
    if not epochs:
        raise SystemExit(f"{name}: the run ended before its first epoch was complete, so there is nothing to record.")
    result = next(event for event in events if event.type == "result")
    numbers = {key: value for key, value in result.facts.items() if isinstance(value, float)}
    return {
        "recipe": name, "seed": settings["seed"], "device": settings["device"], **numbers, "split": result["split"],
        "examples": result.facts.get("examples"), "epochs": len(epochs), "best_epoch": int(result["best"]["epoch"]),
        "seconds": round(seconds, 1), "epoch_seconds": round(epochs[-1]["seconds"] / len(epochs), 2),
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "weft": __version__, "run": result["folder"],
    }  # fmt: skip


def append(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a file of rows, one a line."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    lines = ",\n".join(json.dumps(one) for one in [*rows, row])
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
