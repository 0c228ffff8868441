"""cuSPARSELt as far as weft calls it, done by NumPy on the host's memory: what weft tells it is taken at its word."""

import enum

import ml_dtypes
import numpy as np

from fake_vendors import at

_TYPES = {2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
_MASK = 0x5A  # compressed bytes are nothing that anybody else could read
_HANDLE = 11


class CusparseLtError(Exception):
    """As the bindings raise it."""


def _numbers(name, names):
    return enum.IntEnum(name, names.split(), start=0)


class FakeCusparseLt:
    """The module nvmath.bindings.cusparseLt. Of its algorithms the second cannot be had, the third takes a workspace, and the last,
    which is listed for float16 only, cannot be run."""

    cuSPARSELtError = CusparseLtError
    Sparsity = _numbers("Sparsity", "SPARSITY_50_PERCENT")
    ComputeType = _numbers("ComputeType", "COMPUTE_32I COMPUTE_16F COMPUTE_32F")
    MatmulAlg = _numbers("MatmulAlg", "DEFAULT")
    MatmulDescAttribute = enum.IntEnum("MatmulDescAttribute", {"ACTIVATION_RELU": 0, "BIAS_POINTER": 8})
    MatmulAlgAttribute = _numbers("MatmulAlgAttribute", "CONFIG_ID CONFIG_MAX_ID SEARCH_ITERATIONS SPLIT_K")
    WORKSPACES = (0, None, 4096, 0)
    ILLEGAL = 3

    def __init__(self):
        self.records = {}
        self.runs, self.compressions = [], 0

    def init(self):
        return _HANDLE

    def _record(self, **facts):
        number = len(self.records) + 1
        self.records[number] = facts
        return number

    def structured_descriptor_init(self, handle, rows, columns, line, alignment, dtype, order, sparsity):
        assert (handle, line, alignment, order, sparsity) == (_HANDLE, columns, 16, 2, 0)
        if rows % 16 or columns % 16:
            raise CusparseLtError("CUSPARSE_STATUS_NOT_SUPPORTED")
        return self._record(rows=rows, columns=columns, dtype=_TYPES[dtype])

    def dense_descriptor_init(self, handle, rows, columns, line, alignment, dtype, order):
        assert (handle, alignment, line) == (_HANDLE, 16, columns if order == 2 else rows)
        if rows % 8 or columns % 8:
            raise CusparseLtError("CUSPARSE_STATUS_NOT_SUPPORTED")
        return self._record(rows=rows, columns=columns, dtype=_TYPES[dtype], order=order)

    def mat_descriptor_destroy(self, record):
        self.records[record] = None  # a number is used once

    matmul_descriptor_destroy = matmul_alg_selection_destroy = mat_descriptor_destroy

    def matmul_plan_destroy(self, plan):
        """Its operation cannot be used any more, as in cuSPARSELt 0.8."""
        self.records[self.records[plan]["operation"]] = {}
        self.records[plan] = None

    def matmul_descriptor_init(self, handle, op_a, op_b, a, b, c, d, compute):
        assert (op_a, op_b, c, compute) == (0, 1, d, 2)
        return self._record(a=a, b=b, d=d)

    def get_matmul_desc_attribute_dtype(self, attribute):
        return np.int64 if attribute.name == "BIAS_POINTER" else np.int32

    def matmul_desc_set_attribute(self, handle, record, attribute, address, nbytes):
        dtype = self.get_matmul_desc_attribute_dtype(attribute)
        assert nbytes == np.dtype(dtype).itemsize
        self.records[record][attribute.name] = int(at(address, [1], [1], dtype)[0])

    def matmul_alg_selection_init(self, handle, operation, algorithm):
        dtype = self.records[self.records[operation]["b"]]["dtype"]
        return self._record(CONFIG_ID=2, CONFIG_MAX_ID=len(self.WORKSPACES) - (dtype != np.float16))

    def matmul_alg_set_attribute(self, handle, record, attribute, address, nbytes):
        self.records[record][attribute.name] = int(at(address, [1], [1], np.int32)[0])

    def matmul_alg_get_attribute(self, handle, record, attribute, address, nbytes):
        at(address, [1], [1], np.int32)[0] = self.records[record][attribute.name]

    def matmul_plan_init(self, handle, operation, algorithm):
        number = self.records[algorithm]["CONFIG_ID"]
        if self.WORKSPACES[number] is None:
            raise CusparseLtError("CUSPARSE_STATUS_NOT_SUPPORTED")
        assert self.records[algorithm]["SPLIT_K"] == 1
        return self._record(**self.records[operation], number=number, operation=operation)

    def matmul_get_workspace(self, handle, plan):
        return self.WORKSPACES[self.records[plan]["number"]]

    def sp_mma_compressed_size2(self, handle, matrix):
        facts = self.records[matrix]
        count = facts["rows"] * facts["columns"]
        return count * facts["dtype"].itemsize // 2 + count // 8, 256

    def sp_mma_compress2(self, handle, matrix, is_sparse_a, op, dense, compressed, buffer, stream):
        facts = self.records[matrix]
        rows, columns, dtype = facts["rows"], facts["columns"], facts["dtype"]
        assert (bool(is_sparse_a), op) == (True, 0)
        assert buffer
        groups = at(dense, [rows * columns // 4, 4], [4, 1], dtype)
        assert (np.count_nonzero(groups.astype(np.float32), axis=1) <= 2).all(), "no 2:4 sparsity"
        chosen = np.sort(np.argsort(groups == 0, axis=1, kind="stable")[:, :2], axis=1)
        values = np.ascontiguousarray(np.take_along_axis(groups, chosen, axis=1)).view(np.uint8).reshape(-1)
        codes = (chosen[:, 0] | chosen[:, 1] << 2).astype(np.uint8)
        found = np.concatenate([values, codes[::2] | codes[1::2] << 4])
        at(compressed, [len(found)], [1], np.uint8)[:] = found ^ _MASK
        self.compressions += 1

    def _expanded(self, address, facts):
        groups = facts["rows"] * facts["columns"] // 4
        dtype = facts["dtype"]
        read = at(address, [groups * 2 * dtype.itemsize + groups // 2], [1], np.uint8) ^ _MASK
        values = read[: groups * 2 * dtype.itemsize].view(dtype).reshape(groups, 2)
        codes = np.stack([read[-groups // 2 :] & 15, read[-groups // 2 :] >> 4], axis=1).reshape(-1)
        weight = np.zeros((groups, 4))
        for n in (0, 1):
            np.add.at(weight, (np.arange(groups), codes >> 2 * n & 3), values[:, n].astype(float))
        return weight.reshape(facts["rows"], facts["columns"])

    def matmul(self, handle, plan, alpha, a, b, beta, c, d, workspace, streams, count):
        facts = self.records[plan]
        assert (count, c) == (1, d)
        assert facts["number"] != self.ILLEGAL, "CUDA_ERROR_ILLEGAL_INSTRUCTION"
        assert [float(at(f, [1], [1], np.float32)[0]) for f in (alpha, beta)] == [1.0, 0.0]
        if self.WORKSPACES[facts["number"]]:
            assert workspace
        weight, x, y = (self.records[facts[name]] for name in ("a", "b", "d"))
        assert (x["order"], y["order"]) == (2, 1)
        rows = at(b, [x["rows"], x["columns"]], [x["columns"], 1], x["dtype"]).astype(float)
        with np.errstate(invalid="ignore", over="ignore"):  # memory that times are measured on may hold nan
            value = self._expanded(a, weight) @ rows.T
            if "BIAS_POINTER" in facts:
                value = value + at(facts["BIAS_POINTER"], [y["rows"]], [1], y["dtype"]).astype(float)[:, None]
            if facts.get("ACTIVATION_RELU"):
                value = np.maximum(value, 0)
            at(d, [y["rows"], y["columns"]], [1, y["rows"]], y["dtype"])[...] = value
        self.runs.append((facts["number"], "BIAS_POINTER" in facts, bool(facts.get("ACTIVATION_RELU"))))
