"""Checks the array object of the array API: operators, in-place changes, attributes, conversion to Python numbers.

Indexing and the exchange with other libraries have their own files.
"""

import copy
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from array_api_tools import BITS, DTYPES, FLOATS, INTEGERS, NUMERIC, SHAPES, check, draw, dtype_of


@pytest.fixture(autouse=True)
def _interpreted():
    """Values are compared to the last bit here, and live nodes are counted: nothing must be compiled on the way."""
    with weft.knobs.set(device="reference"):
        yield


# --- operators -----------------------------------------------------------------------------------------------------------

# The operator, its in-place form, the function it stands for, the dtypes it takes.
OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None, str, tuple[str, ...]]] = {
    "+": (operator.add, operator.iadd, "add", NUMERIC),
    "-": (operator.sub, operator.isub, "subtract", NUMERIC),
    "*": (operator.mul, operator.imul, "multiply", NUMERIC),
    "/": (operator.truediv, operator.itruediv, "divide", FLOATS),
    "//": (operator.floordiv, operator.ifloordiv, "floor_divide", NUMERIC),
    "%": (operator.mod, operator.imod, "remainder", NUMERIC),
    "**": (operator.pow, operator.ipow, "pow", NUMERIC),
    "@": (operator.matmul, operator.imatmul, "matmul", NUMERIC),
    "&": (operator.and_, operator.iand, "bitwise_and", BITS),
    "|": (operator.or_, operator.ior, "bitwise_or", BITS),
    "^": (operator.xor, operator.ixor, "bitwise_xor", BITS),
    "<<": (operator.lshift, operator.ilshift, "bitwise_left_shift", INTEGERS),
    ">>": (operator.rshift, operator.irshift, "bitwise_right_shift", INTEGERS),
    "<": (operator.lt, None, "less", NUMERIC),
    "<=": (operator.le, None, "less_equal", NUMERIC),
    ">": (operator.gt, None, "greater", NUMERIC),
    ">=": (operator.ge, None, "greater_equal", NUMERIC),
    "==": (operator.eq, None, "equal", DTYPES),
    "!=": (operator.ne, None, "not_equal", DTYPES),
}
EACH = [(sign, dtype) for sign, (_, _, _, dtypes) in OPERATORS.items() for dtype in dtypes]


def pair(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    return draw(dtype, (3, 3), 1, 4), draw(dtype, (3, 3), 1, 4, seed=1)


@pytest.mark.parametrize(("sign", "dtype"), EACH)
def test_operator_is_its_function(sign, dtype):
    act, in_place, name, _ = OPERATORS[sign]
    a, b = pair(dtype)
    x, y, function = weft.asarray(a), weft.asarray(b), getattr(weft, name)
    expected = function(x, y)
    result = expected.dtype.name
    for answer in (act(x, y), act(x, b), act(a, y)):  # a NumPy array on either side gives a tensor
        check(answer, expected.numpy(), result)
    if in_place is not None:
        z = x
        z = in_place(z, y)
        assert z is x
        check(x, expected.numpy(), dtype)


@pytest.mark.parametrize(("sign", "dtype"), [(s, d) for s, d in EACH if s != "@"])
def test_operator_with_a_scalar_on_either_side(sign, dtype):
    act, in_place, name, _ = OPERATORS[sign]
    x, function = weft.asarray(pair(dtype)[0]), getattr(weft, name)
    for scalar in (True, False) if dtype == "bool" else (2,) if dtype in INTEGERS else (2, 1.5):
        right, left = function(x, scalar), function(scalar, x)
        check(act(x, scalar), right.numpy(), right.dtype.name)
        check(act(scalar, x), left.numpy(), left.dtype.name)
        check(act(np.asarray(scalar)[()], x), left.numpy(), left.dtype.name)
        if in_place is not None:
            z = weft.asarray(x, copy=True)
            check(in_place(z, scalar), right.numpy(), dtype)


@pytest.mark.parametrize("dtype", NUMERIC)
def test_unary_operators(dtype):
    a = draw(dtype, (2, 3))
    x = weft.asarray(a)
    check(-x, weft.negative(x).numpy(), dtype)
    check(+x, a, dtype)
    check(abs(x), weft.abs(x).numpy(), dtype)
    if dtype in BITS:
        check(~x, ~a, dtype)
    check(~weft.asarray([True, False]), [False, True], "bool")


def test_operators_leave_strangers_alone():
    x = weft.ones(2)
    for stranger in ("text", None, object()):
        assert (x == stranger) is False
        assert (x != stranger) is True
        for act in (operator.add, operator.mul, operator.lt, operator.matmul):
            with pytest.raises(TypeError):
                act(x, stranger)

    class Other:
        def __radd__(self, other):
            return "mine"

    assert x + Other() == "mine"


# --- in place ------------------------------------------------------------------------------------------------------------


def test_in_place_keeps_dtype_and_shape_or_fails():
    ints, floats = weft.asarray([1, 2]), weft.asarray([1.0, 2.0])
    for act, x, y in (
        (operator.itruediv, ints, 2), (operator.iadd, ints, 1.5), (operator.iadd, floats, weft.ones(2, dtype=weft.float64)),
        (operator.imul, ints, weft.ones((3, 2), dtype=weft.int64)), (operator.iadd, weft.ones(1), weft.ones(3)),
    ):  # fmt: skip
        before = x.numpy().copy()
        with pytest.raises(weft.UserError, match="keeps shape and dtype"):
            act(x, y)
        check(x, before, x.dtype.name)
    floats += weft.asarray([[1.0]])[0]
    check(floats, [2.0, 3.0], "float32")


# What may hand back its argument unchanged. The standard wants a new array of most of them and leaves it open for the
# others; but where x[1:] is a tensor of its own, x[:] must be one too.
UNCHANGED: dict[str, Callable[[Any], Any]] = {
    "+x": lambda x: +x,
    "positive": lambda x: weft.positive(x),
    "real": lambda x: weft.real(x),
    "conj": lambda x: weft.conj(x),
    "astype": lambda x: weft.astype(x, x.dtype),
    "astype copy=True": lambda x: weft.astype(x, x.dtype, copy=True),
    "x.astype": lambda x: x.astype(x.dtype),
    "asarray copy=True": lambda x: weft.asarray(x, copy=True),
    "asarray dtype copy=True": lambda x: weft.asarray(x, dtype=x.dtype, copy=True),
    "reshape copy=True": lambda x: weft.reshape(x, x.shape, copy=True),
    "reshape": lambda x: weft.reshape(x, x.shape),
    "clip": lambda x: weft.clip(x),
    "concat": lambda x: weft.concat([x]),
    "concat axis=None": lambda x: weft.concat([x], axis=None),
    "broadcast_to": lambda x: weft.broadcast_to(x, x.shape),
    "broadcast_arrays": lambda x: weft.broadcast_arrays(x)[0],
    "meshgrid": lambda x: weft.meshgrid(x)[0],
    "squeeze": lambda x: weft.squeeze(x, ()),
    "permute_dims": lambda x: weft.permute_dims(x, (0,)),
    "moveaxis": lambda x: weft.moveaxis(x, 0, 0),
    "flip": lambda x: weft.flip(x, axis=()),
    "roll": lambda x: weft.roll(x, 0),
    "roll axis": lambda x: weft.roll(x, 0, axis=0),
    "repeat": lambda x: weft.repeat(x, 1),
    "tile": lambda x: weft.tile(x, (1,)),
    "diff": lambda x: weft.diff(x, n=0),
    "sum": lambda x: weft.sum(x, axis=()),
    "prod": lambda x: weft.prod(x, axis=()),
    "max": lambda x: weft.max(x, axis=()),
    "from_dlpack copy=True": lambda x: weft.from_dlpack(x, copy=True),
    "x[...]": lambda x: x[...],
    "x[:]": lambda x: x[:],
    "x[()]": lambda x: x[()],
    "to_device": lambda x: x.to_device(x.device),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "Tensor": weft.Tensor,
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_result_is_not_the_argument_under_another_name(name):
    x = weft.asarray([1.0, 2.0, 3.0])
    y = UNCHANGED[name](x)
    y += 1.0
    check(x, [1.0, 2.0, 3.0], "float32")
    check(y, [2.0, 3.0, 4.0], "float32")


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
def test_a_rounded_integer_is_not_the_argument_under_another_name(name):
    x = weft.asarray([1, 2])
    y = getattr(weft, name)(x)
    y += 1
    check(x, [1, 2], "int64")


def test_astype_without_a_copy_is_the_argument():
    x = weft.ones(2)
    assert weft.astype(x, weft.float32, copy=False) is x


# --- attributes and Python numbers ---------------------------------------------------------------------------------------

MEMBERS = ["dtype", "device", "mT", "ndim", "shape", "size", "T", "__abs__", "__add__", "__and__", "__array_namespace__", "__bool__", "__complex__", "__dlpack__", "__dlpack_device__", "__eq__", "__float__", "__floordiv__", "__ge__", "__getitem__", "__gt__", "__index__", "__int__", "__invert__", "__le__", "__lshift__", "__lt__", "__matmul__", "__mod__", "__mul__", "__ne__", "__neg__", "__or__", "__pos__", "__pow__", "__rshift__", "__setitem__", "__sub__", "__truediv__", "__xor__", "to_device"]  # fmt: skip


@pytest.mark.parametrize("name", MEMBERS)
def test_member_exists(name):
    assert hasattr(weft.ones((2, 2)), name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attributes(dtype):
    for shape in (*SHAPES, (2, 0, 3)):
        a = draw(dtype, shape)
        x = weft.asarray(a)
        assert (x.shape, x.ndim, x.size, x.dtype) == (a.shape, a.ndim, a.size, dtype_of(dtype))
        assert {type(x.shape), type(x.ndim), type(x.size)} == {tuple, int}
        assert x.device in weft.__array_namespace_info__().devices()
        if a.ndim >= 2:
            check(x.mT, np.swapaxes(a, -1, -2), dtype)
    check(weft.asarray(draw(dtype, (2, 3))).T, draw(dtype, (2, 3)).T, dtype)


def test_transposes_need_matrices():
    for x in (weft.ones(3), weft.ones(())):
        with pytest.raises(weft.UserError):
            _ = x.mT
    for x in (weft.ones(3), weft.ones((2, 3, 4))):
        with pytest.raises(weft.UserError):
            _ = x.T


def test_namespace():
    x = weft.ones(2)
    assert x.__array_namespace__() is weft
    assert x.__array_namespace__(api_version="2024.12") is weft
    with pytest.raises(weft.UserError):
        x.__array_namespace__(api_version="1999.01")
    check(x.to_device(x.device, stream=None), [1.0, 1.0], "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_python_numbers(dtype):
    for value in (0, 1) if dtype == "bool" else (0, 1, 5):
        x = weft.full((), value, dtype=dtype_of(dtype))
        numbers = (bool(x), int(x), float(x), complex(x))
        assert numbers == (bool(value), value, value, value)
        assert [type(n) for n in numbers] == [bool, int, float, complex]
        if dtype in INTEGERS:
            assert operator.index(x) == value
            assert list(range(9))[x] == value
        else:
            with pytest.raises(TypeError):
                operator.index(x)


def test_python_numbers_need_one_element_without_dimensions():
    for x in (weft.ones(2), weft.ones((0,)), weft.ones((1, 1))):
        for convert in (bool, int, float, complex):
            with pytest.raises((TypeError, ValueError)):
                convert(x)
    with pytest.raises((TypeError, ValueError)):
        operator.index(weft.asarray([1]))
    for value in (weft.nan, weft.inf):
        x = weft.asarray(value)
        assert bool(x)
        with pytest.raises((ValueError, OverflowError)):
            int(x)


def test_repr():
    assert repr(weft.asarray([1.5, 2.0])) == "Tensor([1.5, 2. ], dtype=float32)"
    assert repr(weft.asarray([[1, 2], [3, 4]])) == "Tensor([[1, 2],\n        [3, 4]], dtype=int64)"
    assert repr(weft.asarray(True)) == "Tensor(True, dtype=bool)"
    for dtype in DTYPES:
        for shape in SHAPES:
            text = repr(weft.zeros(shape, dtype=dtype_of(dtype)))
            assert text.startswith("Tensor(")
            assert text.endswith(f"dtype={dtype})")
    assert len(repr(weft.zeros(10**5))) < 200
