"""One network of each family of the zoo at its full size: it infers as on the CPU, and its training steps go on in 16 bits."""

from typing import Any

import numpy as np
import pytest
from gpu_tools import floats

import weft
from test_zoo import PUBLISHED
from weft import optim, zoo

FAMILIES = (
    "lenet_300_100", "lenet5", "small_cnn", "alexnet", "vgg16_bn", "googlenet", "inception_v3", "inception_resnet_v2", "resnet50",
    "resnet110", "densenet121", "mobilenet_v1", "mobilenet_v2", "efficientnet_b0", "convnext_tiny", "unet", "gpt2", "vit_small",
)  # fmt: skip
SIZES = {
    name: (settings, shape) for name, settings, shape, *_ in reversed(PUBLISHED)
}  # the plain ones come first there


def made(name: str) -> tuple[Any, np.ndarray]:
    """The network and two examples, the same on every device."""
    settings, (_, *shape) = SIZES[name]
    weft.seed(7)
    model = zoo.find(name)(**settings)
    x = floats(2, *shape) if name != "gpt2" else np.random.default_rng(3).integers(0, 50_000, (2, *shape))
    model.eval()(x)  # makes what has no sizes yet; nothing is computed
    return model.train(), x


def inferred(name: str) -> np.ndarray:
    model, x = made(name)
    found: np.ndarray = weft.jit(model.eval())(x).numpy()
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_inference_is_that_of_the_cpu(name: str) -> None:
    here = inferred(name)
    with weft.knobs.set(device="cpu"):
        there = inferred(name)
    np.testing.assert_allclose(here, there, rtol=0, atol=1e-3 * np.abs(there).max())


@pytest.mark.parametrize("name", FAMILIES)
def test_training_in_16_bits(name: str) -> None:
    model, x = made(name)
    optimizer = optim.sgd(model, 1e-4)

    @weft.jit(precision="bfloat16")
    def step(x: weft.Tensor) -> weft.Tensor:
        loss = ((model(x) - 1) ** 2).mean()  # not towards 0: some networks begin there
        optimizer.minimize(loss)
        return loss

    losses = [step(x).item() for _ in range(4)]
    assert np.isfinite(losses).all()
    assert len(set(losses)) > 1  # it moves
