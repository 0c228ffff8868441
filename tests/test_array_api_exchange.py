"""Checks the exchange of arrays with other libraries: DLPack in both directions, and what NumPy reads from a tensor."""

import array_api_strict as strict
import numpy as np
import pytest

import weft
from array_api_tools import DTYPES, SHAPES, STANDARD_DTYPES, check, draw


@pytest.mark.parametrize("dtype", STANDARD_DTYPES)
def test_dlpack_from_others_without_a_copy(dtype):
    for shape in (*SHAPES, (2, 0)):
        a = draw(dtype, shape)
        x = weft.from_dlpack(a)
        check(x, a, dtype)
        assert a.size == 0 or np.shares_memory(x.numpy(), a)
        assert not np.shares_memory(weft.from_dlpack(a, copy=True).numpy(), a)
        check(weft.from_dlpack(strict.asarray(a)), a, dtype)
        check(weft.asarray(strict.asarray(a)), a, dtype)
        check(weft.from_dlpack(x), a, dtype)


@pytest.mark.parametrize("dtype", STANDARD_DTYPES)
def test_dlpack_to_others_without_a_copy(dtype):
    for shape in (*SHAPES, (2, 0)):
        a = draw(dtype, shape)
        x = weft.asarray(a)
        b = np.from_dlpack(x)
        np.testing.assert_array_equal(b, a)
        assert (b.dtype, b.shape) == (a.dtype, a.shape)
        assert not b.flags.writeable  # nobody may change a tensor from outside
        assert a.size == 0 or np.shares_memory(b, x.numpy())
        assert not np.shares_memory(np.from_dlpack(x, copy=True), x.numpy())
        np.testing.assert_array_equal(np.asarray(strict.from_dlpack(x)), a)


def test_dlpack_of_computed_and_strided_tensors():
    a = draw("float32", (4, 6))
    x = weft.asarray(a)
    np.testing.assert_array_equal(np.from_dlpack(x + 1.0), a + 1)
    np.testing.assert_array_equal(np.from_dlpack(x.T), a.T)
    check(weft.from_dlpack(a[::2, ::-3]), a[::2, ::-3], "float32")
    assert x.__dlpack_device__() == a.__dlpack_device__()


def test_dlpack_for_readers_of_the_old_protocol():
    # They cannot be told not to write, so they get memory of their own.
    x = weft.asarray([1.0, 2.0])

    class Old:
        def __dlpack__(self, stream=None):
            return x.__dlpack__()

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    b = np.from_dlpack(Old())
    assert not np.shares_memory(b, x.numpy())
    np.testing.assert_array_equal(b, [1.0, 2.0])


def test_dlpack_refuses_what_it_cannot_do():
    with pytest.raises(BufferError):
        np.from_dlpack(weft.ones(2, dtype=weft.bfloat16))
    with pytest.raises((AttributeError, TypeError, weft.UserError)):
        weft.from_dlpack([1, 2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_reads_tensors(dtype):
    for shape in SHAPES:
        a = draw(dtype, shape)
        x = weft.asarray(a)
        b = np.asarray(x)
        np.testing.assert_array_equal(b, a)
        assert (b.dtype, b.shape) == (a.dtype, a.shape)
        assert not b.flags.writeable
        assert a.size == 0 or np.shares_memory(b, x.numpy())
        own = np.array(x)
        assert own.flags.writeable
        assert not np.shares_memory(own, x.numpy())
        assert np.asarray(x, dtype=np.float64).dtype == np.float64
        assert np.asarray(x, copy=False).shape == shape
    with pytest.raises(ValueError, match="copy"):
        np.asarray(weft.ones(2), dtype=np.int8, copy=False)


def test_numpy_functions_read_tensors():
    x = weft.asarray([1.0, 2.0, 3.0])
    assert np.sum(np.asarray(x)) == 6
    np.testing.assert_array_equal(np.stack([np.asarray(x), np.asarray(x)]), [[1, 2, 3]] * 2)
    np.testing.assert_allclose(x, [1, 2, 3])


def test_a_tensor_does_not_change_with_the_array_handed_out():
    x = weft.ones(3)
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0] = 5
    own = np.array(x)
    own[0] = 5
    check(x, [1.0, 1.0, 1.0], "float32")
