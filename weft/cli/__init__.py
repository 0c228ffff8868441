"""The command line: `weft VERB word ... key=value ...`. Thin: every verb is a few calls of what Python users call too.

Exit codes: 0 all went well, 1 a runtime error (disk full, out of memory), 2 the command was wrong, 130 it was interrupted, 143 it was
terminated (SIGTERM).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.traceback import install as show_tracebacks

from ..errors import RunError, UserError, WeftError
from ..hints import nearest
from ..signals import TERMINATED, Terminated, terminable
from ..version import __version__
from . import verbs
from .arguments import Help

# Said by `weft --help`, which imports no verb; the first line of each verb's docstring.
SUMMARIES = {
    "train": "Train a network: weft train digits model=lenet epochs=5.",
    "resume": "Go on with a run that was stopped: weft resume runs/classify/digits-lenet5-1.",
    "eval": "Measure a trained network on examples it has not learned from: weft eval RUN.",
    "predict": "What a trained network takes images for, or how it goes on with a text: weft predict RUN image.jpg ...",
    "dataset": "Make, look at and get data: weft dataset create photos photos-dataset size=64.",
    "weights": "Keep published weights on this machine: weft weights add FILE network=mobilenet_v2, then weft train weights=mobilenet_v2.",
    "models": "The networks that can be trained by name.",
    "recipes": "Named settings that are known to work, and what they reached: weft train recipe=digits.",
    "summary": "What each layer of a network costs: weft summary resnet18 size=224.",
    "explain": "Where the time of a network goes, kernel by kernel: weft explain lenet batch=64 what=train.",
    "bench": "How fast a network is on this machine: weft bench lenet batch=1,16,64 what=train,infer.",
    "devices": "The devices of this machine.",
    "runs": "List, show and compare runs: weft runs list, weft runs show RUN, weft runs compare RUN RUN.",
    "cfg": "Print settings as a file: weft cfg data=digits epochs=5 > mine.yaml, then weft train cfg=mine.yaml.",
}


class _Verbs(Mapping[str, Callable[[Sequence[str]], None]]):
    """The function of each verb, imported when it is asked for: `weft runs list` needs no compiler."""

    def __getitem__(self, verb: str) -> Callable[[Sequence[str]], None]:
        if verb not in SUMMARIES:
            raise KeyError(verb)
        function: Callable[[Sequence[str]], None] = getattr(verbs, verb)
        return function

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)


VERBS = _Verbs()

GROUPS = {
    "learn": ("train", "resume", "eval", "predict"),
    "data": ("dataset",),
    "networks": ("models", "weights", "recipes", "summary", "explain", "bench"),
    "runs and settings": ("runs", "cfg", "devices"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    given = list(sys.argv[1:] if words is None else words)
    if words is None and sys.stderr.isatty():
        show_tracebacks()  # of bugs: a command, not a program that calls us
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
    call = VERBS[verb]
    try:
        call(words)
    except Help as asked:
        print(asked.text(call.__doc__ or ""))


def _help() -> str:
    lines = ["weft VERB word ... key=value ...   (or --key value)"]
    for group, members in GROUPS.items():
        lines += ["", group, *(f"  {verb:8}  {SUMMARIES[verb]}" for verb in members)]
    return "\n".join(
        [
            *lines,
            "",
            "for example: weft train digits model=lenet epochs=5",
            "weft help VERB lists the settings of a verb; weft --version says which weft this is.",
        ]
    )
