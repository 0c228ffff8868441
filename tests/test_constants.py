"""What a compiled function prepares of values that rarely change is kept, and made again when they change after all."""

import numpy as np
import pytest

import weft


def network(filters: weft.Tensor, matrix: weft.Tensor):
    return lambda x: weft.relu(weft.conv(x, filters, padding=1)).mean(axis=(2, 3)) @ matrix


@pytest.fixture
def parameters() -> list[weft.Tensor]:
    rng = np.random.default_rng(7)
    return [weft.parameter(rng.normal(size=s).astype("float32")) for s in ((8, 3, 3, 3), (8, 5))]


def expected(parameters: list[weft.Tensor], x: np.ndarray) -> np.ndarray:
    with weft.knobs.set(device="reference"):
        return network(*(weft.asarray(p.numpy().copy()) for p in parameters))(weft.asarray(x)).numpy()


def agrees(infer, parameters: list[weft.Tensor], x: np.ndarray) -> None:
    np.testing.assert_allclose(infer(x).numpy(), expected(parameters, x), rtol=1e-4, atol=1e-4)


def test_filters_are_packed_in_the_first_call_only(parameters: list[weft.Tensor]) -> None:
    infer = weft.jit(network(*parameters))
    x = np.ones((2, 3, 6, 6), "float32")
    program = infer._for((x,), {}).executable.program
    assert [call.once for call in program.calls if call.phase is not None].count(True) >= 2
    assert program.memory.kept > 0
    agrees(infer, parameters, x)
    agrees(infer, parameters, 2 * x)


def test_another_value_is_seen(parameters: list[weft.Tensor]) -> None:
    infer = weft.jit(network(*parameters))
    x = np.ones((2, 3, 6, 6), "float32")
    agrees(infer, parameters, x)
    parameters[0].assign(parameters[0] * 3.0)
    agrees(infer, parameters, x)


def test_training_in_place_is_seen(parameters: list[weft.Tensor]) -> None:
    """Training changes the very memory that was packed, not the tensor's node."""
    infer = weft.jit(network(*parameters))

    @weft.jit
    def step(x):
        loss = (network(*parameters)(x) ** 2).mean()
        for p, g in zip(parameters, weft.gradients(loss, parameters), strict=True):
            p.assign(p - 0.5 * g)
        return loss

    x = np.ones((2, 3, 6, 6), "float32")
    for _ in range(3):
        agrees(infer, parameters, x)
        step(x)
        step(x)


def test_a_run_that_failed_prepares_again(parameters: list[weft.Tensor]) -> None:
    table = weft.asarray(np.arange(5.0, dtype="float32"))
    look = weft.jit(lambda x, i: network(*parameters)(x) + table[i])
    x = np.ones((2, 3, 6, 6), "float32")
    with pytest.raises(weft.RunError, match="out of range"):
        look(x, np.array([9, 0, 0, 0, 0]))
    np.testing.assert_allclose(look(x, np.zeros(5, "int64")).numpy(), expected(parameters, x), rtol=1e-4, atol=1e-4)


def test_trained_filters_are_seen_in_the_usual_order(parameters: list[weft.Tensor]) -> None:
    """Their memory is in the order that convolutions like; whoever looks does not notice."""
    filters = parameters[0]
    before = filters.numpy().copy()

    @weft.jit
    def step(x):
        [g] = weft.gradients(weft.conv(x, filters).sum(), [filters])
        filters.assign(filters - 0.0 * g)

    step(np.ones((1, 3, 5, 5), "float32"))
    assert filters.shape == (8, 3, 3, 3)
    assert np.array_equal(filters.numpy(), before)
    assert np.array_equal((filters * 1.0).numpy(), before)
    assert filters.numpy().strides != before.strides
