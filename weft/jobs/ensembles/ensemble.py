"""Ensembles: several runs as one, by averages of predictions, votes, or averages of weights. The result is a run of its own; members are only read.

ensemble.json   members with what they reach, the method, and what the ensemble reaches on the same examples
ensemble.weft   the ensemble as one program, from stored inputs to probabilities or numbers: `weft predict` and `weft.load` take it
network.weft    of averages and votes: all members with their preprocessing, up to logits; weights/ has the tensors of all of them

An average of weights has the settings of its first member, so it is used, trained on and compressed like any run.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ... import data, nn
from ...errors import UserError
from ...io import load, save
from ...io.dataset_names import dataset_name
from ...locks import one_writer
from ...report.best_epoch import SELECTION_METRICS, ranking_key
from ...saved.save import save as save_program
from ...saved.trace import TensorSpec
from ...tracing.jit import jit
from ...train.folder import DescribedNetwork, RunFolder
from ...train.results import Evaluation, evaluated, write_results
from ..annotations import annotate
from ..datasets.facts import FACTS, facts
from ..definitions import keep_definition
from ..device import on
from ..events import Listener, Recorder, ignore_events
from ..export import export_run
from ..job import ENSEMBLE, REWRITTEN, Job, job_of, job_of_run
from ..schema import Setting, count, flag
from ..settings import DEVICE
from ..stored import settings_of
from .members import EnsembleMember, UnseenExamples, find_members, member_scores, unseen_examples
from .network import EnsembleNetwork
from .soup import Score, Weights, estimate_statistics, greedy_soup, mean_weights

PROGRAM = "ensemble.weft"
ENDED = "all epochs are done"
SETTINGS = {
    "method": Setting(str, "average", "average of probabilities, majority vote, or average of weights", choices=("average", "vote", "weights")),
    "soup": Setting(str, "uniform", "members of an average of weights: all (uniform), or those that do not make it worse on the validation split (greedy)", choices=("uniform", "greedy")),
    "name": Setting(str, None, "name of the new run; default: DATA-ensemble-1, -2, ..."),
    "exist_ok": Setting(flag, False, "replace the run of that name, if there is one"),
    "jobs": Setting(count, 1, "members that are evaluated at the same time, each in a process with its share of the cores"),
    "device": DEVICE,
    "runs": Setting(str, "runs", "folder that runs are kept in"),
    "json": Setting(flag, False, "print JSON, for programs"),
}  # fmt: skip


def ensemble(names: Sequence[str], settings: Mapping[str, Any], listener: Listener = ignore_events) -> Path:
    """Make one run of several, given by name or folder; a cross-validation stands for the runs of its folds."""
    recorder = Recorder(listener)
    members = find_members(names, settings["runs"])
    check_method(members, settings)
    with on(settings["device"]):
        recorder.show("activity", text="looking for examples that no member was trained on")
        examples = unseen_examples(members)
        if settings["soup"] == "greedy" and "validation" not in examples:
            raise UserError("weft ensemble", "validation examples that no member was trained on are required for soup=greedy, got none. Use soup=uniform, or train members with one seed on data with a validation split.")  # fmt: skip
        work = _Ensemble(members, settings, examples, recorder)
        run = _new_run(members[0], settings)
        try:
            with one_writer(run.path):
                work.write(run)
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise
    return run.path


def check_method(members: Sequence[EnsembleMember], settings: Mapping[str, Any]) -> None:
    """Reject a method that these members cannot be put together by."""
    if settings["method"] == "vote" and members[0].kind == "numbers":
        raise UserError("weft ensemble", "classes are required for method=vote, got numbers. Use method=average.")
    if settings["soup"] == "greedy" and settings["method"] != "weights":
        raise UserError("weft ensemble", f"method=weights is required for soup=greedy, got method={settings['method']}.")  # fmt: skip
    if settings["method"] == "weights":
        for member in members:
            _check_network(members[0], member)


def _check_network(first: EnsembleMember, other: EnsembleMember) -> None:
    """Weights are averaged within one network and one preprocessing."""
    if (other.folder / REWRITTEN).exists():
        raise UserError("weft ensemble", f"networks as they were trained are required for method=weights, got {other.folder}, whose layers were changed. Use method=average.")  # fmt: skip
    shapes = [_shapes(member) for member in (first, other)]
    if first.job.label != other.job.label or shapes[0] != shapes[1]:
        raise UserError("weft ensemble", f"one network is required for method=weights, got {first.job.label} of {first.folder.name} and {other.job.label} of {other.folder.name}. Use method=average.")  # fmt: skip
    prepared = [str(facts(member.job.train, member.job.statistics)) + str(_size(member.job)) for member in (first, other)]  # fmt: skip
    if prepared[0] != prepared[1]:
        raise UserError("weft ensemble", f"one preprocessing is required for method=weights, got others of {first.folder.name} and {other.folder.name}. Use method=average, which keeps both.")  # fmt: skip


def _shapes(member: EnsembleMember) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in load(member.folder / "weights" / "best.safetensors").items()}


def _size(job: Job) -> tuple[int, int] | None:
    return job.size() if job.is_image_source else None


def _new_run(first: EnsembleMember, settings: Mapping[str, Any]) -> RunFolder:
    root = Path(settings["runs"]) / first.job.kind
    if settings["name"] is not None:
        return RunFolder.named(root, settings["name"], settings["exist_ok"])
    return RunFolder.fresh(root, f"{dataset_name(str(first.settings['data']))}-ensemble-")


class _Ensemble:
    """An ensemble that is being made."""

    def __init__(
        self, members: Sequence[EnsembleMember], settings: Mapping[str, Any], examples: Mapping[str, UnseenExamples], recorder: Recorder,
    ) -> None:  # fmt: skip
        self.members, self.settings, self.examples, self.recorder = members, settings, examples, recorder
        self.first = members[0]

    def write(self, run: RunFolder) -> None:
        """Everything that the run holds; its results last."""
        self.recorder.begin(run.path)
        self.recorder.send("run", folder=str(run.path), notes=[])
        known: dict[str, Any] = {"method": self.settings["method"], "members": self._scores()}
        self._write_settings(run)
        annotate(run.path, notes=f"{known['method']} of {', '.join(one.folder.name for one in self.members)}")
        run.write_json(ENSEMBLE, known)
        if self.settings["method"] == "weights":
            known["chosen"] = self._write_weights(run, known["members"])
        else:
            self._write_network(run)
        shutil.copyfile(run.path / "weights" / "best.safetensors", run.path / "weights" / "last.safetensors")
        known |= {"split": None, "examples": 0, "result": {}}
        for split in ("validation", "test"):  # the last one is reported
            if split in self.examples:
                dataset = self.examples[split].open()
                found = self._evaluated(run, dataset)
                known |= {"split": split, "examples": len(dataset), "result": found.numbers}
                run.summary(**{split: found.numbers})
                if split == "validation" or "validation" not in self.examples:
                    self._write_row(run, split, found.numbers)
                write_results(run.path, found, split=split)
        if known["split"] is None:
            self.recorder.log(
                "nothing was measured: the data has no test or validation split that no member was trained on",
                "warning",
            )
        self.recorder.show("activity", text="writing the program")
        run.write_json(ENSEMBLE, known)
        run.summary(ensemble=known)
        export_run("ensemble", run.path, run.path / PROGRAM, train=False)
        run.close(ENDED, 0)
        self.recorder.send("ensemble", folder=str(run.path), **known)

    def _scores(self) -> list[dict[str, Any]]:
        """What each member reaches, on the validation examples and on those that are reported."""
        rows: list[dict[str, Any]] = [{"run": str(one.folder), "network": one.job.label} for one in self.members]
        for split, examples in self.examples.items():
            self.recorder.show("activity", text=f"evaluating {len(rows)} members on the {split} split")
            found = member_scores(self.members, examples, self.settings["device"], self.settings["jobs"])
            for row, numbers in zip(rows, found, strict=True):
                row[split] = numbers
        return rows

    def _write_settings(self, run: RunFolder) -> None:
        """The settings of the first member: the data and the names of classes are those of all."""
        job, told = self.first.job, dict.fromkeys(("weights", "fold", "tags", "notes", "group"))
        own = {**self.first.settings, **told, "name": run.path.name, "augment": None}
        run.write_json(FACTS, facts(job.train, job.statistics))
        if job.definition is not None:
            keep_definition(run.path, job.label, job.definition)
        run.settings(own)

    def _write_network(self, run: RunFolder) -> None:
        """All members as one program, from floats to logits."""
        self.recorder.show("activity", text=f"making one program of {len(self.members)} members")
        networks = [member.network() for member in self.members]
        network = EnsembleNetwork(networks, self.first.kind, self.settings["method"] == "vote").eval()
        sample = self.first.job.train.inputs(np.arange(1))
        dtype = np.dtype(np.float32) if self.first.job.is_image_source else sample.dtype
        save_program(run.path / REWRITTEN, network, (TensorSpec(("batch", *sample.shape[1:]), dtype),), train=False)
        save(run.path / "weights" / "best.safetensors", network.named_tensors())
        run.start(settings_of("ensemble", run.path), DescribedNetwork.of(network))

    def _write_weights(self, run: RunFolder, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """The mean of the members' weights; which members are in it."""
        weights = [_arrays(member) for member in self.members]
        chosen = list(range(len(weights)))
        if self.settings["soup"] == "greedy":
            validation = self.examples["validation"].open()

            def score(some: Sequence[int]) -> Score:
                self.recorder.show("activity", text=f"trying a mean of {len(some)} members")
                model = self._mixed([weights[i] for i in some])
                return _score(self._measured(model, validation).numbers)

            chosen = greedy_soup([_score(row["validation"]) for row in rows], score)
        model = self._mixed([weights[i] for i in chosen])
        save(run.path / "weights" / "best.safetensors", model.named_tensors())
        run.start(settings_of("ensemble", run.path), DescribedNetwork.of(model))
        names = [str(self.members[i].folder) for i in chosen]
        self.recorder.log(f"mean of the weights of {', '.join(Path(name).name for name in names)}")
        return names

    def _mixed(self, weights: Sequence[Weights]) -> nn.Module:
        """The first member's network with these weights' means, and statistics of batch norm that fit them."""
        model = self.first.job.model().load(mean_weights(weights)).eval()
        estimate_statistics(model, self.first.job.prepare(), self.batches)
        return model

    @cached_property
    def batches(self) -> data.Loader:
        """Training examples of the first member."""
        job = job_of("ensemble", {**self.first.settings, "weights": None}, self.recorder)
        return job.loaders()[0]

    def _measured(self, model: nn.Module, dataset: data.Dataset) -> Evaluation:
        job, network = self.first.job, nn.Sequential(self.first.job.prepare(), model).eval()
        return evaluated(jit(network), job.checks(dataset), job.loss())

    def _evaluated(self, run: RunFolder, dataset: data.Dataset) -> Evaluation:
        """As `weft eval` measures a run."""
        self.recorder.show("activity", text=f"evaluating the ensemble on {len(dataset):,} examples")
        job = job_of_run(settings_of("ensemble", run.path), run.path)
        _, network = job.trained(run.path)
        return evaluated(network, job.checks(dataset), job.loss())

    def _write_row(self, run: RunFolder, split: str, numbers: Mapping[str, float]) -> None:
        """The row of an epoch, for lists of runs: nothing was trained, so it is that of epoch 0."""
        row = {"epoch": 0.0, **{f"{split}_{name}": value for name, value in numbers.items()}}
        run.rows([row])
        run.summary(best=row)


def _arrays(member: EnsembleMember) -> Weights:
    found = load(member.folder / "weights" / "best.safetensors")
    return {name: tensor.numpy() for name, tensor in found.items()}


def _score(numbers: Mapping[str, float]) -> Score:
    row = {f"validation_{name}": value for name, value in numbers.items()}
    return ranking_key(next(name for name in SELECTION_METRICS if name in row), row)
