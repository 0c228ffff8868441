"""Compressing a run: prune gradually and train, share weights and train, pack. The result is a run of its own; the original is only read.

compression.json, points/N and packed.weft are described in compression_state.py.
steps/             trainings on the way, with checkpoints: an interrupted compression continues exactly; removed at the end
compression.html   the Pareto page

All that is done between two checkpoints follows from settings and earlier steps, so resuming is doing everything again, without the trainings that ended.
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .. import nn, optim
from .. import train as training
from ..compress.layer_sizes import report as layer_report
from ..compress.pack import pack, packed_weights
from ..compress.prune import gradual, prune
from ..compress.share import share
from ..compress.size_search import LEAST, density_for, packed_bytes, scaled_densities
from ..errors import RunError, UserError, WeftError
from ..graph.text import parse_type
from ..io import load, save
from ..locks import one_writer
from ..ops.creation import zeros
from ..report.compression import compression_page
from ..report.text_format import counted
from ..saved.program import Program
from ..saved.program import load as load_program
from ..signals import Terminated
from ..tracing.jit import jit
from ..train import RunFolder
from ..train.results import evaluated, write_results
from ..train.task import is_better
from .compression_settings import COMPRESSION, Target, check_compression, coder_of, has_method, target_of
from .compression_state import ENDED, PACKED, STATE, allowed_error, is_compression, planned_densities, read_state
from .definitions import keep_definition
from .device import on
from .events import Listener, Recorder, nobody
from .export import export_run
from .find import find_run
from .job import FACTS, Job, facts, held_out, job_of, job_of_run
from .schema import validated
from .stored import settings_of
from .training import StepEvents

_MARGIN = 1.02  # training changes sizes a little
_TRIES = 4  # to reach a size
_LATENCY_CALLS = 30


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
        self.source, self.coder = Path(state["source"]), coder_of(self.settings)
        self.bits = self.settings["bits"] if has_method(self.settings, "share") else None
        self.epochs_done = 0
        self.history: list[dict[str, float]] = []

    def run(self) -> None:
        self.job = self._job()
        self._begin()
        self.original = self._original()
        self.model = copy.deepcopy(self.original)
        self.before = sum(t.numpy().nbytes for t in self.original.named_tensors().values())
        self.first = self._first_point()
        target = target_of(self.settings["target"])
        if target is not None and target.what == "size":
            self._reach_size(target)
        else:
            self._sweep(target)
        self._finish(target)

    # --- the beginning ------------------------------------------------------------------------------------------------------

    def _job(self) -> Job:
        """The job of the original run, with its data and its statistics."""
        settings = settings_of("compress", self.source)
        job = job_of("compress", {**settings, "weights": None}, self.recorder)
        job.statistics = job_of_run(settings, self.source).statistics
        return job

    def _begin(self) -> None:
        path = self.folder.path
        settings = {**settings_of("compress", self.source), "name": path.name, "weights": None}
        if not (path / "args.yaml").exists():
            (path / "steps").mkdir(exist_ok=True)
            shutil.copyfile(self.source / "weights" / "best.safetensors", path / "steps" / "original.safetensors")
            self._describe(self.folder)
            self.folder.start(settings, self.job.model())
        self.recorder.begin(path)
        self.recorder.log(f"run folder: {path}")
        self.recorder.send("run", folder=str(path), notes=[])

    def _describe(self, run: RunFolder) -> None:
        """What a run keeps of its data and its network, so that it needs neither data nor the original."""
        run.write_json(FACTS, facts(self.job.train, self.job.statistics))
        if self.job.definition is not None:
            keep_definition(run.path, self.job.label, self.job.definition)

    def _original(self) -> nn.Module:
        """The original network: its weights were copied, since the original may be trained on."""
        model = self.job.model()
        model.load(load(self.folder.path / "steps" / "original.safetensors"))
        return model.eval()

    def _first_point(self) -> dict[str, Any]:
        """The original: error, size and latency as of a point."""
        if "original" not in self.state:
            self.recorder.show("activity", text="measuring the original")
            self.state["original"] = self._measured(self.original, 0, 1.0, half=False)
            self._keep_state()
        found: dict[str, Any] = self.state["original"]
        return found

    # --- points -------------------------------------------------------------------------------------------------------------

    def _reach_size(self, target: Target) -> None:
        """One point that is small enough. If training made it larger, more is pruned."""
        overhead = self.first["bytes"] - self.first["weights_bytes"]
        most = self.before / target.value
        options = {"half": self.settings["half"], "coder": self.coder}
        for attempt in range(_TRIES):
            self.recorder.show("activity", text=f"finding densities for {target}")
            density = density_for(self.model, (most - overhead) / _MARGIN ** (attempt + 1), self.bits, **options)
            if density is None:
                if not self.state["points"]:  # nothing was trained: no run stays behind
                    shutil.rmtree(self.folder.path)
                least = packed_bytes(self.original, LEAST, self.bits, **options) + overhead
                raise RunError(
                    "weft compress",
                    f"{target} cannot be reached with method={self.settings['method']} bits={self.settings['bits']}: the nearest point found is "
                    f"{self.before / least:.1f} times smaller, where the largest layer keeps {LEAST:.2%} of its weights and {overhead:,} bytes of {least:,} "
                    "are the program around them.",
                )
            self._prune_to(density, f"{attempt}", self.settings["steps"] if attempt == 0 else 1)
            point = self._point(density, attempt + 1)
            if point["ratio"] >= target.value:
                return
        raise RunError(
            "weft compress", f"{target} was not reached: the nearest point found is {point['ratio']:.1f} times smaller."
        )

    def _sweep(self, target: Target | None) -> None:
        """Points of falling density, each pruned further than the one before; with a target for the error until it is missed."""
        for number, density in enumerate(planned_densities(self.settings), 1):
            if has_method(self.settings, "prune"):
                self._prune_to(density, f"{number}", self.settings["steps"] if number == 1 else 1)
            point = self._point(density, number)
            if target is not None and point["error"] > allowed_error(self.state):
                break

    def _prune_to(self, density: float, name: str, steps: int) -> None:
        """Prune in steps, fast at first, and train after each."""
        wanted = scaled_densities(self.model, density)
        for step in range(steps):
            now = {path: gradual(1.0, end, steps)[step] for path, end in wanted.items()}
            prune(self.model, now)
            what = (
                f"pruned to {max(now.values()):.1%}"
                if len(set(now.values())) == 1
                else f"pruned to {min(now.values()):.1%} and more"
            )
            self._train(self.model, f"prune-{name}-{step + 1}", what, self.settings["epochs"], self.settings["rate"])

    def _point(self, density: float, number: int) -> dict[str, Any]:
        """Share, train and measure a copy of the pruned network."""
        model = copy.deepcopy(self.model)
        if self.bits is not None:
            share(model, self.bits)
            what = f"with {2**self.bits} shared values"
            self._train(model, f"share-{number}", what, self.settings["share_epochs"], self.settings["share_rate"])
        points = self.state["points"]
        if len(points) < number:
            self.recorder.show("activity", text=f"packing and measuring point {number}")
            points.append(self._measured(model, number, density, half=self.settings["half"]))
            self._keep_state()
            said = f"point {number}: {points[-1]['ratio']:.1f}x smaller, {points[-1]['bytes']:,} bytes, error {100 * points[-1]['error']:.2f} %"
            self.recorder.log(f"{said} (original: {100 * self.first['error']:.2f} %)")
        found: dict[str, Any] = points[number - 1]
        return found

    def _train(self, model: nn.Module, name: str, what: str, epochs: int, rate: float) -> None:
        """Train the network, or load what an earlier attempt ended with; the best epoch counts."""
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

    def _measured(self, model: nn.Module, number: int, density: float, half: bool) -> dict[str, Any]:
        """Write the network as a run of its own, packed too, and measure the packed file."""
        point = RunFolder(self.folder.path / "points" / str(number))
        self._describe(point)
        # Without a name: the bytes of a point, and with them the densities that reach a size, do not depend on it.
        point.settings({**settings_of("compress", self.folder.path), "name": None})
        save(point.path / "weights" / "best.safetensors", packed_weights(model, half))
        export_run("compress", point.path, point.path / "plain.weft", train=False)
        size = pack(point.path / "plain.weft", point.path / PACKED, coder=self.coder)  # weights are rounded already
        (point.path / "plain.weft").unlink()
        _, network = self.job.trained(point.path)
        # Points are chosen by this error: the test split decides nothing, so that the result's accuracy on it is fair.
        split, examples = held_out(self.job.splits, "validation" if self.job.splits.validation else None)
        found = evaluated(network, self.job.checks(examples), self.job.loss())
        if number:
            write_results(point.path, found, split=split)
        sizes = layer_report(model, half=half, coder=self.coder)
        error = 1.0 - found.numbers["accuracy"] if "accuracy" in found.numbers else found.numbers["loss"]
        return {
            "number": number, "density": density, "bits": self.bits, "bytes": size, "weights_bytes": sizes.after,
            "ratio": self.before / size, "error": error, "split": split, **found.numbers, "latency_ms": _latency(load_program(point.path / PACKED)),
            "epochs": self.epochs_done, "time": round(time.time(), 1), "layers": sizes.as_json()["layers"],
        }  # fmt: skip

    def _keep_state(self) -> None:
        self.folder.write_json(STATE, self.state)

    # --- the end ------------------------------------------------------------------------------------------------------------

    def _finish(self, target: Target | None) -> None:
        chosen = self._chosen(target)
        path, point = self.folder.path, self.folder.path / "points" / str(chosen["number"])
        for name in ("best", "last"):
            shutil.copyfile(point / "weights" / "best.safetensors", path / "weights" / f"{name}.safetensors")
        shutil.copyfile(point / PACKED, path / PACKED)
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

    def _chosen(self, target: Target | None) -> dict[str, Any]:
        """The smallest point that loses at most what is allowed; for a size, the last one."""
        points: list[dict[str, Any]] = self.state["points"]
        if target is not None and target.what == "size":
            return points[-1]
        good = [point for point in points if point["error"] <= allowed_error(self.state)]
        if target is not None and not good:
            nearest = min(points, key=lambda point: point["error"])
            raise RunError(
                "weft compress",
                f"{target} cannot be reached: the nearest point found has {100 * (nearest['error'] - self.first['error']):+.2f} points of error and is "
                f"{nearest['ratio']:.1f} times smaller (point {nearest['number']} in {self.folder.path}). Train longer (epochs=), or keep more "
                "(density=, bits=).",
            )
        return max(good, key=lambda point: point["ratio"]) if good else min(points, key=lambda point: point["error"])


def _latency(program: Program) -> float | None:
    """Milliseconds of a call with one example, the fastest of some; None for networks with inputs of several free sizes."""
    types = program.eval().argument_types()
    if len(types) != 1 or set(program.manifest.dimensions) - {"batch"}:
        return None
    kind = parse_type(types[0], {"batch": 1})
    call, x = jit(program), zeros(kind.shape, dtype=kind.dtype)
    times = []
    for _ in range(_LATENCY_CALLS):
        begun = time.perf_counter()
        call(x).numpy()
        times.append(1000 * (time.perf_counter() - begun))
    return round(min(times), 4)
