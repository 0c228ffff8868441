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

# The verbs by group, each with the first line of its docstring: `weft --help` imports no verb.
VERBS_BY_GROUP = {
    "train": {
        "train": "Train a network: weft train digits model=lenet epochs=5.",
        "resume": "Resume an interrupted run: weft resume digits-lenet5-1.",
        "sweep": "Search hyperparameters: weft sweep digits model=lenet,mlp rate=log:1e-4..1e-1 trials=40 jobs=4.",
        "ensemble": "Combine several runs into one network: weft ensemble RUN RUN method=average.",
        "launch": "Run a program in several processes: weft launch -n 8 SCRIPT.py args, weft launch -n 8 -m MODULE args, weft launch -n 4 weft train ...",
        "job": "Submit and run queued jobs: weft job submit digits epochs=5, weft job run, weft job list.",
    },
    "use a trained network": {
        "eval": "Evaluate a trained network on held-out examples: weft eval RUN.",
        "predict": "Predict the classes of images with a trained network: weft predict RUN image.jpg ...",
        "generate": 'Generate text with a language model: weft generate RUN "Once upon a time".',
        "interpret": "Show why a network predicts what it does, layer by layer: weft interpret RUN image.jpg.",
    },
    "compress and deploy": {
        "compress": "Prune, quantize and pack a trained network: weft compress RUN target=size=20x.",
        "export": "Export a network as a file, an ONNX model, C library or web page: weft export RUN to=onnx, to=c or to=web.",
        "convert": "Convert weights and networks between file formats: weft convert net.pth net.safetensors, weft convert net.onnx net.weft.",
    },
    "data": {
        "dataset": "Create, inspect and download datasets: weft dataset create photos photos-dataset size=64.",
    },
    "networks": {
        "models": "List the networks of the zoo.",
        "networks": "Check and manage networks written as text: weft networks check net.yaml, then weft train DATA model=net.yaml.",
        "recipes": "List recipes, named settings with measured results: weft train recipe=digits.",
        "weights": "Manage pretrained weights on this machine: weft weights add FILE network=mobilenet_v2, then weft train weights=mobilenet_v2.",
        "summary": "List the layers of a network with parameters and multiply-adds: weft summary resnet18 size=224.",
    },
    "measure": {
        "profile": "Measure time, bytes, energy and cost of every layer: weft profile resnet50 batch=1,16 machine=titan-x,here.",
        "explain": "Profile a network kernel by kernel: weft explain lenet batch=64 what=train.",
        "bench": "Benchmark a network on this machine: weft bench lenet batch=1,16,64 what=train,infer.",
        "plan": "Predict how a training scales over many ranks: weft plan resnet18 machines=here,dgx-h100, after weft plan --measure.",
        "formats": "Compare number formats and their effect on a network: weft formats, weft formats RUN html=formats.html.",
        "tpu": "Simulate an int8 network on the TPU of 2015, cycle by cycle: weft tpu mlp0, or weft tpu batch=64 net.weft.",
    },
    "runs": {
        "runs": "List, show and compare runs: weft runs list, weft runs show RUN, weft runs compare RUN RUN.",
        "compare": "Compare runs in depth: settings, metrics, disagreements: weft compare RUN RUN html=compare.html.",
    },
    "studio": {
        "studio": "Work in the browser: weft studio.",
        "user": "Manage the accounts of the studio: weft user add NAME, weft user list, weft user password NAME.",
    },
    "settings and devices": {
        "cfg": "Print settings as a YAML file: weft cfg data=digits epochs=5 > mine.yaml, then weft train cfg=mine.yaml.",
        "devices": "List the devices of this machine.",
    },
}
SUMMARIES = {verb: line for verbs in VERBS_BY_GROUP.values() for verb, line in verbs.items()}


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
    lines = ["usage: weft VERB [WORD ...] [SETTING=VALUE ...]"]
    for group, members in VERBS_BY_GROUP.items():
        lines += ["", group, *(f"  {verb:{_WIDTH}}  {_what(line)}" for verb, line in members.items())]
    return "\n".join(
        [
            *lines,
            "",
            "For example: weft train digits model=lenet epochs=5",
            "weft VERB --help lists the settings of a verb; weft --version the version.",
            "server=URL runs train, predict, job and runs on a studio on another machine,",
            "with its token in WEFT_STUDIO_TOKEN.",
        ]
    )


_WIDTH = max(map(len, SUMMARIES))


def _what(line: str) -> str:
    """What a verb does, without the example."""
    return line.partition(": weft ")[0].rstrip(".")
