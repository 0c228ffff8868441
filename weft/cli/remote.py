"""Verbs on a studio elsewhere: `weft VERB ... server=URL`. One table says which verbs can; all others work on local files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import RunError, UserError
from ..jobs.datasets.image_lists import image_files
from ..jobs.events import Event
from ..jobs.prediction.predictions import FilePrediction
from ..jobs.schema import Setting, flag
from ..jobs.settings import COMMON, FOLDS_SETTING, SETTINGS, setting_as_text
from ..report import compare as facts
from ..studio.client import Client
from ..studio.connection import TOKEN
from .arguments import Words, read
from .predict import read_predict, show_all
from .progress import ProgressDisplay
from .runs import runs as local_runs
from .table import as_json, pairs, table

BATCH = 16  # images in a request
COMPARED = ("args.yaml", "metrics.csv", "summary.json", "env.json")  # the files of a run that a comparison reads
_JSON = {"json": Setting(flag, False, "print JSON, for programs")}


def run_remote(verb: str, words: Sequence[str]) -> None:
    """Run a command on the studio that its word server=URL names. The token is that of WEFT_STUDIO_TOKEN, or of token=FILE."""
    rest, server, token = _split(words)
    name = f"{verb} {rest[0]}" if verb in ("job", "runs") and rest else verb
    if name not in REMOTE:
        raise UserError(
            f"weft {verb}",
            f"this verb works on local files only, got server={server}. With server= work: {', '.join(REMOTE)}.",
        )
    with Client(server, _token(token)) as client:
        REMOTE[name](client, rest[1:] if name != verb else rest)


def _split(words: Sequence[str]) -> tuple[list[str], str, str | None]:
    """The words without server= and token=, and these."""
    found: dict[str, str] = {}
    left, rest = list(words), []
    while left:
        word = left.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if name not in ("server", "token") or (not equals and not word.startswith("--")):
            rest.append(word)
        else:
            found[name] = value if equals else (left.pop(0) if left else "")
    return rest, found.get("server", ""), found.get("token")


def _token(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).expanduser().read_text("utf-8").strip()
    except OSError as error:
        raise UserError(
            "weft", f"token= requires a file with the token, got {file}: {error.strerror}. Or set {TOKEN}."
        ) from None


# --- trainings and jobs -------------------------------------------------------------------------------------------------------------


def _submitted(client: Client, words: Sequence[str], verb: str) -> tuple[list[dict[str, Any]], Words]:
    """The jobs of trainings, or of a cross-validation."""
    known = {**SETTINGS, "folds": FOLDS_SETTING} if verb == "train" else SETTINGS
    given = read(verb, [word for word in words if not _is_list(word)], known, 1, common=COMMON)
    settings = {
        name: setting_as_text(name, given[name]) for name in given.given if name not in ("json", "runs", "folds")
    }
    settings |= dict(word.removeprefix("--").split("=", 1) for word in words if _is_list(word))
    named = {"data": given.plain[0]} if given.plain and "data" not in settings else {}
    if "folds" in given.given:
        return [client.cross_validate(given["folds"], **named, **settings)], given
    return client.submit_all({**named, **settings}), given


def _is_list(word: str) -> bool:
    """Whether a word may be a list of values, which makes several trainings: the server decides."""
    return "=" in word and "," in word.partition("=")[2]


def _train(client: Client, words: Sequence[str]) -> None:
    jobs, given = _submitted(client, words, "train")
    for job in jobs:
        _show_events(client, job["number"], given["json"])


def _submit(client: Client, words: Sequence[str]) -> None:
    jobs, given = _submitted(client, words, "job submit")
    if given["json"]:
        print(as_json(jobs))
        return
    for job in jobs:
        print(f"job {job['number']} is {job['state']} at {client.url}")


def _list_jobs(client: Client, words: Sequence[str]) -> None:
    given = read("job list", words, _JSON, 0)
    found = client.jobs()
    if given["json"]:
        print(as_json(found))
        return
    rows = [
        [
            str(job["number"]), job["why"] if job["why"] in ("paused", "cancelled") else job["state"], str(job["settings"].get("data") or ""),
            str(job["settings"].get("model") or ""), _moment(job["time"]), Path(job["run"] or "").name,
        ]
        for job in found
    ]  # fmt: skip
    titles = ["job", "state", "data", "model", "since", "run"]
    print(table(titles, rows, left=tuple(titles[1:])) if rows else f"there are no jobs at {client.url}.")


def _follow(client: Client, words: Sequence[str]) -> None:
    given = read("job follow", words, _JSON, 1)
    (number,) = _numbers("follow", given)
    _show_events(client, number, given["json"])


def _show_events(client: Client, number: int, json: bool) -> None:
    """Show the events of a job until it ends; the exit code is 1 if it has failed."""
    if json:
        for event in client.job_events(number):
            print(as_json(event), flush=True)
    else:
        with ProgressDisplay() as progress:
            for event in client.job_events(number):
                kind, when = event.pop("type"), event.pop("time")
                if kind not in ("stopped", "state", "result"):
                    progress(Event(kind, event, when))
    job = client.job(number)
    text = f"job {number} is {job['state']}" + (f": {job['why']}" if job["why"] else "")
    if job["state"] == "failed":
        raise RunError("weft job", text)
    print(f"{text}; its run is {job['run']} at {client.url}" if job["run"] else text)


def _changed(command: str, change: Callable[[Client, int], dict[str, Any]]) -> Callable[[Client, Sequence[str]], None]:
    def run(client: Client, words: Sequence[str]) -> None:
        for number in _numbers(command, read(f"job {command}", words, {}, 1000)):
            job = change(client, number)
            print(f"job {number} is {job['state']}" + (f": {job['why']}" if job["why"] else ""))

    return run


def _numbers(command: str, given: Words) -> list[int]:
    if not given.plain or not all(word.isdigit() for word in given.plain):
        raise UserError(f"weft job {command}", f"the number of a job is required: weft job {command} 1.")
    return [int(word) for word in given.plain]


# --- runs -----------------------------------------------------------------------------------------------------------------------------


def _list_runs(client: Client, words: Sequence[str]) -> None:
    given = read("runs list", words, _JSON, 0)
    found = client.runs()
    if given["json"]:
        print(as_json(found))
        return
    titles = ["run", "model", "data", "epochs", "best", "when", "status"]
    rows = [
        [run["id"], run["model"], run["data"], str(run["epochs"]), _best(run), _moment(run["started"]), run["status"]]
        for run in found
    ]
    print(
        table(titles, rows, left=("run", "model", "data", "status")) if rows else f"there are no runs at {client.url}."
    )


def _show_run(client: Client, words: Sequence[str]) -> None:
    given = read("runs show", words, _JSON, 1)
    if not given.plain:
        raise UserError("weft runs show", "a run is required, got none: weft runs list server=URL names them.")
    run = client.run(_found(client, given.plain[0]))
    if given["json"]:
        print(as_json(run))
        return
    print(f"{run['id']} at {client.url}: {run['model']} on {run['data']}")
    print(f"{run['status']}, {_best(run)}, {run['epochs']} epochs, started {_moment(run['started'])}")
    print(f"\nsettings\n{pairs(run['settings'])}")
    names = [name for name in run["metrics"] if name != "steps"]
    lines = zip(*(run["metrics"][name] for name in names), strict=True)
    rows = [[facts.value_text(name, value) for name, value in zip(names, line, strict=True)] for line in lines]
    print(f"\nepochs\n{table([name.replace('_', ' ') for name in names], rows)}")


def _compare_runs(client: Client, words: Sequence[str]) -> None:
    """The files of the runs are copied, and compared here."""
    with tempfile.TemporaryDirectory(prefix="weft-compare-") as root:
        named = []
        for word in words:
            if "=" in word or word.startswith("--"):
                named.append(word)
                continue
            run = _found(client, word)
            named.append(run)
            _copy(client, run, Path(root) / run)
        local_runs(["compare", *named, f"root={root}"])


def _copy(client: Client, run: str, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in COMPARED:
        try:
            client.download(run, name, target / name)
        except UserError:  # a run that has just begun lacks some
            (target / name).unlink(missing_ok=True)


def _found(client: Client, text: str) -> str:
    """The id of a run by its id, its name, or the end of its name."""
    known = [str(run["id"]) for run in client.runs()]
    for fits in (
        [one for one in known if text in (one, one.rpartition("/")[2])],
        [one for one in known if one.endswith(text)],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise UserError("weft runs", f"one run is required, got {text!r}, which means {', '.join(fits[:5])}.")
    raise UserError(
        "weft runs", f"a run of {client.url} is required, got {text!r}. See: weft runs list server={client.url}."
    )


def _best(run: dict[str, Any]) -> str:
    return (
        "-"
        if run["best_metric"] is None
        else f"{facts.value_text(run['best_metric'], run['best'])} {run['best_metric'].replace('_', ' ')}"
    )


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", timespec="minutes")


# --- predictions ------------------------------------------------------------------------------------------------------------------------


def _predict(client: Client, words: Sequence[str]) -> None:
    """Images of this machine are sent to the server."""
    given = read_predict(words)
    name, *sources = given.plain
    extra = given.given - {"top", "csv", "json", "checkpoint"}
    if extra:
        raise UserError(
            "weft predict", f"{', '.join(sorted(extra))} works on local files only, got server={client.url}."
        )
    network = name if name in {one["id"] for one in client.networks()} else _found(client, name)
    loaded = client.post(f"/networks/{network}/load?checkpoint={given['checkpoint']}")
    files = image_files(sources)
    show_all(_predictions(client, network, files, given), len(files), given, [""] * loaded["classes"])


def _predictions(client: Client, network: str, files: Sequence[str], given: Words) -> Iterator[FilePrediction]:
    for start in range(0, len(files), BATCH):
        part = files[start : start + BATCH]
        there = [path for path in part if os.path.isfile(path)]
        results = iter(client.classify(network, there, given["top"], given["checkpoint"]) if there else ())
        for path in part:
            yield _prediction(path, next(results)) if path in there else FilePrediction(path, "", "is not a file")


def _prediction(path: str, result: dict[str, Any]) -> FilePrediction:
    best = tuple((one["name"], one["probability"]) for one in result["classes"])
    return FilePrediction(path, "", result["error"] or "", best, tuple(result["numbers"]))


REMOTE: dict[str, Callable[[Client, Sequence[str]], None]] = {
    "train": _train, "job submit": _submit, "job list": _list_jobs, "job follow": _follow, "job pause": _changed("pause", Client.pause),
    "job resume": _changed("resume", Client.resume), "job cancel": _changed("cancel", Client.stop), "runs list": _list_runs,
    "runs show": _show_run, "runs compare": _compare_runs, "predict": _predict,
}  # fmt: skip
