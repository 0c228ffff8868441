"""The memory timeline of a step agrees with the compiler's plan and with hand computations; other batch sizes and checkpointing are planned."""

import inspect
import itertools
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.cli import main
from weft.compiler.gpu.program import gpu_program
from weft.insight import batch_memory, checkpoint_savings, measured_memory, memory_timeline
from weft.insight.memory_options import batches_text, savings_text
from weft.insight.memory_values import KINDS, arena_values, live_bytes

X, Y = np.ones((32, 16), np.float32), np.arange(32) % 4


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.second(weft.tanh(self.first(x)))


def training_step(model: nn.Module):
    optimizer = optim.adam(model, rate=1e-3)

    def step(x, y):
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    return weft.jit(step)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4)
    )


def recurrent() -> nn.Module:
    class LastState(nn.Module):
        def __init__(self) -> None:
            self.lstm, self.top = nn.LSTM(4, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.top(self.lstm(x)[0][:, -1])

    return LastState()


CASES = {
    "blocks": (lambda: nn.Sequential(nn.Linear(16, 16), Block(16), Block(16), nn.Linear(16, 4)), X),
    "convolutions": (convolutional, np.ones((32, 1, 8, 8), np.float32)),
    "recurrent": (recurrent, np.ones((32, 5, 4), np.float32)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_that_of_the_plan(name):
    make, x = CASES[name]
    step = training_step(make())
    found = memory_timeline(step, x, Y)
    _, program = step.plan(x, Y)
    arena = [value for value in found.values if value.in_arena]
    shared = [sum(counts) for counts in zip(*live_bytes(arena, len(found.kernels)).values(), strict=True)]
    assert max(shared) + program.memory.kept == program.memory.needed
    assert found.allocated == step.memory(x, Y).total
    assert found.allocated - found.peak == found.arena - max(shared)


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_that_of_the_plan_for_a_gpu(name):
    make, x = CASES[name]
    traced, _ = training_step(make()).plan(x, Y)
    program = gpu_program(traced.graph, traced.all_updates, traced.options, traced.constants)
    live = live_bytes(arena_values(program), len(program.kernels))
    assert max(map(sum, zip(*live.values(), strict=True))) + program.memory.kept == program.memory.needed


def test_parameters_and_moments_are_told_apart():
    model = convolutional()
    found = memory_timeline(training_step(model), CASES["convolutions"][1], Y)
    sizes = {name: 4 * int(np.prod(t.shape)) for name, t in model.named_tensors().items()}
    trained = sum(4 * int(np.prod(p.shape)) for p in model.named_parameters().values())
    at_peak = found.at_peak()
    assert {v.name for v in found.values if v.kind == "parameters" and v.name} == set(sizes)
    assert sum(sizes.values()) <= at_peak["parameters"] <= sum(sizes.values()) + 64  # and the learning rate
    assert 2 * trained <= at_peak["optimizer state"] <= 2 * trained + 64  # two moments, and the count of steps


def test_activations_live_until_the_backward_pass_and_know_their_layer_and_line():
    found = memory_timeline(training_step(CASES["blocks"][0]()), X, Y)
    kept = [v for v in found.values if v.kind == "activations" and v.type == "float32[32, 64]"]
    assert {v.layer for v in kept} >= {"layers.1", "layers.2"}  # tanh of each block
    for value in kept:
        assert found.kernels[value.first].phase == "forward"
        assert found.kernels[value.last].phase == "backward"
    line = inspect.getsourcelines(Block.forward)[1] + 1
    assert {v.source.split(": ")[0] for v in kept} == {f"test_memory_timeline.py:{line}"}
    gradients = [v for v in found.values if v.kind == "gradients"]
    assert gradients
    assert all(v.phase == "backward" for v in gradients)


def test_inference_keeps_nothing():
    found = memory_timeline(CASES["blocks"][0](), X)
    at_peak = found.at_peak()
    assert at_peak["activations"] == at_peak["gradients"] == at_peak["optimizer state"] == 0
    assert at_peak["inputs and results"] == X.nbytes + 32 * 4 * 4


def test_what_is_alive_at_the_peak_adds_up_to_it():
    found = memory_timeline(training_step(CASES["blocks"][0]()), X, Y)
    assert sum(value.nbytes for value in found.alive(found.peak_kernel)) == found.peak == max(found.totals)
    assert found.largest(3) == sorted(found.values, key=lambda v: (-v.nbytes, v.first))[:3]


def test_planning_changes_no_state():
    model = CASES["blocks"][0]()
    before = {name: t.numpy().copy() for name, t in model.named_tensors().items()}
    memory_timeline(training_step(model), X, Y)
    checkpoint_savings(training_step(model), X, Y)
    for name, tensor in model.named_tensors().items():
        np.testing.assert_array_equal(tensor.numpy(), before[name])
    assert all("forward" not in vars(part) for part in model.modules())


def test_other_batch_sizes():
    step = training_step(CASES["blocks"][0]())
    found = batch_memory(step, X, Y)
    assert [one.batch for one in found] == [8, 16, 32, 64, 128]
    assert next(one for one in found if one.batch == 32).memory == step.memory(X, Y)
    assert all(a.total < b.total for a, b in itertools.pairwise(found))
    assert len({one.memory.state for one in found}) == 1
    assert len(batches_text(found).splitlines()) == 2 + 5
    with pytest.raises(weft.UserError, match="batch sizes of 1 or more are required, got 0"):
        batch_memory(step, X, Y, sizes=[0])
    with pytest.raises(weft.UserError, match="an argument with a batch axis is required"):
        batch_memory(lambda: weft.ones(3))


def test_checkpointing_repeated_blocks():
    model = nn.Sequential(nn.Linear(16, 16), *(Block(16) for _ in range(4)), nn.Linear(16, 4))
    x, y = np.ones((256, 16), np.float32), np.arange(256) % 4
    (found,) = checkpoint_savings(training_step(model), x, y)
    assert (found.block, found.count) == ("Block", 4)
    assert found.plain == training_step(model).memory(x, y).total
    assert found.saved > 0.25 * found.plain
    products = 4 * 2 * 256 * 16 * 64  # of the first layers: tanh needs them again, the second product is not needed
    assert products <= found.extra_flops <= 3 * products
    assert "Block" in savings_text([found])
    assert checkpoint_savings(training_step(nn.Linear(16, 4)), X, Y) == ()
    assert "nothing to checkpoint" in savings_text(())


def test_text_json_and_picture():
    found = memory_timeline(training_step(CASES["blocks"][0]()), X, Y)
    text = str(found)
    assert "at the peak, planned for cpu: kernel" in text
    assert "layers.1" in text
    assert all(kind in text for kind in KINDS)
    known = json.loads(found.to_json())
    assert known["peak"] == found.peak
    assert known["planned"] is True
    assert len(known["live"]["activations"]) == len(known["kernels"]) == len(found.kernels)
    picture = found.svg()
    root = ET.fromstring(picture)
    width = float(root.attrib["width"])
    assert all(0 <= float(x) <= width for x in re.findall(r'<rect x="(-?[\d.]+)"', picture))
    assert "prefers-color-scheme:dark" in picture
    assert "layers.1" in picture


def test_a_program_without_kernels():
    found = memory_timeline(lambda x: x, X)
    assert found.peak == found.allocated
    assert "no kernel runs" in str(found) or found.kernels
    ET.fromstring(found.svg())


def test_the_forecast_is_what_is_allocated():
    x = np.ones((512, 16), np.float32)

    def make():
        model = nn.Sequential(nn.Linear(16, 256), nn.Linear(256, 4))
        return weft.jit(lambda x: model(x)), (weft.asarray(x.copy()),)

    step, args = make()
    expected = memory_timeline(step, *args).allocated
    step(np.ones((1024, 16), np.float32))  # an arena that is large enough is there already
    found = measured_memory(make)
    assert "tracemalloc" in found.how
    assert found.allocated == pytest.approx(expected, rel=0.05)


def test_parameters_in_a_mapped_file_are_measured_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.weft"
    weft.save(path, nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 128)).eval(), weft.ones((2, 256)))
    assert main(["profile", "memory", str(path), "what=infer", "batch=8", "measure=yes", "json=yes"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured"]["allocated"] == pytest.approx(found["allocated"], rel=0.05)
