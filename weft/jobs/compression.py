"""Compressing a run: prune gradually and train, share weights and train, pack. The result is a run of its own; the original is only read.

compression.json, points/N and packed.weft are described in compression_state.py.
steps/             trainings on the way, with checkpoints: an interrupted compression continues exactly; removed at the end
compression.html   the Pareto page

All that is done between two checkpoints follows from settings and earlier steps, so resuming is doing everything again, without the trainings that ended.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .. import nn, optim
from .. import train as training
from ..compress.channels import prune_channels
from ..compress.size_search import LEAST, density_for, packed_bytes
from ..data import Text
from ..errors import RunError, UserError, WeftError
from ..io import load
from ..locks import one_writer
from ..report.compression import compression_page
from ..report.text_format import counted
from ..signals import Terminated
from ..train import RunFolder
from ..train.results import evaluated, write_results
from ..train.task import is_better
from .compression_point import EXAMPLES, PointWriter
from .compression_settings import COMPRESSION, WIDTHS, check_compression, method_of, target_of
from .compression_state import ENDED, PACKED, STATE, allowed_error, is_compression, planned_densities, read_state
from .compression_steps import SWEPT, VALUE_STEPS, StepContext, before_the_swept, without_channels
from .device import on
from .events import Listener, Recorder, nobody
from .find import find_run
from .job import REWRITTEN, Job, held_out, job_of, job_of_run
from .schema import validated
from .stored import settings_of
from .training import StepEvents

_MARGIN = 1.02  # training changes sizes a little
_TRIES = 4  # to reach a size or a speed


def compress(settings: Mapping[str, Any], listener: Listener = nobody) -> Path:
    """Compress a run with validated settings; the folder of the new run."""
    check_compression(settings)
    source = find_run(settings["run"], settings["runs"])
    settings_of("compress", source)
    if not (source / "weights" / "best.safetensors").exists():
        raise UserError("weft compress", f"{source} has no weights yet. Train it first: weft resume {source}")
    if (source / STATE).exists():
        raise UserError("weft compress", f"{source} is compressed already. Compress the run that it came from.")
    name = settings["name"] or f"{source.name}-small"
    root = source.parent if source.parent.name else Path(settings["runs"])
    if settings["name"] is None:
        run = RunFolder.fresh(root, f"{name}-")
    else:
        run = RunFolder.named(root, name, settings["exist_ok"])
    run.write_json(STATE, {"settings": dict(settings), "source": str(source.resolve()), "points": [], "done": False})
    return _compressed(run, Recorder(listener))


def compress_or_resume(settings: Mapping[str, Any], run: Path | None, listener: Listener) -> None:
    """Compress with the settings of a job, or continue the compression that it began."""
    if run is not None and (run / STATE).exists():
        resume_compression(run, listener)
    else:
        compress(validated("jobs", settings, COMPRESSION), listener)


def resume_compression(folder: Path, listener: Listener = nobody) -> Path:
    """Continue a compression that was stopped."""
    return _compressed(RunFolder(folder), Recorder(listener))


def _compressed(run: RunFolder, recorder: Recorder) -> Path:
    state = read_state(run.path)
    try:
        with ExitStack() as held:
            held.enter_context(one_writer(run.path))
            held.enter_context(on(state["settings"]["device"]))
            if not state["done"]:
                state.pop("why", None)
                _Compression(run, state, recorder).run()
            return run.path
    except WeftError as error:
        if is_compression(run.path):  # so that it is known whoever started it
            run.write_json(STATE, {**state, "why": error.message})
        raise
    except (KeyboardInterrupt, Terminated) as stop:
        how = "terminated" if isinstance(stop, Terminated) else "stopped"
        recorder.send("stopped", why=how, folder=str(run.path))
        raise


class _Compression:
    """A compression under way."""

    def __init__(self, run: RunFolder, state: dict[str, Any], recorder: Recorder) -> None:
        self.folder, self.state, self.recorder = run, state, recorder
        self.settings = validated("weft compress", state["settings"], COMPRESSION)
        self.source, self.method = Path(state["source"]), method_of(self.settings)
        self.target = target_of(self.settings["target"])
        self.epochs_done = 0
        self.history: list[dict[str, float]] = []

    def run(self) -> None:
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
        what = self.target.what if self.target is not None else ""
        {"size": self._reach_size, "speed": self._reach_speed}.get(what, self._sweep)()
        self._finish()

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
        settings = {**settings_of("compress", self.source), "name": path.name, "weights": None}
        if not (path / "args.yaml").exists():
            (path / "steps").mkdir(exist_ok=True)
            shutil.copyfile(self.source / "weights" / "best.safetensors", path / "steps" / "original.safetensors")
            self.points.describe(self.folder)
            self.folder.start(settings, self.job.model())
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
            self._keep_state()
        found: dict[str, Any] = self.state["original"]
        return found

    # --- points -------------------------------------------------------------------------------------------------------------

    def _reach_size(self) -> None:
        """One point that is small enough. If training made it larger, more is pruned."""
        assert self.target is not None
        overhead = self.first["bytes"] - self.first["weights_bytes"]
        most, bits = self.before / self.target.value, None if self.method.bits is None else min(8, self.method.bits)
        options = {"half": self.settings["half"], "coder": self.method.coder}
        for attempt in range(_TRIES):
            self.recorder.show("activity", text=f"finding densities for {self.target}")
            density = density_for(self.model, (most - overhead) / _MARGIN ** (attempt + 1), bits, **options)
            if density is None:
                least = packed_bytes(self.model, LEAST, bits, **options) + overhead
                raise self._unreachable(
                    f"bits={bits}: the nearest point found is {self.before / least:.1f} times smaller, where the largest layer keeps {LEAST:.2%} of its "
                    f"weights and {overhead:,} bytes of {least:,} are the program around them."
                )  # fmt: skip
            SWEPT["prune"](
                self.context, self.model, density, f"{attempt}", self.settings["steps"] if attempt == 0 else 1
            )
            point = self._point(density, attempt + 1)
            if point["ratio"] >= self.target.value:
                return
        raise RunError(
            "weft compress",
            f"{self.target} was not reached: the nearest point found is {point['ratio']:.1f} times smaller.",
        )

    def _reach_speed(self) -> None:
        """One point that is fast enough. Latency does not depend on weights, so the width is found before anything is trained."""
        assert self.target is not None
        widths = [*WIDTHS, WIDTHS[-1] / 2, WIDTHS[-1] / 4]
        start = self._first_fast_width(widths)
        for attempt, width in enumerate(widths[start : start + _TRIES]):
            SWEPT["channels"](
                self.context, self.model, width, f"{attempt}", self.settings["steps"] if attempt == 0 else 1
            )
            point = self._point(width, attempt + 1)
            if point["speed"] is not None and point["speed"] >= self.target.value:
                return
        raise RunError(
            "weft compress",
            f"{self.target} was not reached: the nearest point found is {point['speed']:.1f} times as fast.",
        )

    def _first_fast_width(self, widths: list[float]) -> int:
        """The place of the largest share of channels that is fast enough; kept in the state, because a resumed compression may measure otherwise."""
        assert self.target is not None
        if "width_place" not in self.state:
            speeds = []
            for width in widths:
                self.recorder.show("activity", text=f"measuring {width:.0%} of the channels")
                model = copy.deepcopy(self.model)
                prune_channels(model, self.context.example, width)
                without_channels(self.context, model)
                speeds.append(self.points.speed(model, self.folder.path / "steps" / "trial.weft") or 0.0)
                if speeds[-1] >= self.target.value:
                    break
            else:
                best = max(speeds)
                raise self._unreachable(
                    f"the nearest point found is {best:.1f} times as fast, with {widths[speeds.index(best)]:.0%} of the channels."
                )
            self.state["width_place"] = len(speeds) - 1
            self._keep_state()
        return int(self.state["width_place"])

    def _unreachable(self, nearest: str) -> RunError:
        """The answer to a target that cannot be reached. If nothing was trained, no run stays behind."""
        if not self.state["points"]:
            shutil.rmtree(self.folder.path)
        return RunError(
            "weft compress",
            f"{self.target} cannot be reached with method={self.settings['method'] or 'default'}: {nearest}",
        )

    def _sweep(self) -> None:
        """Points of falling density, each with less than the one before; with a target for the error until it is missed."""
        for number, density in enumerate(planned_densities(self.settings), 1):
            swept = self.method.swept
            if swept == "low_rank":
                self.model = copy.deepcopy(self.original)  # factors are not cut again
            if swept is not None:
                SWEPT[swept](
                    self.context, self.model, density, f"{number}", self.settings["steps"] if number == 1 else 1
                )
            point = self._point(density, number)
            if self.target is not None and self.target.what == "error" and point["error"] > allowed_error(self.state):
                break

    def _point(self, density: float, number: int) -> dict[str, Any]:
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
            self._keep_state()
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

    def _keep_state(self) -> None:
        self.folder.write_json(STATE, self.state)

    # --- the end ------------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
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
        write_results(path, found)
        self.state |= {"chosen": chosen["number"], "done": True}
        self._keep_state()
        compression_page(path, self.state)
        self.folder.close(ENDED, self.epochs_done)
        shutil.rmtree(path / "steps", ignore_errors=True)
        self.recorder.log(
            f"kept: point {chosen['number']}, {chosen['ratio']:.1f}x smaller, error {100 * chosen['error']:.2f} % "
            f"(original {100 * self.first['error']:.2f} %), {counted(chosen['bytes'], 'byte')} in {path / PACKED}"
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
