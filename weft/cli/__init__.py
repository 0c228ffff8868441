"""The command line: `weft VERB word ... key=value ...`. Thin: every verb is a few calls of what Python users call too.

Exit codes: 0 all went well, 1 the run met a misfortune, 2 the command was wrong, 130 it was interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ..errors import RunError, UserError, WeftError
from .learn import evaluate, predict, resume, train
from .show import datasets, devices, models, summary
from .words import nearest

VERBS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": train,
    "resume": resume,
    "eval": evaluate,
    "predict": predict,
    "models": models,
    "summary": summary,
    "datasets": datasets,
    "devices": devices,
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    given = list(sys.argv[1:] if words is None else words)
    if not given or given[0] in ("help", "-h", "--help"):
        print(_help())
        return 0
    verb, *rest = given
    try:
        if verb not in VERBS:
            raise UserError("weft", f"there is no verb {verb!r}. {nearest(verb, list(VERBS))}")
        VERBS[verb](rest)
        return 0
    except WeftError as error:
        print(f"weft: [{error.where}] {error.message}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read this has seen enough
        return 0


def _help() -> str:
    lines = [f"  {verb:10} {(call.__doc__ or '').splitlines()[0]}" for verb, call in VERBS.items()]
    return "\n".join(["weft VERB word ... key=value ...   (or --key value)", "", *lines])
