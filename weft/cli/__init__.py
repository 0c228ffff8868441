"""The command line: `weft VERB word ... key=value ...`. Thin: every verb is a few calls of what Python users call too.

Exit codes: 0 all went well, 1 the run met a misfortune, 2 the command was wrong, 130 it was interrupted, 143 it was
terminated (SIGTERM).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ..errors import RunError, UserError, WeftError
from ..hints import nearest
from ..train.signals import TERMINATED, Terminated, terminable
from ..version import __version__
from .arguments import Help, first_line
from .cfg import cfg
from .dataset import dataset
from .evaluate import evaluate
from .measure import bench, explain
from .predict import predict
from .recipes import recipes
from .runs import runs
from .show import devices, models, summary
from .training import resume, train

VERBS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": train,
    "resume": resume,
    "eval": evaluate,
    "predict": predict,
    "dataset": dataset,
    "models": models,
    "recipes": recipes,
    "summary": summary,
    "explain": explain,
    "bench": bench,
    "devices": devices,
    "runs": runs,
    "cfg": cfg,
}


GROUPS = {
    "learn": ("train", "resume", "eval", "predict"),
    "data": ("dataset",),
    "networks": ("models", "recipes", "summary", "explain", "bench"),
    "runs and settings": ("runs", "cfg", "devices"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    given = list(sys.argv[1:] if words is None else words)
    try:
        if not given or given in (["help"], ["-h"], ["--help"]):
            print(_help())
            return 0
        if given in (["--version"], ["version"]):
            print(f"weft {__version__}")
            return 0
        verb, *rest = [*given[1:], "--help"] if given[0] == "help" else given
        with terminable():
            _run(verb, rest)
        return 0
    except WeftError as error:
        print(f"weft: [{error.where}] {error.message}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        return 130
    except Terminated:
        print("weft: terminated", file=sys.stderr)
        return TERMINATED
    except BrokenPipeError:  # whoever read this has seen enough
        return 0


def _run(verb: str, words: Sequence[str]) -> None:
    if verb not in VERBS:
        raise UserError("weft", f"there is no verb {verb!r}. {nearest(verb, [*VERBS, 'help'])}")
    try:
        VERBS[verb](words)
    except Help as asked:
        print(asked.text(VERBS[verb].__doc__ or ""))


def _help() -> str:
    lines = ["weft VERB word ... key=value ...   (or --key value)"]
    for group, verbs in GROUPS.items():
        lines += ["", group, *(f"  {verb:8}  {first_line(VERBS[verb])}" for verb in verbs)]
    return "\n".join(
        [
            *lines,
            "",
            "for example: weft train digits model=lenet epochs=5",
            "weft help VERB lists the settings of a verb; weft --version says which weft this is.",
        ]
    )
