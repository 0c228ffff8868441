"""Checks the exchange of arrays with other libraries: DLPack in both directions, and what NumPy reads from a tensor."""

import ctypes

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


class Foreign:
    """Another library's array: a tensor's memory behind DLPack, by the new protocol or by the one before versions."""

    def __init__(self, tensor, versioned=True):
        self.tensor, self.versioned = tensor, versioned

    def __dlpack__(self, **settings):
        if self.versioned:
            return self.tensor.__dlpack__(**settings)
        if settings:
            raise TypeError("unexpected keyword")
        return self.tensor.__dlpack__()

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("dtype", STANDARD_DTYPES)
def test_dlpack_to_others(dtype):
    for shape in (*SHAPES, (2, 0)):
        a = draw(dtype, shape)
        x = weft.asarray(a)
        b = np.from_dlpack(x)
        np.testing.assert_array_equal(b, a)
        assert (b.dtype, b.shape) == (a.dtype, a.shape)
        # PyTorch writes to memory that is marked as read-only: whoever does not ask for the tensor's own gets a copy.
        assert not np.shares_memory(b, x.numpy())
        shared = np.from_dlpack(x, copy=False)
        assert not shared.flags.writeable
        assert a.size == 0 or np.shares_memory(shared, x.numpy())
        assert not np.shares_memory(np.from_dlpack(x, copy=True), x.numpy())
        np.testing.assert_array_equal(np.asarray(strict.from_dlpack(x)), a)


def test_dlpack_of_computed_and_strided_tensors():
    a = draw("float32", (4, 6))
    x = weft.asarray(a)
    np.testing.assert_array_equal(np.from_dlpack(x + 1.0), a + 1)
    np.testing.assert_array_equal(np.from_dlpack(x.T), a.T)
    check(weft.from_dlpack(a[::2, ::-3]), a[::2, ::-3], "float32")
    assert x.__dlpack_device__() == a.__dlpack_device__()


@pytest.mark.parametrize("versioned", [True, False])
def test_a_tensor_does_not_change_with_the_memory_handed_out_by_dlpack(versioned):
    x = weft.asarray([1.0, 2.0])
    b = np.from_dlpack(Foreign(x, versioned))
    ctypes.memset(b.ctypes.data, 0, b.nbytes)  # as a reader does that ignores the mark
    check(x, [1.0, 2.0], "float32")


def test_the_old_protocol_cannot_share():
    with pytest.raises(BufferError):
        weft.ones(2).__dlpack__(copy=False)  # it has no mark for memory that must not be written to


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("read", [weft.asarray, weft.from_dlpack])
def test_dlpack_of_bfloat16(read, versioned):
    a = draw("bfloat16", (2, 3))
    x = read(Foreign(weft.asarray(a), versioned))
    check(x, a, "bfloat16")
    check(read(Foreign(weft.asarray(a).T, versioned)), a.T, "bfloat16")
    with pytest.raises(
        RuntimeError, match="Unsupported dtype"
    ):  # NumPy's own reader does not know it: the code is not that of uint16
        np.from_dlpack(Foreign(weft.asarray(a), versioned))


@pytest.mark.parametrize("read", [weft.asarray, weft.from_dlpack])
def test_what_others_refuse_to_share_is_a_users_error(read):
    class Trained:
        def __dlpack__(self, **settings):
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(
        weft.UserError, match="got Trained: Can't export tensors that require gradient, use tensor.detach"
    ):
        read(Trained())


def test_dlpack_refuses_what_it_cannot_do():
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
