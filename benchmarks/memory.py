"""Is the forecast of memory right? Training steps of four networks: the forecast made from shapes and plans, and what was really allocated.

python benchmarks/memory.py [limit of the error in per cent]

Each measurement has a process of its own; a first one fills the cache of compiled code, so that compiling does not count.
- forecast: `weft.train.forecast` gives the bytes of the parameters and of the optimizer's state from shapes; `jit(step).memory` plans
  the step. Nothing is run.
- allocated: the bytes of all NumPy arrays that the process holds after two steps (tracemalloc); on a GPU, the bytes in use in the pool.
- resident: the growth of the process' resident memory from before the network was made to after two steps. It also has the code
  and the graph of the program, and Python's objects: more than the forecast, by 5 to 40 MB.

The script fails if forecast and allocated differ by more than the limit, 5 % unless it is given.
"""

import json
import subprocess
import sys
from typing import Any

import weft
from weft.insight.memory_measure import measured_memory, resident_bytes
from weft.jobs.profiles.subject import ProfileSubject, find_subject
from weft.train.forecast import forecast

LIMIT = 5.0  # per cent
MOMENTUM = 1.0  # bytes of state for each byte of a parameter: SGD with momentum
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "LeNet-5, 28x28": ("lenet5", {}, 1024),
    "ResNet-18, 32x32": ("resnet18", {"size": (32, 32)}, 128),
    "LSTM, length 128": ("char_lstm", {}, 64),
    "GPT, 6 blocks of 384, length 128": ("gpt", {}, 4),
}


def main(limit: float) -> None:
    print("| network | batch | forecast, MB | allocated, MB | error | resident growth, MB |\n" + "|---" * 6 + "|")
    errors = []
    for title, (_, _, batch) in CASES.items():
        alone("resident", title)  # compiled code is cached now
        resident, counted = alone("resident", title), alone("allocated", title)
        expected, allocated = counted["forecast"], counted["allocated"]
        errors.append(100.0 * (expected / allocated - 1.0))
        print(
            f"| {title} | {batch} | {expected / 1e6:.2f} | {allocated / 1e6:.2f} | {errors[-1]:+.2f} % | {resident['resident'] / 1e6:.1f} |",
            flush=True,
        )
    worst = max(map(abs, errors))
    print(f"\nlargest error: {worst:.2f} %, on {weft.device()}")
    if worst > limit:
        sys.exit(f"the error must be at most {limit} %")


def alone(what: str, title: str) -> dict[str, float]:
    """A measurement in a process of its own."""
    command = [sys.executable, __file__, "--alone", what, title]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(what: str, title: str) -> dict[str, float]:
    name, settings, batch = CASES[title]
    subject = find_subject(name, **settings)
    if what == "allocated":
        expected = forecast_bytes(subject, batch)
        return {"forecast": expected, "allocated": measured_memory(lambda: subject.step(batch, "train")).allocated}
    weft.jit(lambda x: x + 1.0)(weft.ones(8)).numpy()  # libraries are loaded
    before = resident_bytes() or 0
    step, args = subject.step(batch, "train")
    results = [step(*args) for _ in range(2)]
    grown = (resident_bytes() or 0) - before
    return {"resident": grown, "loss": results[-1].item()}


def forecast_bytes(subject: ProfileSubject, batch: int) -> float:
    """Parameters and state of the optimizer from shapes, and the planned step."""
    kept = forecast(subject.make, lambda model: model(*map(weft.asarray, subject.inputs(1))), MOMENTUM)
    step, args = subject.step(batch, "train")
    planned = step.memory(*args)
    return kept.network + kept.optimizer + planned.work + planned.arguments + planned.results


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        print(json.dumps(measure(*sys.argv[2:])))
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else LIMIT)
