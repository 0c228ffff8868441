"""The sample that a run takes of the sweeps: the same for the same seed, and of every class something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sampling
from sampling import SLOW_FILES, is_left_out, mode, sampled, some

CASES = [(op, dtype, i) for op in ("add", "sin", "conv") for dtype in ("float32", "int8") for i in range(20)]
TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TESTS", "sample")


def classes(cases: list[tuple[str, str, int]]) -> set[tuple[str, str]]:
    return {(op, dtype) for op, dtype, _ in cases}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("how", ["sample", "fast"])
def test_every_class_is_there(share: float, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TESTS", how)
    found = sampled("ops", CASES, share=share, of=lambda case: case[:2])
    assert classes(found) == classes(CASES)
    wanted = share * len(CASES) * (sampling.FAST_SHARE if how == "fast" else sampling.SAMPLE_SHARE)
    assert len(found) == max(6, round(wanted))
    assert found == sorted(found, key=CASES.index)


def test_a_sample_depends_on_the_seed_and_the_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    first = sampled("ops", CASES, share=0.2)
    assert first == sampled("ops", CASES, share=0.2) != sampled("others", CASES, share=0.2)
    monkeypatch.setattr(sampling, "seed", lambda: 1)
    assert first != sampled("ops", CASES, share=0.2)


def test_all_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TESTS", "all")
    assert sampled("ops", CASES, share=0.0) == CASES
    assert not is_left_out(TESTS / "test_zoo.py")


def test_one_case_at_least_and_none_of_none() -> None:
    assert len(sampled("ops", CASES, share=0.0)) == 1
    assert sampled("ops", [], share=0.5) == []


@pytest.mark.parametrize(("how", "counts"), [("all", (50, 2)), ("sample", (3, 1)), ("fast", (2, 1))])
def test_random_trials(how: str, counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TESTS", how)
    assert (some(50), some(2)) == counts


def test_fast_leaves_out_slow_files_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_left_out(TESTS / "test_zoo.py")
    monkeypatch.setenv("WEFT_TESTS", "fast")
    assert is_left_out(TESTS / "test_zoo.py")
    assert not is_left_out(TESTS / "test_regressions.py")
    assert {name for name in SLOW_FILES if not (TESTS / f"{name}.py").exists()} == set()


def test_other_modes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TESTS", "some")
    with pytest.raises(ValueError, match="WEFT_TESTS must be one of all, sample, fast, got 'some'"):
        mode()


SWEEP = """
import pytest

@pytest.mark.sweep("op", share=0.0)
@pytest.mark.parametrize("dtype", range(5))
@pytest.mark.parametrize("op", ["add", "sin"])
def test_ops(op, dtype): pass

@pytest.mark.parametrize("number", range(5))
def test_others(number): pass

@pytest.mark.slow
def test_again(): pass
"""
REGRESSIONS = """
import pytest

@pytest.mark.parametrize("number", range(10))
def test_regressions(number): pass
"""


@pytest.mark.parametrize(("how", "passed"), [("sample", 17), ("fast", 13), ("all", 26)])
def test_marked_tests_are_sampled_and_others_are_not(how: str, passed: int, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = sweep\n          slow\n")
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "sampling.py").write_text((TESTS / "sampling.py").read_text())
    (tmp_path / "test_it.py").write_text(SWEEP)
    (tmp_path / "test_regressions.py").write_text(REGRESSIONS)
    environment = {**os.environ, "WEFT_TESTS": how, "PYTHONPATH": str(TESTS.parent), "WEFT_CACHE": str(tmp_path)}
    run = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(tmp_path)]
    told = subprocess.run(run, env=environment, cwd=tmp_path, capture_output=True, text=True).stdout
    assert f"{passed} passed" in told
    assert told.count("test_regressions[") == 10
    assert told.count("test_again") == (1 if how == "all" else 0)
    assert told.count("test_others[") == (1 if how == "fast" else 5)
    assert told.count("test_ops[add") == told.count("test_ops[sin") == (1 if how != "all" else 5)
