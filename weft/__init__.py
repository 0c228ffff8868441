"""weft: from data to a trained, small, fast and measured network.

The top level follows the Python array API standard 2024.12 and adds what neural networks need.
"""

from __future__ import annotations

import math as _math
import sys as _sys
from types import ModuleType as _ModuleType

from . import data as data
from . import extend as extend
from . import graph as graph
from . import io as io
from . import metrics as metrics
from . import nn as nn
from . import optim as optim
from . import random as random
from . import report as report
from . import train as train
from . import zoo as zoo
from .algorithms import NO_WORKSPACE as NO_WORKSPACE
from .algorithms import PREFER_FASTEST as PREFER_FASTEST
from .algorithms import WORKSPACE_LIMIT as WORKSPACE_LIMIT
from .algorithms import algorithms as algorithms
from .algorithms import find_algorithms as find_algorithms
from .control import checkpoint as checkpoint
from .control import cond as cond
from .control import fori_loop as fori_loop
from .control import scan as scan
from .control import while_loop as while_loop
from .derivatives import custom_vjp as custom_vjp
from .derivatives import grad as grad
from .derivatives import gradients as gradients
from .derivatives import jvp as jvp
from .derivatives import value_and_grad as value_and_grad
from .derivatives import vjp as vjp
from .dtypes import DType as DType
from .dtypes import bfloat16 as bfloat16
from .dtypes import bool_ as bool_
from .dtypes import finfo as finfo
from .dtypes import float16 as float16
from .dtypes import float32 as float32
from .dtypes import float64 as float64
from .dtypes import iinfo as iinfo
from .dtypes import int8 as int8
from .dtypes import int16 as int16
from .dtypes import int32 as int32
from .dtypes import int64 as int64
from .dtypes import isdtype as isdtype
from .dtypes import uint8 as uint8
from .dtypes import uint16 as uint16
from .dtypes import uint32 as uint32
from .dtypes import uint64 as uint64
from .errors import InternalError as InternalError
from .errors import RunError as RunError
from .errors import UserError as UserError
from .errors import UserIndexError as UserIndexError
from .errors import WeftError as WeftError
from .graph import Graph as Graph
from .knobs import knobs as knobs
from .ops.activation import celu as celu
from .ops.activation import elu as elu
from .ops.activation import gelu as gelu
from .ops.activation import glu as glu
from .ops.activation import hard_shrink as hard_shrink
from .ops.activation import hard_sigmoid as hard_sigmoid
from .ops.activation import hard_swish as hard_swish
from .ops.activation import hard_tanh as hard_tanh
from .ops.activation import leaky_relu as leaky_relu
from .ops.activation import log_sigmoid as log_sigmoid
from .ops.activation import maxout as maxout
from .ops.activation import mish as mish
from .ops.activation import prelu as prelu
from .ops.activation import relu as relu
from .ops.activation import relu6 as relu6
from .ops.activation import selu as selu
from .ops.activation import silu as silu
from .ops.activation import soft_shrink as soft_shrink
from .ops.activation import softplus as softplus
from .ops.activation import softsign as softsign
from .ops.activation import tanh_shrink as tanh_shrink
from .ops.contract import cross as cross
from .ops.contract import diag as diag
from .ops.contract import diagonal as diagonal
from .ops.contract import einsum as einsum
from .ops.contract import matmul as matmul
from .ops.contract import outer as outer
from .ops.contract import tensordot as tensordot
from .ops.contract import trace as trace
from .ops.contract import vecdot as vecdot
from .ops.conv import conv as conv
from .ops.conv import conv_transpose as conv_transpose
from .ops.convert import asarray as asarray
from .ops.convert import parameter as parameter
from .ops.creation import arange as arange
from .ops.creation import empty as empty
from .ops.creation import empty_like as empty_like
from .ops.creation import eye as eye
from .ops.creation import from_dlpack as from_dlpack
from .ops.creation import full as full
from .ops.creation import full_like as full_like
from .ops.creation import linspace as linspace
from .ops.creation import meshgrid as meshgrid
from .ops.creation import one_hot as one_hot
from .ops.creation import ones as ones
from .ops.creation import ones_like as ones_like
from .ops.creation import tril as tril
from .ops.creation import triu as triu
from .ops.creation import zeros as zeros
from .ops.creation import zeros_like as zeros_like
from .ops.elementwise import abs as abs
from .ops.elementwise import acos as acos
from .ops.elementwise import acosh as acosh
from .ops.elementwise import add as add
from .ops.elementwise import asin as asin
from .ops.elementwise import asinh as asinh
from .ops.elementwise import astype as astype
from .ops.elementwise import atan as atan
from .ops.elementwise import atan2 as atan2
from .ops.elementwise import atanh as atanh
from .ops.elementwise import bitwise_and as bitwise_and
from .ops.elementwise import bitwise_invert as bitwise_invert
from .ops.elementwise import bitwise_left_shift as bitwise_left_shift
from .ops.elementwise import bitwise_or as bitwise_or
from .ops.elementwise import bitwise_right_shift as bitwise_right_shift
from .ops.elementwise import bitwise_xor as bitwise_xor
from .ops.elementwise import ceil as ceil
from .ops.elementwise import copysign as copysign
from .ops.elementwise import cos as cos
from .ops.elementwise import cosh as cosh
from .ops.elementwise import divide as divide
from .ops.elementwise import equal as equal
from .ops.elementwise import erf as erf
from .ops.elementwise import exp as exp
from .ops.elementwise import expm1 as expm1
from .ops.elementwise import floor as floor
from .ops.elementwise import floor_divide as floor_divide
from .ops.elementwise import greater as greater
from .ops.elementwise import greater_equal as greater_equal
from .ops.elementwise import hypot as hypot
from .ops.elementwise import less as less
from .ops.elementwise import less_equal as less_equal
from .ops.elementwise import log as log
from .ops.elementwise import log1p as log1p
from .ops.elementwise import log2 as log2
from .ops.elementwise import log10 as log10
from .ops.elementwise import logaddexp as logaddexp
from .ops.elementwise import maximum as maximum
from .ops.elementwise import minimum as minimum
from .ops.elementwise import multiply as multiply
from .ops.elementwise import negative as negative
from .ops.elementwise import nextafter as nextafter
from .ops.elementwise import not_equal as not_equal
from .ops.elementwise import pow as pow
from .ops.elementwise import remainder as remainder
from .ops.elementwise import round as round
from .ops.elementwise import sigmoid as sigmoid
from .ops.elementwise import sign as sign
from .ops.elementwise import sin as sin
from .ops.elementwise import sinh as sinh
from .ops.elementwise import sqrt as sqrt
from .ops.elementwise import stop_gradient as stop_gradient
from .ops.elementwise import subtract as subtract
from .ops.elementwise import tan as tan
from .ops.elementwise import tanh as tanh
from .ops.elementwise import trunc as trunc
from .ops.elementwise import view as view
from .ops.elementwise import where as where
from .ops.indexing import embedding as embedding
from .ops.indexing import take as take
from .ops.indexing import take_along_axis as take_along_axis
from .ops.loss import cross_entropy as cross_entropy
from .ops.loss import dot_product_attention as dot_product_attention
from .ops.loss import mae_loss as mae_loss
from .ops.loss import mse_loss as mse_loss
from .ops.math import allclose as allclose
from .ops.math import clip as clip
from .ops.math import conj as conj
from .ops.math import exp2 as exp2
from .ops.math import fmod as fmod
from .ops.math import imag as imag
from .ops.math import isclose as isclose
from .ops.math import isfinite as isfinite
from .ops.math import isinf as isinf
from .ops.math import isnan as isnan
from .ops.math import logical_and as logical_and
from .ops.math import logical_not as logical_not
from .ops.math import logical_or as logical_or
from .ops.math import logical_xor as logical_xor
from .ops.math import nan_to_num as nan_to_num
from .ops.math import positive as positive
from .ops.math import real as real
from .ops.math import reciprocal as reciprocal
from .ops.math import rsqrt as rsqrt
from .ops.math import signbit as signbit
from .ops.math import square as square
from .ops.movement import broadcast_arrays as broadcast_arrays
from .ops.movement import broadcast_to as broadcast_to
from .ops.movement import concat as concat
from .ops.movement import expand_dims as expand_dims
from .ops.movement import flatten as flatten
from .ops.movement import flip as flip
from .ops.movement import matrix_transpose as matrix_transpose
from .ops.movement import moveaxis as moveaxis
from .ops.movement import pad as pad
from .ops.movement import permute_dims as permute_dims
from .ops.movement import reshape as reshape
from .ops.movement import roll as roll
from .ops.movement import split as split
from .ops.movement import squeeze as squeeze
from .ops.movement import stack as stack
from .ops.movement import tile as tile
from .ops.movement import transpose as transpose
from .ops.movement import unstack as unstack
from .ops.normalize import batch_norm as batch_norm
from .ops.normalize import group_norm as group_norm
from .ops.normalize import instance_norm as instance_norm
from .ops.normalize import layer_norm as layer_norm
from .ops.normalize import local_contrast_norm as local_contrast_norm
from .ops.normalize import local_response_norm as local_response_norm
from .ops.normalize import rms_norm as rms_norm
from .ops.pooling import adaptive_avg_pool as adaptive_avg_pool
from .ops.pooling import adaptive_max_pool as adaptive_max_pool
from .ops.pooling import avg_pool as avg_pool
from .ops.pooling import global_avg_pool as global_avg_pool
from .ops.pooling import global_max_pool as global_max_pool
from .ops.pooling import max_pool as max_pool
from .ops.reduce import all as all
from .ops.reduce import any as any
from .ops.reduce import argmax as argmax
from .ops.reduce import argmin as argmin
from .ops.reduce import cumulative_prod as cumulative_prod
from .ops.reduce import cumulative_sum as cumulative_sum
from .ops.reduce import max as max
from .ops.reduce import min as min
from .ops.reduce import prod as prod
from .ops.reduce import sum as sum
from .ops.selection import argwhere as argwhere
from .ops.selection import compress as compress
from .ops.selection import nonzero as nonzero
from .ops.selection import repeat as repeat
from .ops.selection import unique_all as unique_all
from .ops.selection import unique_counts as unique_counts
from .ops.selection import unique_inverse as unique_inverse
from .ops.selection import unique_values as unique_values
from .ops.sorting import argsort as argsort
from .ops.sorting import count_nonzero as count_nonzero
from .ops.sorting import isin as isin
from .ops.sorting import searchsorted as searchsorted
from .ops.sorting import sort as sort
from .ops.sorting import top_k as top_k
from .ops.standard import Info as _Info
from .ops.standard import can_cast as can_cast
from .ops.standard import result_type as result_type
from .ops.statistics import diff as diff
from .ops.statistics import log_softmax as log_softmax
from .ops.statistics import logsumexp as logsumexp
from .ops.statistics import mean as mean
from .ops.statistics import norm as norm
from .ops.statistics import softmax as softmax
from .ops.statistics import std as std
from .ops.statistics import var as var
from .precision import LossScale as LossScale
from .random import dropout as dropout
from .random import seed as seed
from .runtime import Device as Device
from .runtime import device as device
from .runtime import devices as devices
from .tensor import Tensor as Tensor
from .tensor import function as _function
from .tracing.jit import jit as jit
from .tracing.trace import make_graph as make_graph
from .version import __version__ as __version__
from .vmap import hessian as hessian
from .vmap import jacobian as jacobian
from .vmap import vmap as vmap

__array_api_version__ = "2024.12"

e, inf, nan, newaxis, pi = _math.e, _math.inf, _math.nan, None, _math.pi

bool = bool_  # the standard's name

# Other libraries' names for the same functions.
cast = astype
cumsum, cumprod = cumulative_sum, cumulative_prod
swapaxes, permute = transpose, permute_dims
bitwise_not, lshift, rshift = bitwise_invert, bitwise_left_shift, bitwise_right_shift
layer_normalization = layer_norm


def __array_namespace_info__() -> _Info:
    """What this namespace can do, as the array API standard asks."""
    return _Info()


@_function
def array_namespace(api_version: str | None) -> _ModuleType:
    """The namespace of a tensor, as the array API standard asks."""
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise UserError("array_namespace", f"weft follows version 2024.12 of the standard, not {api_version!r}.")
    return _sys.modules[__name__]
