"""Every family of the zoo on the device `cuda`: a training step becomes launches, and some of them are run on a fake GPU."""

import numpy as np
import pytest

import weft
from weft.testing import counted

pytest.importorskip("triton")
import fake_gpu
from test_zoo import SMALL, loss_of, made

RUN = ("mlp", "vit", "char_lstm", "gpt")
LONGEST = 400_000  # characters of a kernel: longer ones take a compiler minutes


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    found = fake_gpu.install(monkeypatch)
    with weft.knobs.set(cache=str(tmp_path / "cache")):
        yield found


def step_of(model):
    """A training step."""
    parameters = list(model.parameters())

    @weft.jit
    def step(x):
        loss = loss_of(model, x)
        for p, g in zip(parameters, weft.gradients(loss, parameters), strict=True):
            p.assign(p - 0.01 * g)
        return loss

    return step


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("name", SMALL)
def test_a_step_of_every_family_becomes_launches(name, gpu, monkeypatch):
    sources = []

    def note(written, capability):
        sources.extend(written)
        return fake_gpu.cast(written, capability)

    monkeypatch.setattr("weft.compiler.gpu.compile_pool.compile_kernels", note)
    monkeypatch.setattr(gpu, "load", lambda *code: None)
    with weft.knobs.set(device="cuda", compile_after=1000):  # only the step is compiled
        model, x = made(name)
        step = step_of(model)._for((x,), {})
    assert len(list(step.executable.commands.flat)) >= len(sources) > 0
    assert max(len(source.body) for source in sources) < LONGEST
    counted(len(sources))


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("name", RUN)
def test_a_step_is_that_of_the_cpu(name, gpu):
    results = {}
    for device in ("cpu", "cuda"):
        with weft.knobs.set(device=device):
            model, x = made(name)
            step = step_of(model)
            losses = [step(x).item() for _ in range(2)]
            results[device] = losses, {path: p.numpy() for path, p in model.named_parameters().items()}
    (here, expected), (there, found) = results["cpu"], results["cuda"]
    np.testing.assert_allclose(there, here, rtol=1e-4)
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-3, atol=1e-5, err_msg=path)
        counted()
