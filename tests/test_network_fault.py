"""Two machines (network namespaces with a cable between them) train together, and the cable is pulled. Needs root, iproute2 and MPICH."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import weft
from benchmarks.namespaces import TwoMachines, missing

STALL = 3.0
WEFT = [sys.executable, "-m", "weft"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "network namespaces")]


@pytest.fixture
def machines():
    with TwoMachines() as made:
        yield made


def settings(folder, name):
    return ["digits", "model=mlp", "batch=32", "micro_batches=4", f"runs={folder}", f"name={name}"]


def variables():
    return {
        **os.environ,
        "WEFT_THREADS": "1",
        "WEFT_STALL_SECONDS": str(STALL),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }


def epochs(folder):
    try:
        lines = (folder / "events.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return sum(json.loads(line)["type"] == "epoch" for line in lines)


def wait_until(condition, seconds):
    """How long it took, or an error."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it takes too long"
        time.sleep(0.05)
    return time.monotonic() - start


def test_a_cut_network_ends_both_sides_and_the_run_goes_on(machines, tmp_path):
    run, log = tmp_path / "classify" / "cut", tmp_path / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*machines.mpiexec(4), *WEFT, "train", *settings(tmp_path, "cut"), "epochs=15"], env=variables(), stdout=output, stderr=output
        )  # fmt: skip
        wait_until(lambda: epochs(run) >= 2 or process.poll() is not None, 120)
        sides = {side: machines.processes(side, "train") for side in ("a", "b")}
        assert {side: len(found) for side, found in sides.items()} == {"a": 2, "b": 2}, log.read_text()
        machines.pull_the_plug()
        for side in sides:
            wait_until(lambda side=side: not machines.processes(side, "train"), STALL + 10)
        machines.plug_in()  # mpiexec itself waits for the other machine
        process.kill()
        process.wait()
    said = log.read_text()
    assert "weft: [parallel] rank 2 has not answered for 3 seconds" in said, said
    assert "or the network to it is down." in said
    assert epochs(run) < 15
    finished([*WEFT, "resume", str(run), "parallel=data:2"])
    finished([*WEFT, "train", *settings(tmp_path, "whole"), "epochs=15"])
    assert equal(tmp_path, "cut", "whole")


def test_two_machines_give_the_bits_of_one_process_and_send_each_number_once(machines, tmp_path):
    """Through shared memory on each machine, and over the network between them."""
    sent = []
    for name, near in (("two", "0"), ("flat", "1")):
        before = machines.sent_bytes()
        finished([*machines.mpiexec(4), *WEFT, "train", *settings(tmp_path, name), "epochs=2"], WEFT_MACHINE_RANKS=near)
        sent.append(machines.sent_bytes() - before)
    finished([*WEFT, "train", *settings(tmp_path, "one"), "epochs=2"])
    assert equal(tmp_path, "two", "one")
    assert equal(tmp_path, "flat", "one")
    gradients = 4 * 50_610 * 80  # bytes of a step, and steps
    assert gradients < sent[0] < 1.2 * gradients
    assert 1.9 * gradients < sent[1] < 2.4 * gradients


def finished(command, **more):
    found = subprocess.run(command, env={**variables(), **more}, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr


def equal(folder, *names):
    first, second = (weft.io.load(folder / "classify" / name / "weights" / "last.safetensors") for name in names)
    return all(np.array_equal(first[name].numpy(), second[name].numpy()) for name in second)
