"""A running compression: the network and its points, its trainings, and the run that is kept at the end."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ... import nn, optim
from ... import train as training
from ...data import Text
from ...errors import RunError, UserError
from ...io import load
from ...report.compression import compression_page
from ...report.text_format import counted
from ...train import RunFolder
from ...train.folder import DescribedNetwork
from ...train.results import evaluated, write_results
from ...train.task import is_better
from ..events import Recorder
from ..job import REWRITTEN, Job, held_out, job_of, job_of_run
from ..schema import validated
from ..stored import settings_of
from ..training import StepEvents
from .point import EXAMPLES, PointWriter
from .settings import COMPRESSION, method_of, target_of
from .state import ENDED, PACKED, STATE, allowed_error
from .steps import VALUE_STEPS, StepContext, before_the_swept, without_channels


def run_settings(source: Path, folder: Path) -> dict[str, Any]:
    """The settings of the new run: those of the original."""
    return {**settings_of("compress", source), "name": folder.name, "weights": None}


def is_begun(run: RunFolder) -> bool:
    """Whether a compression has all that it needs to continue: a copy of the original, and what describes the run (the summary is written last)."""
    return "parameters" in run.known_summary()


class Compression:
    """A running compression."""

    def __init__(self, run: RunFolder, state: dict[str, Any], recorder: Recorder) -> None:
        self.folder, self.state, self.recorder = run, state, recorder
        self.settings = validated("weft compress", state["settings"], COMPRESSION)
        self.source, self.method = Path(state["source"]), method_of(self.settings)
        self.target = target_of(self.settings["target"])
        self.epochs_done = 0
        self.history: list[dict[str, float]] = []

    def begin(self) -> None:
        """Open the data, measure the original, and do the steps that are the same for all points."""
        self.job = self._job()
        self.points = self._point_writer()
        self._begin()
        self.original = self._original()
        self.model = copy.deepcopy(self.original)
        self.before = sum(t.numpy().nbytes for t in self.original.named_tensors().values())
        self.first = self._first_point()
        self.context = StepContext(
            self.settings, self.points.inputs(2), lambda: self.points.inputs(EXAMPLES), self._train
        )
        for step in self.method.structure[:-1]:
            before_the_swept(self.context, self.model, step)

    # --- the beginning ------------------------------------------------------------------------------------------------------

    def _job(self) -> Job:
        """The job of the original run, with its data and its statistics."""
        settings = settings_of("compress", self.source)
        job = job_of("compress", {**settings, "weights": None}, self.recorder)
        job.statistics = job_of_run(settings, self.source).statistics
        if self.method.changes_layers and isinstance(job.train, Text):
            raise UserError(
                "weft compress",
                f"a network of images or numbers is required for method={self.settings['method']}, got one of text.",
            )
        return job

    def _point_writer(self) -> PointWriter:
        device = self.target.device if self.target is not None and self.target.device else self.settings["device"]
        settings = {**settings_of("compress", self.source), "weights": None}
        return PointWriter(self.folder.path / "points", self.job, settings, self.method, self.settings["half"], device)

    def _begin(self) -> None:
        path = self.folder.path
        if not is_begun(self.folder):
            (path / "steps").mkdir(exist_ok=True)
            shutil.copyfile(self.source / "weights" / "best.safetensors", path / "steps" / "original.safetensors")
            self.points.describe(self.folder)
            self.folder.start(run_settings(self.source, path), DescribedNetwork.of(self.job.model()))
        self.recorder.begin(path)
        self.recorder.log(f"run folder: {path}")
        self.recorder.send("run", folder=str(path), notes=[])

    def _original(self) -> nn.Module:
        """The original network: its weights were copied, since the original may be trained on."""
        model = self.job.model()
        model.load(load(self.folder.path / "steps" / "original.safetensors"))
        return model.eval()

    def _first_point(self) -> dict[str, Any]:
        """The original: error, size and latency as of a point."""
        if "original" not in self.state:
            self.recorder.show("activity", text="measuring the original")
            self.state["original"] = self.points.original(self.original)
            self.keep_state()
        found: dict[str, Any] = self.state["original"]
        return found

    def point(self, density: float, number: int) -> dict[str, Any]:
        """Set the values of a copy of the network, train and measure it."""
        model = copy.deepcopy(self.model)
        if self.method.swept == "channels":
            without_channels(self.context, model)
        if self.method.values is not None and self.method.bits is not None:
            VALUE_STEPS[self.method.values](self.context, model, self.method.bits, f"{number}")
        points = self.state["points"]
        if len(points) < number:
            self.recorder.show("activity", text=f"packing and measuring point {number}")
            points.append({**self.points.point(model.eval(), number, density, self.first), "epochs": self.epochs_done})
            self.keep_state()
            self._say(points[-1])
        found: dict[str, Any] = points[number - 1]
        return found

    def _say(self, point: Mapping[str, Any]) -> None:
        fast = "" if point["speed"] is None else f", {point['speed']:.1f}x as fast"
        self.recorder.log(
            f"point {point['number']}: {point['ratio']:.1f}x smaller, {point['bytes']:,} bytes{fast}, error {100 * point['error']:.2f} % "
            f"(original: {100 * self.first['error']:.2f} %)"
        )

    def _train(self, model: nn.Module, name: str, what: str, has_values: bool) -> None:
        """Train the network, or load what an earlier attempt ended with; the best epoch counts."""
        epochs = self.settings["share_epochs" if has_values else "epochs"]
        rate = self.settings["share_rate" if has_values else "rate"]
        folder = self.folder.path / "steps" / name
        done = RunFolder(folder).known_summary().get("ended") == ENDED if folder.exists() else False
        loader, checks = self.job.loaders()
        if not done:
            self.recorder.send("activity", text=f"training, {what}", step=name)
            training.fit(
                model, loader, checks, epochs=epochs, optimizer="adam", rate=optim.schedules.one_cycle(rate, max(1, len(loader) * epochs)),
                loss=self.job.loss(), prepare=self.job.prepare(), seed=self.settings["seed"], folder=folder,
                resume=(folder / "state" / "last.safetensors").exists(), notes={"step": name}, on_step=StepEvents(self.recorder, f"{name}, "),
                on_epoch=lambda row: self.recorder.show("epoch", **row, epochs=epochs, is_best=False),
            )  # fmt: skip
        model.load(load(folder / "weights" / "best.safetensors"))
        self._add_history(folder)

    def _add_history(self, folder: Path) -> None:
        """Epochs of all trainings, numbered through."""
        lines = (folder / "metrics.csv").read_text(encoding="utf-8").splitlines()
        names = lines[0].split(",")
        for line in lines[1:]:
            self.epochs_done += 1
            row = {name: float(value) for name, value in zip(names, line.split(","), strict=True) if value}
            self.history.append({**row, "epoch": float(self.epochs_done)})
        self.folder.rows(self.history)

    def keep_state(self) -> None:
        self.folder.write_json(STATE, self.state)

    # --- the end ------------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Keep the chosen point as the run."""
        chosen = self._chosen()
        path, point = self.folder.path, self.folder.path / "points" / str(chosen["number"])
        for name in ("best", "last"):
            shutil.copyfile(point / "weights" / "best.safetensors", path / "weights" / f"{name}.safetensors")
        for program in (PACKED, REWRITTEN):
            if (point / program).exists():
                shutil.copyfile(point / program, path / program)
        _, network = self.job.trained(path)
        split, examples = held_out(self.job.splits, None)
        found = evaluated(network, self.job.checks(examples), self.job.loss())
        self.folder.summary(
            **{split: found.numbers},
            best=self._best_epoch(),
            compression={k: v for k, v in chosen.items() if k != "layers"},
        )
        write_results(path, found, split=split)
        self.state |= {"chosen": chosen["number"], "done": True}
        compression_page(path, self.state)
        self.folder.close(ENDED, self.epochs_done)
        self.keep_state()  # last: a compression that is done is not continued
        shutil.rmtree(path / "steps", ignore_errors=True)
        self.recorder.log(
            f"kept: point {chosen['number']}, {chosen['ratio']:.1f}x smaller, error {100 * chosen['error']:.2f} % "
            f"(original {100 * self.first['error']:.2f} %), {counted(chosen['bytes'], 'byte')} in {path / PACKED}"
        )
        if chosen["error"] > (allowed := allowed_error(self.state)):
            self.recorder.log(
                f"the run that was kept has {100 * (chosen['error'] - self.first['error']):.2f} points more error than the original: no point loses at most "
                f"tolerance={self.settings['tolerance']:g}, and this one has the least error ({100 * chosen['error']:.2f} %, at most {100 * allowed:.2f} % is "
                "allowed). Keep more (density=, bits=), or train longer (epochs=).",
                "warning",
            )
        self.recorder.send(
            "result", why=ENDED, best=self._best_epoch(), folder=str(path), split=split, examples=len(examples), **found.numbers,
            classes=found.classes, task=self.job.kind,
        )  # fmt: skip

    def _best_epoch(self) -> dict[str, float]:
        best: dict[str, float] = {}
        for row in self.history:
            best = row if is_better(row, best) else best
        return best

    def _chosen(self) -> dict[str, Any]:
        """The smallest point that loses at most what is allowed; for a size or a speed the last one, for a device the fastest."""
        points: list[dict[str, Any]] = self.state["points"]
        what = self.target.what if self.target is not None else ""
        if what in ("size", "speed"):
            return points[-1]
        good = [point for point in points if point["error"] <= allowed_error(self.state)]
        if what == "error" and not good:
            nearest = min(points, key=lambda point: point["error"])
            raise RunError(
                "weft compress",
                f"{self.target} cannot be reached: the nearest point found has {100 * (nearest['error'] - self.first['error']):+.2f} points of error and is "
                f"{nearest['ratio']:.1f} times smaller (point {nearest['number']} in {self.folder.path}). Train longer (epochs=), or keep more "
                "(density=, bits=).",
            )
        if not good:
            return min(points, key=lambda point: point["error"])
        return max(good, key=lambda point: (point["speed"] or 0.0) if what == "device" else point["ratio"])
