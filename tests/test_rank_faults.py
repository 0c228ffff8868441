"""One of two ranks runs out of memory or of disk space in the middle of a training: both end with one message, and the run goes on exactly.

`benchmarks/faults.py` has more faults, and measures how long it takes until all ranks have ended.
"""

import re
import resource
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import nn, optim, parallel, train
from weft.errors import RunError
from weft.runtime import native

HIDDEN, BATCH = (
    8192,
    2560,
)  # activations of a rank: 40 MiB, more than malloc ever takes from memory that was freed; parameters: 2.3 MiB
MARGIN = 1 << 24


def network():
    weft.seed(3)
    return nn.Sequential(nn.Linear(64, HIDDEN, activation="relu"), nn.Linear(HIDDEN, 10))


def fitted(folder, on_step=None, **settings):
    """The weights after two epochs of two steps, with a checkpoint after each step."""
    model, rng = network(), np.random.default_rng(0)
    arrays = rng.normal(size=(2 * BATCH, 64)).astype(np.float32), rng.integers(0, 10, 2 * BATCH)
    with weft.knobs.set(device="cpu"):
        train.fit(
            model, arrays, epochs=2, batch=BATCH, optimizer=optim.sgd, rate=0.01, momentum=0.9, folder=folder,
            save_seconds=0.0, on_step=on_step, **settings,
        )  # fmt: skip
    return {name: t.numpy().copy() for name, t in model.named_tensors().items()}


def set_limit(limit, soft):
    resource.setrlimit(limit, (soft, resource.getrlimit(limit)[1]))


def run_out_of_memory():
    """From here on this process gets no more memory than it has, less that of its programs' arena."""
    for arena in native._arenas.values():
        arena.release()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    set_limit(resource.RLIMIT_AS, pages * resource.getpagesize() + MARGIN)


def run_out_of_disk():
    """From here on this process cannot write files as large as a checkpoint; short lines still fit."""
    set_limit(resource.RLIMIT_FSIZE, 1 << 16)


FAULTS = {"memory": run_out_of_memory, "disk": run_out_of_disk}


def with_fault(fault, rank, folder):
    """A training with a fault in a rank, in its second epoch. Each rank leaves a note on how it ended."""
    here = parallel.world().rank

    def on_step(now):
        if here == rank and (now.epoch, now.step) == (2, 1):
            FAULTS[fault]()

    try:
        weights = fitted(f"{folder}/run", on_step, parallel="data:2")
    except BaseException as error:
        Path(folder, f"rank{here}").write_text(f"{type(error).__name__}: {error}")
        raise
    finally:
        for limit in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
            set_limit(limit, resource.getrlimit(limit)[1])
    return weights


@pytest.fixture(scope="module")
def whole():
    """The weights of a training without faults, which one process gives, too."""
    return fitted(None, micro_batches=2)


def test_a_rank_that_writes_nothing_needs_no_disk(shared_pools, whole, tmp_path):
    for weights in shared_pools[2].run(with_fault, "disk", 1, str(tmp_path)):
        assert all(np.array_equal(weights[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    ("fault", "rank", "message"),
    [
        pytest.param(
            "memory",
            0,
            r"not enough memory for the \d+ MiB that live at one time in this program",
            marks=pytest.mark.slow,
        ),
        ("memory", 1, r"not enough memory for the \d+ MiB that live at one time in this program"),
        ("disk", 0, r"\.safetensors cannot be written: File too large"),
    ],
)
def test_a_fault_of_one_rank_ends_both_and_the_run_goes_on_exactly(shared_pools, whole, tmp_path, fault, rank, message):
    with pytest.raises(RunError, match=rf"rank {rank} failed: .*{message}"):
        shared_pools[2].run(with_fault, fault, rank, str(tmp_path))
    own, other = ((tmp_path / f"rank{r}").read_text() for r in (rank, 1 - rank))
    assert re.search(message, own)
    assert re.search(rf"\[parallel\] rank {rank} failed: .*{message}", other)
    found = [path.name for path in (tmp_path / "run" / "state").iterdir() if not path.name.startswith(".lock")]
    assert sorted(found) == ["last.safetensors", "previous.safetensors"]  # no part of a file is left
    weights = fitted(tmp_path / "run", resume=True)
    assert all(np.array_equal(weights[name], whole[name]) for name in whole)
