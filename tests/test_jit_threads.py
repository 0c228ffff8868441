"""Checks that `weft.jit` keeps its promises in many threads and many processes."""

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from jit_tools import floats


def in_threads(work: Any, count: int) -> list[Any]:
    """What `work(i)` gave in threads that run at the same time."""
    found: list[Any] = [None] * count

    def one(i: int) -> None:
        try:
            found[i] = work(i)
        except BaseException as error:
            found[i] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    for f in found:
        if isinstance(f, BaseException):
            raise f
    return found


def test_two_threads_share_one_function() -> None:
    f = weft.jit(lambda x: (weft.tanh(x) @ x.mT).sum(axis=1))
    inputs = [floats(20, 20, seed=i) for i in range(4)]
    expected = [f(x).numpy().copy() for x in inputs]
    fresh = weft.jit(f.function)

    def work(i: int) -> bool:
        return all(np.array_equal(fresh(inputs[i]).numpy(), expected[i]) for _ in range(20))

    assert in_threads(work, 4) == [True] * 4


def test_two_threads_count_together() -> None:
    total = weft.asarray(0.0)

    @weft.jit
    def add(x: Any) -> None:
        total.assign(total + x)

    in_threads(lambda i: [add(1.0) for _ in range(25)], 4)
    assert total.item() == 100.0


def test_programs_with_arenas_of_many_sizes_run_in_many_threads() -> None:
    """One program's larger scratch memory must not take away that of another that is running."""

    def work(i: int) -> bool:
        n = 8 * 3**i
        f = weft.jit(lambda x: weft.softmax(weft.softmax(x @ x) @ x) @ x)
        x = floats(n, n, seed=i)
        first = f(x).numpy().copy()
        return all(np.array_equal(f(x).numpy(), first) for _ in range(30 if i < 3 else 3))

    assert in_threads(work, 5) == [True] * 5


SCRIPT = """
import sys, weft, numpy as np
x = np.arange(12.0, dtype="float32").reshape(3, 4) / 7
w = weft.parameter(np.ones((4, 2), "float32"))
@weft.jit
def step(x):
    loss = (weft.tanh(x @ w) ** 2).mean()
    [g] = weft.gradients(loss, [w])
    w.assign(w - 0.1 * g)
    return loss
for _ in range(3):
    loss = step(x)
print(loss.numpy().tobytes().hex(), w.numpy().tobytes().hex())
"""


def run_script(folder: Path, **settings: str) -> tuple[str, str]:
    env = {
        **os.environ,
        "WEFT_CACHE": str(folder),
        "WEFT_DEBUG": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(weft.__file__).parent.parent), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**env, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@dataclass(frozen=True)
class ColdRun:
    """A process that found an empty cache: its results, and the cache it left, which tests copy and never change."""

    said: str
    debug: str
    cache: Path


@pytest.fixture(scope="module")
def cold_run(tmp_path_factory: pytest.TempPathFactory) -> ColdRun:
    folder = tmp_path_factory.mktemp("cold")
    return ColdRun(*run_script(folder), folder)


def test_a_second_process_starts_warm(cold_run: ColdRun, tmp_path: Path) -> None:
    assert "kernels in" in cold_run.debug
    shutil.copytree(cold_run.cache, tmp_path, dirs_exist_ok=True)
    names = {p.name for p in tmp_path.iterdir()}
    assert names
    warm, said = run_script(tmp_path)
    assert warm == cold_run.said
    assert "from the disk" in said
    assert "kernels in" not in said
    assert {p.name for p in tmp_path.iterdir()} == names


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "swap"])
def test_damaged_files_are_made_again(cold_run: ColdRun, tmp_path: Path, damage: str) -> None:
    shutil.copytree(cold_run.cache, tmp_path, dirs_exist_ok=True)
    files = sorted(tmp_path.iterdir())
    contents = [f.read_bytes() for f in files]
    for i, (file, content) in enumerate(zip(files, contents, strict=True)):
        half = len(content) // 2
        file.write_bytes({
            "cut": content[:half],
            "flip": content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :],
            "empty": b"",
            "swap": contents[i - 1] if len(contents) > 1 else content[::-1],
        }[damage])  # fmt: skip
    again, said = run_script(tmp_path)
    assert again == cold_run.said
    assert "from the disk" not in said
    assert [f.read_bytes() for f in files] == contents


def test_without_a_cache(cold_run: ColdRun, tmp_path: Path) -> None:
    assert run_script(tmp_path, WEFT_CACHE="off")[0] == cold_run.said
