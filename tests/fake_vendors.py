"""NVIDIA's libraries as far as weft calls them, done by NumPy on the host's memory: what weft tells them is taken at its word."""

import ctypes
import enum
import itertools
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from weft.graph import OPS

_CUDA_TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 3: np.int8, 10: np.int32, 14: ml_dtypes.bfloat16}
_CUDA_TYPES |= {28: ml_dtypes.float8_e4m3fn, 29: ml_dtypes.float8_e5m2}


def at(address, sizes, strides, dtype):
    """Memory of the host, by its address."""
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    raw = (ctypes.c_uint8 * (span * np.dtype(dtype).itemsize)).from_address(address)
    return np.ndarray(sizes, dtype, raw, 0, [s * np.dtype(dtype).itemsize for s in strides])


def gelu_slope(gradient, x):
    """The gradient that goes into a gelu by tanh; its tanh is one from 10 on."""
    near = np.clip(x, -10, 10)
    inner = np.sqrt(2 / np.pi) * (near + 0.044715 * near**3)
    return gradient * (
        0.5 + np.tanh(inner) / 2 + near / 2 * np.sqrt(2 / np.pi) * (1 + 0.134145 * near**2) / np.cosh(inner) ** 2
    )


# --- cuBLASLt -----------------------------------------------------------------------------------------------------------------


def _numbers(name, names):
    return enum.IntEnum(name, names.split(), start=0)


class CublasLtError(Exception):
    """As the bindings raise it."""


class FakeCublasLt:
    """The module nvmath.bindings.cublasLt. Two ways for each product: a fast one that needs 4096 bytes, and one that needs none."""

    cuBLASLtError = CublasLtError
    Epilogue = enum.IntEnum(
        "Epilogue",
        {"DEFAULT": 1, "RELU": 2, "BIAS": 4, "RELU_BIAS": 6, "GELU": 32, "GELU_BIAS": 36}
        | {"GELU_AUX": 160, "GELU_AUX_BIAS": 164, "DGELU": 192},
    )
    ReductionScheme = enum.IntEnum("ReductionScheme", {"COMPUTE_TYPE": 2})
    MatmulDescAttribute = _numbers(
        "MatmulDescAttribute",
        "TRANSA TRANSB EPILOGUE BIAS_POINTER EPILOGUE_AUX_POINTER EPILOGUE_AUX_LD A_SCALE_POINTER B_SCALE_POINTER",
    )
    MatrixLayoutAttribute = _numbers("MatrixLayoutAttribute", "BATCH_COUNT STRIDED_BATCH_OFFSET")
    MatmulPreferenceAttribute = _numbers(
        "MatmulPreferenceAttribute",
        "MAX_WORKSPACE_BYTES REDUCTION_SCHEME_MASK MIN_ALIGNMENT_A_BYTES MIN_ALIGNMENT_B_BYTES MIN_ALIGNMENT_C_BYTES "
        "MIN_ALIGNMENT_D_BYTES",
    )
    MatmulAlgoConfigAttribute = _numbers("MatmulAlgoConfigAttribute", "ID TILE_ID SPLITK_NUM")
    matmul_heuristic_result_dtype = np.dtype(
        [("algo", "<u8", 8), ("workspace_size", "<u8"), ("state", "<i4"), ("waves", "<f4"), ("reserved", "<i4", 4)]
    )

    def __init__(self):
        self.records = {}
        self.runs = []
        self.ways = (4096, 0)

    def create(self):
        return 7

    def get_version(self):
        return 130000

    def _record(self, **facts):
        number = len(self.records) + 1
        self.records[number] = facts
        return number

    def matmul_desc_create(self, compute, scale):
        return self._record(compute=compute, scale=scale)

    def matrix_layout_create(self, dtype, rows, columns, distance):
        return self._record(dtype=_CUDA_TYPES[dtype], rows=rows, columns=columns, distance=distance)

    def matmul_preference_create(self):
        return self._record()

    def _destroy(self, record):
        del self.records[record]
        self.records[-record] = None  # a number is used once

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    def get_matmul_desc_attribute_dtype(self, attribute):
        return {
            "EPILOGUE": np.uint32,
            "BIAS_POINTER": np.int64,
            "EPILOGUE_AUX_POINTER": np.int64,
            "EPILOGUE_AUX_LD": np.int64,
            "A_SCALE_POINTER": np.int64,
            "B_SCALE_POINTER": np.int64,
        }.get(attribute.name, np.int32)

    def get_matrix_layout_attribute_dtype(self, attribute):
        return {"BATCH_COUNT": np.int32, "STRIDED_BATCH_OFFSET": np.int64}[attribute.name]

    def get_matmul_preference_attribute_dtype(self, attribute):
        return np.uint64 if attribute.name == "MAX_WORKSPACE_BYTES" else np.uint32

    def matmul_desc_set_attribute(self, record, attribute, address, nbytes):
        self._set(record, attribute, address, nbytes, self.get_matmul_desc_attribute_dtype(attribute))

    def matrix_layout_set_attribute(self, record, attribute, address, nbytes):
        self._set(record, attribute, address, nbytes, self.get_matrix_layout_attribute_dtype(attribute))

    def matmul_preference_set_attribute(self, record, attribute, address, nbytes):
        self._set(record, attribute, address, nbytes, self.get_matmul_preference_attribute_dtype(attribute))

    def _set(self, record, attribute, address, nbytes, dtype):
        assert nbytes == np.dtype(dtype).itemsize
        self.records[record][attribute.name] = int(at(address, [1], [1], dtype)[0])

    def matmul_algo_get_heuristic(self, handle, operation, a, b, c, d, wishes, wanted, results, count):
        assert handle == 7
        wishes = self.records[wishes]
        assert wishes["REDUCTION_SCHEME_MASK"] == 2
        fitting = [w for w in self.ways if w <= wishes["MAX_WORKSPACE_BYTES"]]
        table = at(results, [wanted], [1], self.matmul_heuristic_result_dtype)
        for number, workspace in enumerate(fitting):
            table[number]["algo"][0], table[number]["workspace_size"] = self.ways.index(workspace), workspace
        at(count, [1], [1], np.int32)[0] = len(fitting)
        if not fitting:
            raise CublasLtError("CUBLAS_STATUS_NOT_SUPPORTED")

    def matmul_algo_config_get_attribute(self, way, attribute, address, nbytes, written):
        at(address, [1], [1], np.int32)[0] = attribute

    def _matrices(self, address, layout):
        """A batch of matrices that lie column by column."""
        facts = self.records[layout]
        assert facts["distance"] >= facts["rows"]
        sizes = (facts.get("BATCH_COUNT", 1), facts["rows"], facts["columns"])
        return at(address, sizes, (facts.get("STRIDED_BATCH_OFFSET", 0), 1, facts["distance"]), facts["dtype"])

    def matmul(
        self,
        handle,
        operation,
        alpha,
        a,
        a_layout,
        b,
        b_layout,
        beta,
        c,
        c_layout,
        d,
        d_layout,
        way,
        space,
        size,
        stream,
    ):
        facts, kind = self.records[operation], _CUDA_TYPES[self.records[operation]["scale"]]
        factor = float(at(alpha, [1], [1], kind)[0])
        more = float(at(beta, [1], [1], kind)[0])
        for name in {"A_SCALE_POINTER", "B_SCALE_POINTER"} & set(facts):
            factor *= float(at(facts[name], [1], [1], np.float32)[0])
        self.runs.append((int(at(way, [1], [1], np.uint64)[0]), size, space, stream, facts["compute"]))
        first, second = self._matrices(a, a_layout).astype(float), self._matrices(b, b_layout).astype(float)
        first = first.swapaxes(1, 2) if facts["TRANSA"] else first
        second = second.swapaxes(1, 2) if facts["TRANSB"] else second
        result = self._matrices(d, d_layout)
        with np.errstate(invalid="ignore"):  # memory that times are measured on may hold nan
            value = factor * (first @ second)
            if more:
                value = value + more * self._matrices(c, c_layout).astype(float)
        if facts["EPILOGUE"] & 4:
            value = value + at(facts["BIAS_POINTER"], [value.shape[1]], [1], result.dtype).astype(float)[:, None]
        if facts["EPILOGUE"] & 2:
            value = np.maximum(value, 0)
        if facts["EPILOGUE"] & 128:
            rows, columns = value.shape[1:]
            assert (len(value), facts["EPILOGUE_AUX_LD"] % 8) == (1, 0)
            kept = at(facts["EPILOGUE_AUX_POINTER"], [rows, columns], [1, facts["EPILOGUE_AUX_LD"]], result.dtype)
            if facts["EPILOGUE"] & 64:
                value = gelu_slope(value, kept.astype(float))
            else:
                kept[...] = value[0]
        if facts["EPILOGUE"] & 32:
            value = value / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
        result[...] = value


# --- cuDNN --------------------------------------------------------------------------------------------------------------------


class NotSupported(Exception):
    """As cuDNN's frontend raises it."""


def _set(name):
    def setter(self, value):
        setattr(self, name, value)
        return self

    return setter


class FakeTensor:
    """A tensor of a graph, given or computed."""

    def __init__(self, compute=None, **facts):
        self.dim = self.stride = self.data_type = self.uid = None
        self.output, self.compute = False, compute
        vars(self).update(facts)

    set_output, set_data_type, set_dim = _set("output"), _set("data_type"), _set("dim")
    set_stride, set_uid = _set("stride"), _set("uid")


class FakeGraph:
    """A graph, and its plans: (name, notes, bytes, does it compile)."""

    def __init__(self, library, **how):
        self.library, self.how = library, how
        self.inputs, self.values, self.windows = [], [], None
        self.several = False  # results
        self.barred, self.limit, self.built = set(), None, None

    def tensor(self, **facts):
        self.inputs.append(FakeTensor(**facts))
        return self.inputs[-1]

    def _value(self, compute):
        self.values.append(FakeTensor(compute))
        return self.values[-1]

    def conv_fprop(self, x, w, **how):
        return self._convolution(how, lambda read, out: _forward(read(x), read(w), how))

    def conv_dgrad(self, dy, w, **how):
        return self._convolution(how, lambda read, out: _data_gradient(read(dy), read(w), out, how))

    def conv_wgrad(self, x, dy, **how):
        return self._convolution(how, lambda read, out: _filter_gradient(read(x), read(dy), out, how))

    def _convolution(self, how, compute):
        value = self._value(None)
        value.compute = lambda read: compute(read, value.dim)
        self.windows = how
        return value

    def add(self, a, b):
        return self._value(lambda read: read(a) + read(b))

    def relu(self, a):
        return self._value(lambda read: np.maximum(read(a), 0))

    def identity(self, a):
        return self._value(lambda read: read(a))

    def sdpa(self, q, k, v, generate_stats, attn_scale, **band):
        return self._attention("attention", (q, k, v), attn_scale, band)[: 2 if generate_stats else 1] + [None] * (
            not generate_stats
        )

    def sdpa_backward(self, q, k, v, o, dO, stats, attn_scale, use_deterministic_algorithm, **band):
        assert use_deterministic_algorithm
        return self._attention("attention_gradients", (q, k, v, o, stats, dO), attn_scale, band)

    def _attention(self, op, inputs, scale, band):
        """By the definition, whose time comes before the heads."""
        align = {"TOP_LEFT": "upper_left", "BOTTOM_RIGHT": "lower_right"}[band.get("diagonal_alignment", "TOP_LEFT")]
        left, right = band.get("diagonal_band_left_bound", 0) - 1, band.get("diagonal_band_right_bound", -1)
        self.several = True

        def results(read):
            given = [read(x) if x.dim[3] == 1 and x.name == "stats" else read(x).swapaxes(1, 2) for x in inputs]
            given = [x[..., 0] if tensor.name == "stats" else x for x, tensor in zip(given, inputs, strict=True)]
            found = OPS[op].reference(tuple(given), left, right, align, scale, 0.0, ())
            return [y[..., None] if y.ndim == 3 else y.swapaxes(1, 2) for y in found]

        made = [FakeTensor(lambda read, i=i: results(read)[i]) for i in range(2 if op == "attention" else 3)]
        self.values += made
        return made

    def validate(self):
        if self.several:
            self.values = [v for v in self.values if v.output]
        else:
            assert [v.output for v in self.values] == [False] * (len(self.values) - 1) + [True]
        if self.library.refuse:
            raise NotSupported("no engine\nand a long list")

    def build_operation_graph(self):
        pass

    def create_execution_plans(self, modes):
        assert modes == ["A", "FALLBACK"]

    def deselect_numeric_notes(self, notes):
        self.barred |= set(notes)

    def deselect_workspace_greater_than(self, limit):
        self.limit = limit

    def get_execution_plan_count(self):
        return len(self.library.plans)

    def build_plan_at_index(self, number):
        _, notes, nbytes, _ = self.library.plans[number]
        if notes & self.barred:
            raise NotSupported("Deselecting execution plan")
        if self.limit is not None and nbytes > self.limit:
            raise RuntimeError("workspace violation")
        self.built = number
        self.library.builds.append(number)

    def get_workspace_size_plan_at_index(self, number):
        return self.library.plans[number][2]

    def get_plan_name_at_index(self, number):
        return self.library.plans[number][0]

    def get_behavior_notes_for_plan_at_index(self, number):
        return ["RUNTIME_COMPILATION"] if self.library.plans[number][3] else []

    def execute(self, pack, workspace, handle):
        results = self.values if self.several else self.values[-1:]
        assert set(pack) == {t.uid for t in (*self.inputs, *results)}
        self.library.runs.append((self.get_plan_name_at_index(self.built), workspace, handle, self.library.stream))
        known = {id(t): at(pack[t.uid], t.dim, t.stride, t.data_type).astype(float) for t in self.inputs}

        def read(tensor):
            return known[id(tensor)] if id(tensor) in known else tensor.compute(read)

        for result in results:
            at(pack[result.uid], result.dim, result.stride, result.data_type)[...] = read(result)


_NOTES = (
    "TENSOR_CORE",
    "NONDETERMINISTIC",
    "DOWN_CONVERT_INPUTS",
    "REDUCED_PRECISION_REDUCTION",
    "WINOGRAD_TILE_13x13",
)


class FakeCudnn:
    """The module cudnn."""

    cudnnGraphNotSupportedError = NotSupported
    data_type = SimpleNamespace(FLOAT=np.float32, HALF=np.float16, BFLOAT16=ml_dtypes.bfloat16)
    diagonal_alignment = SimpleNamespace(TOP_LEFT="TOP_LEFT", BOTTOM_RIGHT="BOTTOM_RIGHT")
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
    behavior_note = SimpleNamespace(RUNTIME_COMPILATION="RUNTIME_COMPILATION")
    numerical_note = SimpleNamespace(**{note: note for note in _NOTES})
    plans = (
        ("any order", {"TENSOR_CORE", "NONDETERMINISTIC"}, 0, False),
        ("fast", {"TENSOR_CORE"}, 4096, False),
        ("lean", {"TENSOR_CORE"}, 0, True),
        ("exact", set(), 64, False),
    )

    def __init__(self):
        self.runs, self.builds, self.refuse, self.stream = [], [], False, None

    def create_handle(self):
        return "handle"

    def backend_version_string(self):
        return "9.0.0"

    def set_stream(self, handle, stream):
        self.stream = stream

    def pygraph(self, **how):
        self.graph = FakeGraph(self, **how)
        return self.graph


def _taps(kernel, out, how):
    """For each element of the filter, where in the padded input its windows find it."""
    for tap in itertools.product(*map(range, kernel)):
        facts = zip(tap, how["dilation"], how["stride"], out, strict=True)
        yield (..., *tap), (..., *(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, s, n in facts))


def _padded(x, how):
    return np.pad(x, [(0, 0), (0, 0), *zip(how["pre_padding"], how["post_padding"], strict=True)])


def _grouped(x, groups):
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def _forward(x, w, how):
    groups = x.shape[1] // w.shape[1]
    padded = _padded(x, how)
    sizes = zip(padded.shape[2:], w.shape[2:], how["dilation"], how["stride"], strict=True)
    out = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in sizes]
    y = np.zeros((x.shape[0], groups, w.shape[0] // groups, *out))
    filters = w.reshape(groups, -1, *w.shape[1:])
    for tap, place in _taps(w.shape[2:], out, how):
        y += np.einsum("ngc...,gfc->ngf...", _grouped(padded[place], groups), filters[tap])
    return y.reshape(x.shape[0], -1, *out)


def _data_gradient(dy, w, sizes, how):
    groups = sizes[1] // w.shape[1]
    padded = _padded(np.zeros(sizes), how)
    filters = w.reshape(groups, -1, *w.shape[1:])
    for tap, place in _taps(w.shape[2:], dy.shape[2:], how):
        part = np.einsum("ngf...,gfc->ngc...", _grouped(dy, groups), filters[tap])
        padded[place] += part.reshape(sizes[0], sizes[1], *dy.shape[2:])
    return padded[(..., *(slice(p, p + n) for p, n in zip(how["pre_padding"], sizes[2:], strict=True)))]


def _filter_gradient(x, dy, sizes, how):
    groups = x.shape[1] // sizes[1]
    padded, dw = _padded(x, how), np.zeros(sizes)
    for tap, place in _taps(sizes[2:], dy.shape[2:], how):
        flat = (_grouped(part, groups).reshape(x.shape[0], groups, -1, dy[0, 0].size) for part in (dy, padded[place]))
        part = np.einsum("ngfs,ngcs->gfc", *flat)
        dw[tap] = part.reshape(sizes[0], sizes[1])
    return dw
