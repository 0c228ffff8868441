"""Memory of the device: none is lost over a thousand steps, and running out of it is an error one can go on after."""

import gc
import re
from collections.abc import Callable

import numpy as np
import pytest
from gpu_tools import DEVICE, IS_GPU, Trained, device_bytes, host_bytes, wait

import weft

pytestmark = pytest.mark.alone
STEPS = 1000
HOST_MAY_GROW = 48 << 20  # allocators and caches of Python; a leak of 64 KiB a step would show


def in_use() -> int:
    wait()
    gc.collect()
    return device_bytes()


def check_steps(step: Callable[[], object]) -> None:
    """A thousand steps leave as much in use as a hundred did, and not much more on the host."""
    for _ in range(100):
        step()
    before, host = in_use(), host_bytes()
    for _ in range(STEPS):
        step()
    if IS_GPU:
        assert before > 0, "the pool that is looked at is not the one in use"
        assert in_use() == before
    assert host_bytes() - host < HOST_MAY_GROW


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_training_steps(name: str) -> None:
    made = Trained(name)
    check_steps(lambda: made.step(made.x, made.y))


def test_steps_that_take_arrays_and_give_numbers() -> None:
    made = Trained("mlp")
    x, y = made.x.numpy(), made.y.numpy()
    check_steps(lambda: made.step(x, y).item())


def test_large_arguments_from_the_host() -> None:
    """Those are copied beside the work, through rooms of their own."""
    array = np.ones((512, 1024), np.float32)
    run = weft.jit(lambda x: x.sum(axis=0))
    check_steps(lambda: run(array))


def test_computing_without_jit() -> None:
    x = weft.asarray(np.ones((64, 64), np.float32))
    check_steps(lambda: (weft.tanh(x @ x) + 1.0).sum().item())


def test_what_is_dropped_is_given_back() -> None:
    weft.asarray(np.ones((1 << 20,), np.float32)).realize()  # the device keeps a little from its first use on
    before = in_use()
    kept = [weft.asarray(np.ones((1 << 20,), np.float32)) for _ in range(64)]
    held = in_use() - before
    assert held >= 256 << 20
    del kept
    if IS_GPU:
        assert in_use() == before
    else:
        assert in_use() - before < held // 4


def test_a_program_that_is_dropped_gives_its_memory_back() -> None:
    """What comes again and again on the way is compiled sooner or later, and keeps small rooms: far less than a network takes."""

    def use() -> int:
        made = Trained("residual", "bfloat16")
        made.steps(3)
        return in_use()

    used = []
    for _ in range(12):
        while_it_lived = use()
        used.append(in_use())
    own = while_it_lived - used[-1]
    if IS_GPU:
        assert own > 0
        assert used[-1] - used[-6] < own // 10, (used, own)  # five networks lie between them
    else:
        assert used[-1] - used[-6] < HOST_MAY_GROW, used


# --- no room -----------------------------------------------------------------------------------------------------------------------


def works() -> bool:
    made = Trained("mlp")
    return made.steps(2)[1] < made.steps(1)[0] * 10


HUGE = (1 << 20, 1 << 22)  # 16 TiB of float32: nobody has it


def test_a_tensor_that_is_too_large() -> None:
    with pytest.raises(weft.RunError, match="memory|room") as caught:
        (weft.zeros(HUGE) + 1.0).numpy()
    assert re.search(r"GB|GiB|TiB|float32\[1048576, 4194304\]", str(caught.value))
    assert works()


def test_a_program_that_is_too_large() -> None:
    """The message names what takes most, and says what one can do."""
    x = weft.zeros((1 << 20, 8))
    run = weft.jit(lambda x: weft.sort(weft.tanh(x @ weft.ones((8, 1 << 22))), axis=1)[:, ::2].sum(axis=0))
    with pytest.raises(weft.RunError, match="memory|room") as caught:
        run(x).numpy()
    assert re.search("batch|checkpoint|accumulat", str(caught.value))
    assert works()
    with pytest.raises(weft.RunError):  # and again: nothing was lost
        run(x).numpy()
    assert works()


def fill() -> None:
    """Tensor after tensor until there is no room; everything that was there is still right."""
    kept = []
    with pytest.raises(weft.RunError, match="memory|room"):
        for i in range(10_000):
            kept.append((weft.full((1 << 30,), float(i % 3), device=DEVICE) * 2.0).realize())
            wait()
    assert len(kept) > 2
    assert [t[:3].tolist() for t in kept[:3]] == [[0.0] * 3, [2.0] * 3, [4.0] * 3]


@pytest.mark.skipif(not IS_GPU, reason="the memory of the host is not to be filled")
def test_filled_to_the_brim() -> None:
    """All room comes back: as much is in use after the second time as after the first, which compiled what is needed."""
    fill()
    before = in_use()
    fill()
    assert in_use() == before
    assert works()
