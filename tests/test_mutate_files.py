"""Damaged files of every kind: right data or an error of weft that names the file, and a process that lives on."""

import multiprocessing
import os
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import mutate_files
from mutate_cases import CASES
from mutate_files import Mutation, Outcome, Prepared, find_case, mutate, sweep
from sampling import some
from weft.errors import RunError
from weft.testing import counted

FILES = sum(len(find_case(name).files) for name in CASES)
COUNT = FILES + some(250, 0.1)  # every file once, then in turn


def test_a_few_hundred_mutations() -> None:
    found = []
    for outcome in sweep(seed=0, count=COUNT):
        found.append(outcome)
        counted()
    assert [outcome for outcome in found if not outcome.good] == []
    assert len(found) == COUNT
    assert {outcome.mutation.case for outcome in found} == set(CASES)
    assert {outcome.what for outcome in found} == {"right", "refused"}


def test_one_reader_in_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of weights import neither the compiler nor the packages for images."""
    assert mutate_files.main(["--reader", "hdf5", "--reader", "keras", "--count", "60", "--jobs", "2"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    found = re.fullmatch(
        r"mutations: 60 \(seed 0\); (.*); slowest (\S+) CPU s \(.*\); largest allocation (\S+) bytes \(.*\)", line
    )
    assert found is not None, line
    assert set(re.findall("[a-z]+", found[1])) == {"right", "refused"}
    assert 0 < float(found[2]) < mutate_files.SECONDS
    assert 10_000 < int(found[3].replace(",", "")) < 10_000_000
    with pytest.raises(SystemExit):
        mutate_files.main(["--reader", "nothing", "--count", "1"])
    assert "there is no reader 'nothing', there are" in capsys.readouterr().err


def test_mutations_follow_from_the_seed_and_change_something() -> None:
    content = bytes(range(256)) * 20
    first, again = ([mutate(content, random.Random(seed)) for seed in range(50)] for _ in range(2))
    assert first == again
    assert sum(damaged != content for damaged in first) > 45
    assert len(set(first)) > 40


def _unnamed(folder: Path) -> None:
    raise RunError("load", "something is damaged.")


def test_findings_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the harness itself: readers that do what they must not are found out."""
    prepared = Prepared("tensors", tmp_path)
    mutation = Mutation("tensors", "w.safetensors", 0)
    readers = {"wrong data": lambda folder: "other", "not named": _unnamed, "another error": lambda folder: 1 // 0}
    for what, read in readers.items():
        monkeypatch.setattr(prepared, "case", prepared.case._replace(read=read))
        assert prepared.tried(mutation, 0).what == what


def _dies(seed: int, batch: list[Mutation], pipe: Any) -> None:
    """A worker that a damaged file kills at the second of its mutations."""
    for number, mutation in enumerate(batch):
        pipe.send(mutation)
        if number == 1:
            os.kill(os.getpid(), signal.SIGBUS)
        pipe.send(Outcome(mutation, "right"))
    pipe.send(None)


def test_a_process_that_dies_is_a_finding_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate_files, "_work", _dies)
    batch = [Mutation("tensors", "w.safetensors", number) for number in range(5)]
    found = list(mutate_files._batch(0, batch, multiprocessing.get_context("spawn")))
    assert [outcome.mutation for outcome in found] == batch
    assert [outcome.what for outcome in found] == ["right", "crash", "right", "crash", "right"]
    assert found[1].detail == f"exit code {-signal.SIGBUS}"
