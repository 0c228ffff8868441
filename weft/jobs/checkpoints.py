"""The checkpoints of a run: weights of epochs, and exact states that training continues from. List, delete, and branch off a new run.

weights/best, weights/last, weights/epoch-0007   weights only: a new training starts from them (weights=FILE)
state/last, state/previous                       the exact state: optimizer, random streams and place in the data too
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io import save
from ..io.safetensors import read
from ..locks import one_writer
from ..records import dataclass
from ..report.best_epoch import SELECTION_METRICS, best_row, ranking_key
from ..report.run_record import read_run
from ..train.folder import RunFolder, check_run_name
from .checks import check_settings
from .datasets.facts import FACTS
from .run_weights import SUFFIX, epoch_of, made_by_weights
from .schema import validated
from .settings import SETTINGS
from .stored import settings_of

LONGEST_HEADER = 64 << 20


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: its name such as weights/best, its epoch, the metric that chooses epochs and its value there, its size and time."""

    name: str
    path: Path
    epoch: int | None
    metric: str | None
    value: float | None
    bytes: int
    time: float
    steps: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether training can continue from it as if it had never stopped."""
        return self.name.startswith("state/")

    @property
    def can_be_deleted(self) -> bool:
        """Whether it may be deleted: predictions read the best weights, and a resume reads the last state."""
        return self.name not in ("weights/best", "state/last")


def checkpoints(folder: Path) -> list[Checkpoint]:
    """The checkpoints of a run: exact states, then weights by epoch, the latest first."""
    metrics = read_run(folder).metrics
    metric = next((name for name in SELECTION_METRICS if best_row(metrics, name) is not None), None)
    states = [_described(folder, path, metrics, metric) for path in sorted((folder / "state").glob(f"*{SUFFIX}"))]
    weights = [_described(folder, path, metrics, metric) for path in sorted((folder / "weights").glob(f"*{SUFFIX}"))]
    order = {"weights/best": 0, "weights/last": 1}
    return states + sorted(weights, key=lambda one: (order.get(one.name, 2), -(one.epoch or 0)))


def find_checkpoint(folder: Path, name: str) -> Checkpoint:
    """A checkpoint by its name, such as weights/best, best, epoch-0007 or state/last."""
    known = checkpoints(folder)
    fits = [one for one in known if name in (one.name, one.name.partition("/")[2] if not one.is_exact else one.name)]
    if not fits:
        names = ", ".join(one.name for one in known) or "none"
        raise UserError("checkpoints", f"a checkpoint of {folder.name} is required, got {name!r}. There are: {names}.")
    return fits[0]


def delete_checkpoint(folder: Path, name: str) -> int:
    """Delete a checkpoint; returns the number of bytes freed. The best weights and the last state stay."""
    found = find_checkpoint(folder, name)
    if not found.can_be_deleted:
        why = "predictions and exports read it" if found.name == "weights/best" else "the run continues from it"
        raise UserError("checkpoints", f"{found.name} stays: {why}. Delete the run to remove it.")
    with one_writer(folder):
        _delete(folder, found)
    return found.bytes


def keep_checkpoints(folder: Path, best: int = 0, last: int = 0) -> list[str]:
    """Delete the weights of single epochs except those of the best and of the last epochs, as many as given; returns the names of deleted ones."""
    if best < 0 or last < 0:
        raise UserError("checkpoints", f"numbers of epochs to keep are required, got {best} and {last}.")
    epochs = [one for one in checkpoints(folder) if one.name.startswith("weights/epoch-")]
    ranked = sorted((one for one in epochs if one.value is not None), key=_merit, reverse=True)
    kept = {one.name for one in [*ranked[:best], *sorted(epochs, key=lambda one: -(one.epoch or 0))[:last]]}
    gone = [one for one in epochs if one.name not in kept]
    with one_writer(folder):
        for one in gone:
            _delete(folder, one)
    return [one.name for one in gone]


def _delete(folder: Path, one: Checkpoint) -> None:
    one.path.unlink(missing_ok=True)
    for path in [] if one.is_exact else made_by_weights(folder, one.path.stem):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _merit(one: Checkpoint) -> tuple[float, float]:
    assert one.metric is not None
    return ranking_key(one.metric, {one.metric: one.value})


def _described(folder: Path, path: Path, metrics: Mapping[str, list[float | None]], metric: str | None) -> Checkpoint:
    name, status = path.relative_to(folder).with_suffix("").as_posix(), path.stat()
    epoch, steps = _position(path, name, metrics, metric)
    value = None
    if metric is not None and epoch is not None:
        rows = [i for i, e in enumerate(metrics.get("epoch", [])) if e == epoch]
        value = metrics[metric][rows[-1]] if rows else None
    return Checkpoint(name, path, epoch, metric, value, status.st_size, status.st_mtime, steps)


def _position(
    path: Path, name: str, metrics: Mapping[str, list[float | None]], metric: str | None
) -> tuple[int | None, int | None]:
    """The epoch of a checkpoint, and the steps of a state."""
    if name.startswith("state/"):
        facts = _facts(path)
        return facts.get("epoch"), facts.get("steps")
    if (epoch := epoch_of(path.stem)) is not None:
        return epoch, None
    epochs = [int(e) for e in metrics.get("epoch", []) if e is not None]
    if path.stem == "last":
        return (epochs[-1] if epochs else None), None
    row = best_row(metrics, metric) if metric is not None and path.stem == "best" else None
    return (epochs[row] if row is not None and row < len(epochs) else None), None


def _facts(path: Path) -> dict[str, Any]:
    """What a state says of itself, from the header of the file: values are not read."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, LONGEST_HEADER)))
        found = json.loads(header["__metadata__"]["training"])
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return {}
    return found if isinstance(found, dict) else {}


# --- a new run from a checkpoint ------------------------------------------------------------------------------------------------


def branch_settings(folder: Path, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a new training that starts from the weights of a checkpoint, with a fresh optimizer and schedule."""
    found = find_checkpoint(folder, name)
    if found.is_exact:
        raise UserError("branch", f"weights are required, got {found.name}. branch_state continues from one.")
    own = {"name": None, "exist_ok": False, "weights": str(found.path.absolute())}
    return validated("branch", {**settings_of("branch", folder), **own, **changes}, SETTINGS)


def branch_state(folder: Path, name: str, run: str, changes: Mapping[str, Any]) -> Path:
    """A new run that holds the exact state of a checkpoint; `weft resume` continues it, with the changed settings.

    Metrics up to the checkpoint are copied, so that its charts begin where those of the first run do. Settings that shape the network or the
    optimizer's state must stay as they are: loading the state checks that.
    """
    found = find_checkpoint(folder, name)
    if not found.is_exact:
        raise UserError("branch", f"an exact state is required, got {found.name}. state/last is one.")
    check_run_name("branch", run)
    told = settings_of("branch", folder)
    settings = validated("branch", {**told, **changes, "name": run, "exist_ok": False}, SETTINGS)
    check_settings("branch", settings)
    content = read(found.path)
    facts = json.loads(content.metadata["training"])
    made = RunFolder.named(folder.parent, run)
    try:
        with one_writer(made.path):
            _fill(made, folder, settings, content, facts)
    except BaseException:
        shutil.rmtree(made.path, ignore_errors=True)
        raise
    return made.path


def _fill(made: RunFolder, folder: Path, settings: Mapping[str, Any], content: Any, facts: dict[str, Any]) -> None:
    best = RunFolder(folder).known_summary().get("best") or {}
    same_best = bool(facts["best"]) and best.get("epoch") == facts["best"].get("epoch")
    if same_best and (folder / "weights" / "best.safetensors").exists():
        shutil.copyfile(folder / "weights" / "best.safetensors", made.path / "weights" / "best.safetensors")
    else:
        facts["best"] = {}  # its weights are gone: the next epoch is the best so far
    weights = {n.removeprefix("model."): t for n, t in content.tensors.items() if n.startswith("model.")}
    save(made.path / "weights" / "last.safetensors", weights)
    save(made.checkpoint, content.tensors, {**content.metadata, "training": json.dumps(facts)})
    for name in (FACTS, "env.json"):
        if (folder / name).exists():
            shutil.copyfile(folder / name, made.path / name)
    made.settings(settings)
    if facts["history"]:
        made.rows(facts["history"])
    made.summary(
        epochs=len(facts["history"]), best=facts["best"], parameters=_parameters(folder), branched_from=str(folder)
    )
    made.event("branched", source=str(folder), epoch=facts["epoch"], steps=facts["steps"])


def _parameters(folder: Path) -> Any:
    return RunFolder(folder).known_summary().get("parameters")
