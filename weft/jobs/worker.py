"""The process of one job: `python -m weft.jobs.worker FOLDER`. Started by the runner."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from ..errors import WeftError
from ..io.files import append_line
from ..locks import one_writer
from ..signals import TERMINATED, Terminated, terminable
from .events import FILE, Event
from .record import DONE, FAILED, RUNNING, STOPPED, JobRecord
from .schema import validated
from .settings import SETTINGS
from .training import resume, train

PROGRESS_SECONDS = 1.0  # between two progress events on disk


def work(folder: Path) -> int:
    """Train what the folder says, or go on with its run; the exit code."""
    record = JobRecord(folder)
    with one_writer(folder):
        run = record.set(RUNNING).run
        (folder / "request").unlink(missing_ok=True)

        shown = 0.0

        def keep(event: Event) -> None:
            nonlocal shown
            if event.type == "progress":
                if event.time - shown < PROGRESS_SECONDS:
                    return
                shown = event.time
            append_line(folder / FILE, event.line(), "jobs")
            if event.type == "run":
                record.set(RUNNING, run=event["folder"])

        try:
            with terminable():
                if run is not None and (Path(run) / "args.yaml").exists():
                    resume(Path(run), listener=keep)
                else:
                    train(validated("jobs", record.settings, SETTINGS), keep)
        except (Terminated, KeyboardInterrupt):
            record.set(STOPPED, _why(folder))
            return TERMINATED
        except WeftError as error:
            record.set(FAILED, f"[{error.where}] {error.message}")
            return 1
        except BaseException as error:
            record.set(FAILED, f"{type(error).__name__}: {error}")
            traceback.print_exc()
            return 1
        record.set(DONE)
        return 0


def _why(folder: Path) -> str:
    """What was asked for; without a request it was somebody else's signal."""
    try:
        return (folder / "request").read_text(encoding="utf-8").strip()
    except OSError:
        return "terminated"


if __name__ == "__main__":
    sys.exit(work(Path(sys.argv[1])))
