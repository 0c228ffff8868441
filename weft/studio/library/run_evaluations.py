"""The evaluations of a run that a page can show: a split and a checkpoint, what is chosen, and the folder that holds it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

from ...errors import UserError, WeftError
from ...jobs.evaluations import find_evaluation, keeps_evaluations, saved_evaluations, split_names
from ...records import dataclass
from ...report.evaluation import FILE, read_evaluation
from .run_checkpoints import checkpoint_epochs, checkpoint_titles


@dataclass(frozen=True)
class ShownEvaluation:
    """A folder with evaluation.json, predictions and thumbnails, and the query that finds its pictures over the API."""

    folder: Path
    query: str = ""  # none: what the run wrote at its end


@dataclass(frozen=True)
class EvaluationChoice:
    """The splits and checkpoints of a run, the chosen ones, and their evaluation if there is one."""

    splits: tuple[str, ...]
    checkpoints: dict[str, str]  # names with titles
    split: str
    checkpoint: str
    shown: ShownEvaluation | None
    problem: str = ""  # why nothing more can be evaluated

    @property
    def title(self) -> str:
        return self.checkpoints[self.checkpoint]


def find_shown(folder: Path, split: str, checkpoint: str) -> ShownEvaluation | None:
    """The evaluation of a split and a checkpoint, if there is one."""
    place = find_evaluation(folder, split, checkpoint)
    if place is None or place == folder:
        return None if place is None else ShownEvaluation(folder)
    made = (place / FILE).stat().st_mtime_ns
    return ShownEvaluation(place, "?" + urlencode({"split": split, "checkpoint": checkpoint, "v": made}))


def evaluation_choice(folder: Path, split: str | None, checkpoint: str | None) -> EvaluationChoice | None:
    """What can be chosen, and what is; at first what the run wrote at its end. None for a run without weights, and one for text."""
    try:
        if not keeps_evaluations(folder):
            return None
    except WeftError:
        return None  # its settings or its data cannot be read: what it wrote can still be shown
    splits, problem = _splits(folder)
    own, titles = read_evaluation(folder), checkpoint_titles(checkpoint_epochs(folder))
    first = own["split"] if own is not None else next(reversed(splits), "")
    if first not in splits or "best" not in titles:
        return None  # what the run wrote at its end belongs to none of the choices
    chosen, name = split or first, checkpoint or "best"
    if chosen not in splits:
        raise UserError("studio", f"there is no {chosen} split of {folder.name}; there are {', '.join(splits)}.")
    if name not in titles:
        raise UserError("studio", f"there is no checkpoint {name} of {folder.name}; there are {', '.join(titles)}.")
    return EvaluationChoice(splits, titles, chosen, name, find_shown(folder, chosen, name), problem)


def _splits(folder: Path) -> tuple[tuple[str, ...], str]:
    """The splits of a run's data, or those that are evaluated already and why the data cannot be opened."""
    try:
        return tuple(split_names(folder)), ""
    except WeftError as error:
        return tuple(dict.fromkeys(one["split"] for one in saved_evaluations(folder))), error.message
