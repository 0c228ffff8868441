"""The main program of a process started by `weft launch`: python -m weft.parallel.rank SCRIPT.py args..., or -m MODULE args...

It runs a program as Python itself would, and reports to the other processes how it ended.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ..mesh.connection import connection
from ..mesh.control import ControlPage
from ..mesh.failures import exit_reason, is_of_another, reason

PARENT = "WEFT_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def main(words: Sequence[str]) -> int:
    """Run a program; returns the exit code of this process."""
    end_with_launcher()
    page = connection().control
    try:
        run_program(words)
    except SystemExit as end:
        return _exit_code(end, page)
    except KeyboardInterrupt as error:
        page.give_up(page.rank, reason(error))
        return 130
    except BaseException as error:
        error.__traceback__ = _of_program(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def run_program(words: Sequence[str]) -> None:
    """Run a module (-m NAME) or a script with its arguments."""
    if words[0] == "-m":
        sys.argv = list(words[1:])
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


def end_with_launcher() -> None:
    """Have the kernel kill this process when the launcher ends, for whatever reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(os.environ[PARENT]):  # it has ended already
        os._exit(1)


def _exit_code(end: SystemExit, page: ControlPage) -> int:
    code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    if code and not is_of_another(page):
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        page.give_up(page.rank, exit_reason(code))
    return code


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this file and of runpy."""
    while trace is not None and trace.tb_next is not None:
        name = trace.tb_frame.f_code.co_filename
        if name != __file__ and "runpy" not in name:
            break
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)
