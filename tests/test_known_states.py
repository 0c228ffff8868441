"""What a compiled function remembers of captured tensors between calls: any change is seen, whoever made it, and also after a failure."""

from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.testing import counted
from weft.tracing.state import KnownStates, StateTensor


def tensors(count: int) -> list[weft.Tensor]:
    return [weft.asarray(np.full(3, float(i), np.float32)).realize() for i in range(count)]


CHANGES: dict[str, Any] = {
    "assigned": lambda t: t.assign(t + 1.0),
    "a part of it": lambda t: t.assign(t.at[1].set(50.0)),
    "another dtype and back": lambda t: t.assign((t.astype("float64") * 2.0).astype("float32")),
    "by another program": lambda t: weft.jit(lambda: t.assign(t * 3.0))(),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("which", [0, 7, 19])
def test_a_change_between_calls_is_seen(name: str, which: int) -> None:
    captured = tensors(20)
    total = weft.jit(lambda x: sum(captured, x))
    x = weft.asarray(np.zeros(3, np.float32))
    for change in (False, True, False, True):
        if change:
            CHANGES[name](captured[which])
        np.testing.assert_allclose(total(x).numpy(), sum(t.numpy() for t in captured), rtol=1e-6)
        counted()


def test_a_program_that_writes_some_and_reads_others() -> None:
    read, written = tensors(6), tensors(3)

    @weft.jit
    def step(x: Any) -> Any:
        for t in written:
            t.assign(t + sum(read, x))
        return sum(written)

    x, expected = weft.ones(3), [t.numpy() for t in written]
    for number in range(6):
        if number == 2:
            read[4].assign(read[4] * 10.0)
        if number == 4:
            written[1].assign(written[1] * 0.0)
            expected[1] = expected[1] * 0.0
        added = 1.0 + sum(t.numpy() for t in read)
        expected = [e + added for e in expected]
        np.testing.assert_allclose(step(x).numpy(), sum(expected), rtol=1e-6)
        counted()


def test_a_replaced_parameter_is_seen() -> None:
    layer = nn.Linear(3, 2)
    used = weft.jit(lambda x: layer(x))
    x = weft.ones((1, 3))
    for value in (1.0, 2.0, 2.0, 3.0):
        layer.weight = nn.parameter(layer.weight.shape, "zeros")
        layer.weight.assign(layer.weight + value)
        np.testing.assert_allclose(used(x).numpy(), 3.0 * value + layer.bias.numpy()[None], rtol=1e-6)


def test_what_did_not_hold_must_be_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails half way has new addresses of some: they count only after all have been looked at."""
    captured = tensors(2)
    total = weft.jit(lambda x: sum(captured, x))
    total(weft.ones(3))
    [program] = total.programs.latest.values()
    known = KnownStates(program.states)
    assert not known.holds()
    known.update()
    assert known.holds()
    assert known.addresses == [state.address for state in program.states]
    old, value = captured[0]._node, captured[0].numpy()
    captured[0].assign(captured[0] * 2.0)
    captured[0].realize()
    assert not known.holds()
    captured[0]._name(old)  # as before, but nobody has looked
    assert not known.holds()

    def fails(self: Any, home: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        captured[1].assign(captured[1] + 5.0)
        patched.setattr(StateTensor, "refresh", fails)
        with pytest.raises(MemoryError):
            total(weft.ones(3))
    np.testing.assert_allclose(total(weft.ones(3)).numpy(), 1.0 + value + captured[1].numpy(), rtol=1e-6)


def test_what_was_prepared_of_a_weight_is_prepared_again() -> None:
    """A step writes to the memory of the weight, so its address stays: its version tells."""
    weight = weft.asarray(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)).realize()
    used, step = weft.jit(lambda x: x @ weight), weft.jit(lambda: weight.assign(weight * 2.0))
    x = np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32)
    for _ in range(5):
        np.testing.assert_allclose(used(x).numpy(), x @ weight.numpy(), rtol=1e-4, atol=1e-4)
        step()
        counted()
