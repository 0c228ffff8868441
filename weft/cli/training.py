"""Verbs that train networks: train, resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ..errors import UserError
from ..insight.trace_file import trace
from ..jobs.cluster.settings import CLUSTER, ClusterPlan, cluster_plan
from ..jobs.events import Listener
from ..jobs.recipes import with_recipe
from ..jobs.schema import Setting, count
from ..jobs.settings import COMMON, FOLDS_SETTING, SETTINGS
from . import training_parts as parts
from .arguments import Words, read
from .progress import ProgressDisplay, print_json

# Not a setting of the run: it changes nothing about it, and is not kept with it.
TRACE = {"trace": Setting(str, None, "write a timeline of the first steps for Perfetto: trace=FILE.json", "output")}
# Of a command: each fold's run has the setting fold.
FOLDS = {
    "folds": FOLDS_SETTING,
    "jobs": Setting(
        count, 1, "folds that are trained at the same time, each with its share of the cores", "cross-validation"
    ),
    **CLUSTER,
}
OF_RESUME = {name: setting for name, setting in FOLDS.items() if name != "folds"}


def train(words: Sequence[str]) -> None:
    """Train a network: weft train digits model=lenet epochs=5.

    The data is the first word, or data=. A folder with a folder of images for each class is packed into a
    dataset first. The run is kept in runs/TASK/NAME, with weights, tables, plots and report.html. folds=5 cross-validates.
    """
    given = read("train", words, SETTINGS | TRACE | FOLDS, 1, common=COMMON)
    named = {"data": given.plain[0]} if given.plain and given["data"] is None else {}
    own = {name: given[name] for name in given.given if name not in TRACE | FOLDS}
    settings = with_recipe("weft train", {**named, **own})
    if given["folds"] is not None and given["trace"] is not None:
        raise UserError("weft train", "one training is required for a timeline, got folds= and trace=. Leave one out.")
    if given["folds"] is None and "jobs" in given.given:
        raise UserError(
            "weft train", "jobs= is how many folds are trained at the same time, got no folds. Add folds=5."
        )
    if given["folds"] is None and given["cluster"] is not None:
        raise UserError("weft train", "cluster= trains folds or the trials of a sweep, got one training. Add folds=5, or use weft sweep.")  # fmt: skip
    cluster = _cluster("weft train", given, settings["device"])
    with shown(given["json"]) as listener, _traced(given["trace"]):
        if given["folds"] is not None:
            parts.cross_validate(settings, given["folds"], given["jobs"], listener, cluster)
        else:
            parts.train(settings, listener)


def resume(words: Sequence[str]) -> None:
    """Resume an interrupted run: weft resume digits-lenet5-1.

    It continues at the step where it was stopped, with its own settings and on the same device; settings can be changed, such
    as epochs=30. A run that was stopped before its first checkpoint starts again. max_seconds holds for one command only.
    """
    given = read("resume", words, SETTINGS | TRACE | OF_RESUME, 1, common=COMMON)
    folds = parts.find_folds(given.plain[0], given["runs"]) if given.plain else None
    if folds is not None:
        if set(given.given) - {"json", "runs", *OF_RESUME}:
            raise UserError("weft resume", f"a cross-validation continues with its own settings, got {sorted(given.given)}.")  # fmt: skip
        with shown(given["json"]) as listener:
            cluster = _cluster("weft resume", given, parts.read_folds(folds)["settings"]["device"])
            parts.resume_folds(folds, given["jobs"], listener, cluster)
        return
    of_folds = sorted(set(given.given) & set(OF_RESUME))
    if of_folds:
        raise UserError("weft resume", f"a cross-validation is required for {of_folds[0]}=, got a run. Leave {of_folds[0]}= out.")  # fmt: skip
    folder = parts.run_of("resume", given.plain)
    with shown(given["json"]) as listener, _traced(given["trace"]):
        if parts.is_compression(folder):
            if set(given.given) - {"json", "trace"}:
                raise UserError(
                    "weft resume", f"a compression continues with its own settings, got {sorted(given.given)}."
                )
            parts.resume_compression(folder, listener)
            return
        parts.resume(folder, {name: given[name] for name in given.given if name not in TRACE}, listener)


def check_launched(verb: str, words: Sequence[str], ranks: int) -> None:
    """Check a training that `weft launch` is about to start in this many processes."""
    given = read(verb, words, SETTINGS | TRACE | FOLDS, 1, common=COMMON)
    own = {name: given[name] for name in given.given if name in SETTINGS}
    if verb == "train":
        named = {"data": given.plain[0]} if given.plain and given["data"] is None else {}
        if given["folds"] is None:
            parts.check_launch("train", with_recipe("weft train", {**named, **own}), ranks)
    elif given.plain and parts.find_folds(given.plain[0], given["runs"]) is None:
        folder = parts.run_of("resume", given.plain)
        if not parts.is_compression(folder):
            parts.check_launch("resume", parts.resumed_settings(folder, own, ranks), ranks, folder)


def _cluster(where: str, given: Words, device: str | None) -> ClusterPlan | None:
    return cluster_plan(where, given.settings, {name: given[name] for name in given.given}, device)


def _traced(path: str | None) -> AbstractContextManager[Any]:
    return nullcontext() if path is None else trace(path)


@contextmanager
def shown(as_json: bool) -> Iterator[Listener]:
    """A listener that renders events, or prints them as JSON."""
    if as_json:
        yield print_json
    else:
        with ProgressDisplay() as progress:
            yield progress
