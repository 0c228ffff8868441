"""The command line: `weft VERB word ... key=value ...`. Each verb is a thin layer over the Python interface.

Exit codes: 0 success, 1 a runtime error (disk full, out of memory), 2 an invalid command, 130 interrupted, 143 terminated (SIGTERM).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..errors import RunError, UserError, WeftError
from ..hints import nearest
from ..mesh.world import world
from ..signals import TERMINATED, Terminated, terminable
from ..version import __version__
from . import verbs
from .arguments import Help, asks_for_help, has_server

# The first line of each verb's docstring, for `weft --help`, which imports no verb.
SUMMARIES = {
    "train": "Train a network: weft train digits model=lenet epochs=5.",
    "resume": "Continue a run that was stopped: weft resume runs/classify/digits-lenet5-1.",
    "job": "Queue trainings: weft job submit digits epochs=5, weft job run, weft job list.",
    "sweep": "Search the best settings of a training: weft sweep digits model=lenet,mlp rate=log:1e-4..1e-1 trials=40 jobs=4.",
    "launch": "Run a program in many processes: weft launch -n 8 SCRIPT.py args, weft launch -n 8 -m MODULE args, weft launch -n 4 weft train ...",
    "eval": "Evaluate a trained network on held-out examples: weft eval RUN.",
    "predict": "Classify images, or continue a text, with a trained network: weft predict RUN image.jpg ...",
    "generate": 'Continue a text with a network that was trained on text: weft generate RUN "Once upon a time".',
    "interpret": "See why a network predicts what it does, layer by layer: weft interpret RUN image.jpg.",
    "export": "Save a trained network as a file that needs no run and no code: weft export RUN out=net.weft, to=onnx, to=c or to=web.",
    "compress": "Make a trained network small: weft compress RUN target=size=20x.",
    "ensemble": "Make one network of several runs: weft ensemble RUN RUN method=average.",
    "convert": "Write a file of weights, or a network, in another format: weft convert net.pth net.safetensors, weft convert net.onnx net.weft.",
    "dataset": "Create, inspect and download datasets: weft dataset create photos photos-dataset size=64.",
    "weights": "Keep published weights on this machine: weft weights add FILE network=mobilenet_v2, then weft train weights=mobilenet_v2.",
    "models": "The networks that can be trained by name.",
    "networks": "Networks that are written as text, and imported ones: weft networks check net.yaml, then weft train DATA model=net.yaml.",
    "recipes": "Named settings with their measured results: weft train recipe=digits.",
    "summary": "Layers of a network with parameters and multiply-adds: weft summary resnet18 size=224.",
    "profile": "Time, bytes, joules and dollars of every layer: weft profile resnet50 batch=1,16 machine=titan-x,here.",
    "plan": "How a training scales over many ranks: weft plan resnet18 machines=here,dgx-h100, after weft plan --measure.",
    "explain": "Profile a network, kernel by kernel: weft explain lenet batch=64 what=train.",
    "bench": "Benchmark a network on this machine: weft bench lenet batch=1,16,64 what=train,infer.",
    "formats": "Number formats, and what they do to a network: weft formats, weft formats RUN html=formats.html.",
    "tpu": "Simulate an int8 network on a TPU of 2015, cycle by cycle: weft tpu mlp0, or weft tpu batch=64 net.weft.",
    "devices": "The devices of this machine.",
    "compare": "Compare runs: settings, results, what mattered, where networks disagree: weft compare RUN RUN html=compare.html.",
    "runs": "List, show and compare runs: weft runs list, weft runs show RUN, weft runs compare RUN RUN.",
    "studio": "Work in the browser: weft studio.",
    "user": "Accounts of the studio: weft user add NAME, weft user list, weft user password NAME.",
    "cfg": "Print settings as a file: weft cfg data=digits epochs=5 > mine.yaml, then weft train cfg=mine.yaml.",
}


class _Verbs(Mapping[str, Callable[[Sequence[str]], None]]):
    """The function of each verb, imported when it is used: `weft runs list` needs no compiler."""

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
    "learn": (
        "studio",
        "train",
        "resume",
        "launch",
        "job",
        "sweep",
        "eval",
        "predict",
        "generate",
        "interpret",
        "export",
        "compress",
        "ensemble",
        "convert",
    ),
    "data": ("dataset",),
    "networks": (
        "models",
        "networks",
        "weights",
        "recipes",
        "summary",
        "profile",
        "plan",
        "explain",
        "bench",
        "formats",
        "tpu",
    ),
    "runs and settings": ("runs", "compare", "cfg", "user", "devices"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    given = list(sys.argv[1:] if words is None else words)
    if words is None and sys.stderr.isatty():
        sys.excepthook = lambda *error: verbs.show_bug(*error)  # a program that calls `main` has its own
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
        if world().size == 1 or verbs.report_failure(error):  # else another process of this run has failed before
            print(f"weft: [{error.where}] {error.message}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        return 130
    except Terminated:
        print("weft: terminated", file=sys.stderr)
        return TERMINATED
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        return 0


def _run(verb: str, words: Sequence[str]) -> None:
    if verb not in VERBS:
        raise UserError("weft", f"there is no verb {verb!r}. {nearest(verb, [*VERBS, 'help'])}")
    if verb not in ("studio", "launch") and has_server(words) and not asks_for_help(words):
        verbs.run_remote(verb, words)
        return
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
            "weft help VERB lists the settings of a verb; weft --version prints the version.",
            "server=URL runs train, predict, job and runs on a studio elsewhere, with the token in WEFT_STUDIO_TOKEN.",
        ]
    )
