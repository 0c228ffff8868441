"""Checks that a wrong command does nothing, and that what commands advise can be done."""

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from weft import nn, optim
from weft.cli import VERBS, main
from weft.cli.arguments import Help
from weft.data import Arrays
from weft.data.create import create
from weft.errors import UserError
from weft.jobs.cluster.settings import CLUSTER
from weft.jobs.schema import Setting
from weft.jobs.settings import SETTINGS
from weft.train.fit import fit

PACKAGE = Path(__file__).resolve().parent.parent / "weft"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.knobs import knobs

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(knobs, "data", str(tmp_path / "data"))


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("device", "told"), [("cpu", "nowhere"), ("gpu", "it must be one of cpu, cuda, null, reference, tpu")]
)
def test_a_device_is_checked_in_a_process_that_has_used_none(device: str, told: str) -> None:
    command = [sys.executable, "-m", "weft", "train", "nowhere", f"device={device}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert told in done.stderr


# --- nothing was done -----------------------------------------------------------------------------------------------------------

# For each setting a value, or several, that cannot be. Settings that are any text have none.
WRONG: dict[str, Sequence[str]] = {
    "data": ("nowhere-at-all",), "validation": ("1", "-0.5", "half"), "fold": ("0/5", "3/2", "1/1", "half"), "size": ("0", "8x8x8", "large"), "resize": ("stretch",),
    "colour": ("green",), "labels": ("words",), "length": ("0", "-1", "x"), "tokenizer": ("words", "bpe", "bpe:256", "bpe:x"), "augment": ("wild",), "flip": ("perhaps",), "workers": ("-1", "many"),
    "model": ("lenett", "char_lstm"), "hidden": ("0",), "layers": ("0",), "heads": ("0", "2"), "key_heads": ("0", "2"), "positions": ("sine", "rotary"), "window": ("0", "x", "2"), "dropout": ("1", "-0.1"), "weights": ("nothing-like-it",),
    "freeze": ("-1", "2"), "freeze_layers": ("-1", "2"), "body_rate": ("-1", "nan"), "epochs": ("0", "-3", "ten", "1.5"), "batch": ("0", "-8", "half"),
    "accumulate": ("0",), "parallel": ("modle:2", "data:0", "data:x", "data:2,data:2", "server:1", "server:2,model:2", "server"), "micro_batches": ("0", "x"), "pipeline_schedule": ("zigzag", "gpipe"), "recompute": ("perhaps", "true"), "cuts": ("measured", "layers.0,", "layers.0"), "staleness": ("-1", "x", "4", "unbounded"), "zero": ("-1", "3", "x", "1"), "local_steps": ("0", "x"), "optimizer": ("adamm", ""), "rate": ("-1", "nan", "inf", "fast"), "schedule": ("steps",),
    "weight_decay": ("-1", "nan"), "clip_norm": ("0", "-1"), "loss": ("crossentropy",), "precision": ("float8", "int8"),
    "device": ("tpu", "npu", "cuda:99"), "seed": ("-1", "x", str(2**64)), "patience": ("0", "-1"), "max_seconds": ("-1", "inf"),
    "fast_dev_run": ("-1",), "overfit": ("-1",), "keep": ("-1",), "name": ("a/b", "", "x" * 300), "runs": ("photos/red/0.png",),
    "tags": ("", "a,", "x" * 65), "group": ("x" * 101,), "notes": ("x" * 20_001,),
    "warmup": ("-1", "10", "soon"), "final_rate": ("-1", "nan"), "milestones": ("soon", "1,x"), "gamma": ("0", "-1"), "power": ("0", "x"), "momentum": ("1", "0.9", "x"), "nesterov": ("perhaps", "true"),
    "betas": ("0.9", "0.9,1", "a,b"), "eps": ("0", "-1"), "average": ("1", "0", "x"), "label_smoothing": ("1", "-0.1"),
    "mixup": ("0", "-1", "x"), "cutmix": ("0", "-1", "x"), "exist_ok": ("perhaps",), "recipe": ("nothing-like-it",),
    "stride": ("0", "x"), "steps": ("0", "1.5"), "resident": ("perhaps",), "alternate_flips": ("perhaps", "true"), "views": ("0", "x", "2"),
    "bias_rate": ("0", "-1", "nan"), "memory": ("lots", "8XB", "-1GiB"),
    "json": ("maybe",), "from": ("nowhere-at-all",), "nonsense": ("1",),
}  # fmt: skip


def photos(folder: Path, names: Sequence[str] = ("blue", "red"), count: int = 4) -> Path:
    draw = np.random.default_rng(5)
    for place, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = draw.integers(0, 100, (12, 12, 3))
            pixels[..., place % 3] += 120
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


def test_every_setting_has_a_wrong_value_here() -> None:
    assert set(SETTINGS) <= set(WRONG)


@pytest.mark.parametrize("verb", ["train", "resume"])
def test_a_wrong_setting_changes_nothing(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On image files: no run, and no dataset on the way."""
    photos(tmp_path / "photos")
    run = tmp_path / "runs" / "classify" / "old1"
    run.mkdir(parents=True)
    (run / "args.yaml").write_text('data: "photos"\nmodel: "lenet5_classic"\nsize: 28\n')
    first = ["train", "data=photos", "model=lenet5_classic"] if verb == "train" else ["resume", "old1"]
    before = listing(tmp_path)
    for name, values in WRONG.items():
        for value in values:
            assert main([*first, f"{name}={value}"]) == 2, f"{name}={value}"
            assert listing(tmp_path) == before, f"{name}={value}"
            said = capsys.readouterr()
            assert said.err.startswith("weft: ["), f"{name}={value}"
            assert said.out == "", f"{name}={value}"


def test_wrong_arguments_of_fit_make_no_folder(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"batch": 0}, {"batch": "big"}, {"epochs": -1}, {"epochs": 2.5}, {"optimizer": "adamm"}, {"rate": -1.0}, {"loss": "nope"},
        {"metrics": ("speed",)}, {"precision": "int8"}, {"seed": -1}, {"patience": "3"}, {"max_seconds": "1"}, {"save_seconds": None},
        {"keep": -1}, {"body": ("nothing",)}, {"body_rate": "slow"}, {"freeze": -1}, {"freeze_layers": -1}, {"fast_dev_run": -1}, {"overfit": -1},
        {"momentun": 0.9}, {"weight_decay": -1.0}, {"clip_norm": 0.0}, {"accumulate": 0}, {"validation": "some"},
    ]  # fmt: skip
    arrays = Arrays(np.zeros((32, 4), np.float32), np.arange(32) % 2)
    for settings in wrong:
        for resume in (False, True):
            with pytest.raises(UserError):
                fit(nn.Linear(4, 2), arrays, **{"epochs": 1, **settings}, folder=tmp_path / "run", resume=resume)
            assert listing(tmp_path) == [], settings


def test_a_size_that_the_network_does_not_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos(tmp_path / "photos")
    before = listing(tmp_path)
    assert main(["train", "photos", "model=alexnet", "size=64"]) == 2
    assert "alexnet takes images of 224 x 224" in capsys.readouterr().err
    assert listing(tmp_path) == before


def test_what_does_not_fit_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("weft.train.memory.free_bytes", lambda: 1 << 20)
    assert main(["train", "digits", "model=lenet5_classic"]) == 1
    assert "a step with 64 examples needs" in capsys.readouterr().err
    assert listing(tmp_path) == []


# --- advice -----------------------------------------------------------------------------------------------------------------------


def settings_of(verb: str) -> dict[str, Setting]:
    """The settings of a verb, or of a part of one such as `runs list`."""
    name, *rest = verb.split()
    try:
        VERBS[name]([*rest, "--help"])
    except Help as asked:
        return dict(asked.known)
    raise AssertionError(f"{verb} gives no help")


def texts(call: ast.Call) -> list[str]:
    """The texts of the arguments of a call; what is filled in later is a dot."""
    found = []
    for argument in call.args:
        parts = [n for n in ast.walk(argument) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "." for part in parts))
    return found


def errors_in(folder: str) -> list[tuple[str, list[str]]]:
    """Where, and the texts of, all errors that the files of a package raise."""
    found = []
    for path in sorted((PACKAGE / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("UserError", "RunError"):
                found.append((f"{path.name}:{node.lineno}", texts(node)))
    return found


OPTION = re.compile(r"(?<![\w{.=])([a-z][a-z_]*)=")
COMMAND = re.compile(r"weft ((?:runs|dataset|job|weights) [a-z]+|[a-z]+)\b([^.;,]*)")


EVERYWHERE = {"cfg", "server", "token"}  # options that are read before the verb is called


def test_advice_names_only_options_that_the_verb_has() -> None:
    checked = 0
    parts = (
        {
            f"{verb} {part}"
            for verb in ("runs", "dataset")
            for part in ("list", "show", "compare", "create", "info", "get")
        }
        | {f"dataset {part}" for part in ("change", "history", "doctor")}
        | {f"weights {part}" for part in ("list", "add", "show", "remove")}
    )
    for place, (where, *message) in [*errors_in("cli"), *errors_in("jobs")]:
        verb = where.removeprefix("weft").strip()
        text = " ".join(message)
        known = set(EVERYWHERE)
        if verb in VERBS or verb in parts:
            known |= set(settings_of(verb))
        elif verb in ("", "jobs"):
            known |= {*SETTINGS, *CLUSTER}
        for name in OPTION.findall(re.sub(COMMAND, "", text)):
            assert name in known, f"{place}: {name}= is no setting of {where}"
            checked += 1
        for command, rest in COMMAND.findall(text):
            if command in VERBS or command in parts:
                for name in OPTION.findall(rest):
                    assert name in {*EVERYWHERE, *settings_of(command)}, f"{place}: weft {command} has no {name}="
                    checked += 1
    assert checked >= 5


def test_advice_of_the_library_can_be_followed_too() -> None:
    """Texts of fit and of data that a command passes on: what they name is an argument there, and a setting here."""
    import inspect

    arguments = {
        *inspect.signature(fit).parameters,
        *inspect.signature(create).parameters,
        *optim.settings_of(optim.find("adam")),
    }
    for place, (_, *message) in errors_in("train"):
        for name in OPTION.findall(" ".join(message)):
            assert name in arguments | set(SETTINGS), f"train/{place}: {name}="


def test_help_names_only_commands_that_there_are() -> None:
    for verb in VERBS.values():
        for command, rest in COMMAND.findall(verb.__doc__ or ""):
            assert command.split()[0] in VERBS, command
            for name in OPTION.findall(rest):
                assert name in {"key", "cfg", *settings_of(command)}, f"weft {command} has no {name}="
