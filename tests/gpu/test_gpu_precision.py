"""Mixed precision on the device: training stays near float32, overflows skip their step, and nothing is widened on the quiet."""

import numpy as np
import pytest
from gpu_tools import NETWORKS, Trained

import test_precision as cases
import weft
from weft.testing import close, counted

NETS = {"mlp": lambda: cases.mlp(64, 48, 32, 10), "cnn": cases.cnn, "rnn": cases.rnn}


@pytest.mark.parametrize("name", NETS)
def test_training_comes_close_to_float32(name: str) -> None:
    cases.test_training_comes_close_to_float32(NETS[name])


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_come_close_to_float32(name: str) -> None:
    """bfloat16 keeps 8 bits: values are off by up to 0.4 %, a loss by about as much, and a little more with every step."""
    wide = np.array(Trained(name).steps(10))
    narrow = np.array(Trained(name, precision="bfloat16").steps(10))
    assert wide[-1] < wide[0]
    np.testing.assert_allclose(narrow, wide, rtol=0.04, atol=0.04)
    assert not np.array_equal(narrow, wide)
    counted()


@pytest.mark.parametrize("half", [weft.bfloat16, weft.float16], ids=lambda d: d.name)
def test_an_overflow_skips_the_step_and_halves_the_scale(half: weft.DType) -> None:
    cases.test_an_overflow_skips_the_step_and_halves_the_scale(half)


def test_small_gradients_survive_in_float16() -> None:
    cases.test_small_gradients_survive_in_float16()


def test_the_scale_grows_after_good_steps_in_a_row() -> None:
    cases.test_the_scale_grows_after_good_steps_in_a_row()


def test_products_in_16_bits_add_up_in_32() -> None:
    """4096 ones and a sum in 16 bits would stop growing at 2048 or 256."""
    x = np.ones((3, 4096), np.float32)
    for precision in ("float16", "bfloat16"):
        assert weft.jit(lambda a, b: a @ b.mT, precision=precision)(x, x).tolist() == [[4096.0] * 3] * 3
        found = weft.jit(lambda a: (a @ a.mT).astype("float32"))(x.astype(getattr(weft, precision).numpy))
        assert found.tolist() == [[4096.0] * 3] * 3
        counted(2)


def test_programs_of_two_precisions_are_two_programs() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, 7)).astype(np.float32), rng.normal(size=(7, 3)).astype(np.float32)
    wide, brain, half = (weft.jit(lambda x, w: x @ w, precision=p)(x, w).numpy() for p in (None, "bfloat16", "float16"))
    assert not np.array_equal(wide, brain)
    assert not np.array_equal(brain, half)
    close(brain, wide, weft.bfloat16)
    close(half, wide, weft.float16)
