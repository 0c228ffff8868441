"""The job that writes a new version of a dataset: settings are `folder` and `changes` (as `DatasetChanges.as_json` gives them)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...data.create import Progress
from ...data.versions import DatasetChanges, new_version, version_of
from ...report.text_format import counted
from ..events import Listener, Recorder


def make_version(settings: Mapping[str, Any], run: Path | None, listener: Listener) -> None:
    """Write the version. An interrupted job continues where it stopped, according to the journal of the dataset."""
    recorder = Recorder(listener)

    def show(now: Progress) -> None:
        recorder.show("progress", what="writing images", done=now.done, total=now.total)
        if now.done == now.total and now.failed:
            recorder.log(f"{counted(now.failed, 'file')} could not be read", "warning")

    made = new_version(settings["folder"], DatasetChanges.from_json(settings["changes"]), show)
    name, number = version_of(made)
    recorder.show("dataset", folder=str(made))
    recorder.log(f"{name} v{number} is in {made}")
