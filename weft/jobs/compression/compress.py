"""Compressing a run: prune gradually and train, share weights and train, pack. The result is a run of its own; the original is only read.

compression.json, points/N and packed.weft are described in state.py.
steps/             trainings on the way, with checkpoints: an interrupted compression continues exactly; removed at the end
compression.html   the Pareto page

Everything between two checkpoints follows from settings and earlier steps, so resuming repeats it all, except for the trainings that have ended.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...errors import UserError, WeftError
from ...locks import one_writer
from ...signals import Terminated
from ...train import RunFolder
from ..device import on, timed_on
from ..events import Listener, Recorder, ignore_events
from ..find import find_run
from ..job import ENSEMBLE, REWRITTEN
from ..schema import validated
from ..stored import settings_of
from .run import Compression, is_begun, run_settings
from .settings import COMPRESSION, check_compression, target_of
from .state import STATE, is_compression, read_state
from .targets import make_points


def compress(settings: Mapping[str, Any], listener: Listener = ignore_events) -> Path:
    """Compress a run with validated settings; the folder of the new run."""
    check_compression(settings)
    target = target_of(settings["target"])
    source = find_run(settings["run"], settings["runs"])
    settings_of("compress", source)
    if not (source / "weights" / "best.safetensors").exists():
        raise UserError("weft compress", f"{source} has no weights yet. Train it first: weft resume {source}")
    if (source / ENSEMBLE).exists() and (source / REWRITTEN).exists():
        raise UserError("weft compress", f"one network is required, got {source}, an ensemble. Compress its members.")
    if (source / STATE).exists():
        raise UserError("weft compress", f"{source} is compressed already. Compress the run that it came from.")
    for device in (settings["device"], None if target is None else target.device):
        with timed_on(device):  # one that is missing or cannot be used is an error before anything is made
            pass
    name = settings["name"] or f"{source.name}-small"
    root = source.parent if source.parent.name else Path(settings["runs"])
    was_there = settings["name"] is not None and (root / name).exists()
    if settings["name"] is None:
        run = RunFolder.fresh(root, f"{name}-")
    else:
        run = RunFolder.named(root, name, settings["exist_ok"])
    run.write_json(STATE, {"settings": dict(settings), "source": str(source.resolve()), "points": [], "done": False})
    run.settings(run_settings(source, run.path))  # a run from now on, which can be resumed
    try:
        return _compressed(run, Recorder(listener))
    except WeftError:
        if not was_there and not is_begun(run):  # nothing was begun, because the data is gone for example
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def compress_or_resume(settings: Mapping[str, Any], run: Path | None, listener: Listener) -> None:
    """Compress with the settings of a job, or continue the compression that it began."""
    if run is not None and (run / STATE).exists():
        resume_compression(run, listener)
    else:
        compress(validated("jobs", settings, COMPRESSION), listener)


def resume_compression(folder: Path, listener: Listener = ignore_events) -> Path:
    """Continue a compression that was stopped."""
    return _compressed(RunFolder(folder), Recorder(listener))


def _compressed(run: RunFolder, recorder: Recorder) -> Path:
    state = read_state(run.path)
    try:
        with ExitStack() as held:
            held.enter_context(one_writer(run.path))
            held.enter_context(on(state["settings"]["device"]))
            if state["done"]:
                shutil.rmtree(run.path / "steps", ignore_errors=True)
            else:
                state.pop("why", None)
                work = Compression(run, state, recorder)
                work.begin()
                make_points(work)
                work.finish()
            return run.path
    except WeftError as error:
        if is_compression(run.path):  # so that it is known whoever started it
            run.write_json(STATE, {**state, "why": error.message})
        raise
    except (KeyboardInterrupt, Terminated) as stop:
        how = "terminated" if isinstance(stop, Terminated) else "stopped"
        recorder.send("stopped", why=how, folder=str(run.path))
        raise
