"""Training on the device `cuda`, with `fit` and from the command line, on a GPU made of the host's memory."""

import json
from math import inf
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import nn, train, zoo
from weft.cli import main, measure
from weft.errors import RunError
from weft.train import memory, watch

pytest.importorskip("triton")
import fake_gpu

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(40, 6)).astype(np.float32), RNG.integers(0, 3, 40)
IMAGES = RNG.normal(size=(18, 2, 6, 6)).astype(np.float32), RNG.integers(0, 3, 18)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(watch, "NEWS_SECONDS", inf)  # news look at values, and kernels are slow here
    found = fake_gpu.install(monkeypatch)
    with weft.knobs.set(cache=str(tmp_path / "cache")):
        yield found


@pytest.fixture
def on_cuda(gpu):
    with weft.knobs.set(device="cuda"):
        yield gpu


def perceptron():
    weft.seed(1)
    return zoo.mlp(6, 8, 3, dropout=0.2)


def conv_net():
    weft.seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(None, 3)
    )


def test_the_numbers_of_an_epoch_are_those_of_the_cpu(gpu):
    rows = {}
    for device in ("cpu", "cuda"):
        with weft.knobs.set(device=device):
            rows[device] = train.fit(perceptron(), POINTS, POINTS, batch=8, epochs=2, rate=1e-2).history
    for here, there in zip(rows["cpu"], rows["cuda"], strict=True):
        for name in ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "rate"):
            assert there[name] == pytest.approx(here[name], rel=1e-4), name


def test_no_step_waits_for_the_gpu(on_cuda, monkeypatch):
    downloads, waits, seen = [], [], []
    monkeypatch.setattr(on_cuda, "download", _noted(downloads, on_cuda.download))
    monkeypatch.setattr(on_cuda, "wait_for", _noted(waits, on_cuda.wait_for))
    train.fit(perceptron(), POINTS, batch=4, epochs=3, on_step=lambda now: seen.append((now.epoch, len(downloads))))
    for epoch in (2, 3):
        assert len({count for e, count in seen if e == epoch}) == 1, "a value was looked at between steps"
    assert waits, "the host ran ahead as far as it liked"


def _noted(log, function):
    def call(*args):
        log.append(args)
        return function(*args)

    return call


def test_a_loss_that_is_not_a_number_is_found(on_cuda):
    bad = np.full_like(POINTS[0], np.nan), POINTS[1]
    with pytest.raises(RunError, match="the loss was nan or infinite at step 1;"):
        train.fit(perceptron(), bad, batch=8, epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize(("build", "data"), [(perceptron, POINTS), (conv_net, IMAGES)])
def test_a_run_that_was_killed_ends_with_the_same_bits(build, data, on_cuda, tmp_path):
    how = {"batch": 6, "epochs": 2, "rate": 1e-2}
    whole = build()
    train.fit(whole, data, **how)

    def kill(now):
        if (now.epoch, now.step) == (2, 2):
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        train.fit(build(), data, folder=tmp_path / "run", save_seconds=0, on_step=kill, **how)
    rest = build()
    weft.random.normal((5,))  # a fresh process stands elsewhere in its random stream
    train.fit(rest, data, folder=tmp_path / "run", resume=True, **how)
    for (name, expected), found in zip(whole.named_tensors().items(), rest.named_tensors().values(), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy(), err_msg=name)


# --- memory -------------------------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_on_the_gpu_is_said_before(monkeypatch, tmp_path):
    fake_gpu.install(monkeypatch, total=4 << 20)
    with weft.knobs.set(device="cuda", cache=str(tmp_path)):
        many = np.zeros((4096, 64), np.float32), np.zeros(4096, np.int64)
        with pytest.raises(RunError, match=r"examples needs .* are free on cuda\. batch=\d+ accumulate=\d+ would fit"):
            train.fit(zoo.mlp(64, 32, 3), many, batch=4096)
        assert 1 <= train.find_batch(zoo.mlp(64, 1024, 3), many) < 128


def test_memory_that_programs_hand_on_is_free(on_cuda):
    double = weft.jit(lambda x: weft.softmax(x @ x.T) @ x)
    double(np.ones((64, 8), np.float32))
    device = weft.device("cuda")
    assert memory.free_bytes() == device.free_memory() == on_cuda.memory()[0] + device.context.spare
    assert device.context.spare > 0
    assert weft.device("cpu").free_memory() is None


# --- the command line -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(gpu, tmp_path, monkeypatch, capsys):
    """A run that was begun on a GPU."""
    monkeypatch.chdir(tmp_path)
    images = RNG.integers(0, 255, (40, 1, 3, 3)).astype(np.uint8)
    np.savez("dots.npz", x=images, y=POINTS[1])
    assert (
        main(["train", "dots.npz", "model=logistic_regression", "device=cuda:0", "epochs=1", "batch=8", "name=dots"])
        == 0
    )
    assert gpu.launched
    capsys.readouterr()
    return "runs/classify/dots"


def without_gpu(monkeypatch):
    from weft.runtime.cuda import device as cuda_device
    from weft.runtime.cuda import driver

    monkeypatch.setattr(cuda_device, "_found", [])
    monkeypatch.setattr(driver, "bindings", lambda: pytest.fail("somebody looked for a GPU"))


def test_a_run_names_its_device(run):
    assert 'device: "cuda"' in Path(run, "args.yaml").read_text().splitlines()
    assert json.loads(Path(run, "env.json").read_text())["device"].startswith("fake, ")
    assert weft.knobs.device == "cpu"


def test_a_trained_network_needs_no_gpu(run, monkeypatch, tmp_path, capsys):
    from PIL import Image

    Image.new("L", (3, 3)).save("dot.png")
    assert main(["predict", run, "dot.png", "device=cuda", "json=true"]) == 0
    there = json.loads(capsys.readouterr().out)
    without_gpu(monkeypatch)
    assert main(["predict", run, "dot.png", "json=true"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert here["classes"] == pytest.approx(there["classes"], rel=1e-5)
    assert main(["eval", run]) == 0


def test_a_run_goes_on_where_it_was_or_elsewhere(run, monkeypatch, capsys):
    assert main(["resume", run, "epochs=2"]) == 0
    assert "results are not bitwise the same" not in capsys.readouterr().out
    assert main(["resume", run, "epochs=3", "device=cpu"]) == 0
    assert "it was on cuda before: on cpu it continues" in capsys.readouterr().out
    assert 'device: "cpu"' in Path(run, "args.yaml").read_text()


def test_a_missing_gpu_is_one_sentence(run, monkeypatch, capsys):
    from weft.runtime.cuda import device as cuda_device

    monkeypatch.setattr(cuda_device, "_found", [])
    monkeypatch.setattr(cuda_device, "gpu_count", lambda: 0)
    assert main(["resume", run]) == 2
    assert "the run was on cuda. no NVIDIA GPU is visible" in (said := capsys.readouterr().err)
    assert said.strip().endswith("device=cpu continues on the CPU.")
    assert said.count("\n") == 1
    for words in (["train", "digits", "device=cuda"], ["bench", "lenet", "device=cuda"], ["eval", run, "device=cuda"]):
        assert main(words) == 2
        assert capsys.readouterr().err.startswith("weft: [cuda] no NVIDIA GPU is visible")
    assert main(["train", "digits", "device=gpu"]) == 2
    assert "device=gpu cannot be used: it must be one of cpu, cuda, null, reference" in capsys.readouterr().err
    assert main(["devices"]) == 0
    assert "cuda: none here; no NVIDIA GPU is visible" in capsys.readouterr().out


def test_devices_and_measurements_name_the_gpu(gpu, monkeypatch, capsys):
    assert main(["devices"]) == 0
    assert "\ncuda: fake, 0.2 of 0.2 GiB free, compute capability 9.0, driver for CUDA 13.0" in capsys.readouterr().out
    assert main(["devices", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["gpus"]) == ["cuda"]
    x = weft.asarray(np.ones((5, 3), np.float32), device="cuda")
    monkeypatch.setattr(measure, "_step", lambda *_: (weft.jit(lambda x: weft.softmax(x @ x.T)), (x,)))
    assert main(["bench", "lenet", "batch=5", "what=infer", "device=cuda", "seconds=0"]) == 0
    assert "classes, float32, fake, " in capsys.readouterr().out
    assert main(["explain", "lenet", "what=infer", "device=cuda"]) == 0
    assert "TB/s" in (said := capsys.readouterr().out)
    assert "bounds it" in said
