"""Scans as one kernel, as they are compiled for an H200: the results of the CPU, and no warp reads shared memory too early."""

from collections.abc import Iterator

import pytest

pytest.importorskip("triton")
import ptx_gpu
from ptx_gpu import PtxGpu
from ptx_machine import Kernel
from ptx_threads import Fault
from test_row_scans import floats, layer, same
from weft.compiler.gpu.row_scan_source import NEXT


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PtxGpu]:
    with ptx_gpu.compiling(monkeypatch, lambda wanted: f"{NEXT} = " in wanted.text) as made:
        yield made


@pytest.mark.parametrize(("kind", "precision"), [("RNN", "float16"), ("LSTM", "bfloat16"), ("GRU", "float16")])
def test_a_step_of_training_is_that_of_the_cpu(gpu: PtxGpu, kind: str, precision: str) -> None:
    same(lambda: layer(kind, precision, True), floats(9, 5, 5), tolerance=2e-2)
    assert gpu.compiled_launches == 2 * 2  # two calls, forward and backward


def test_without_barriers_it_is_an_error(gpu: PtxGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Kernel.__init__
    monkeypatch.setattr(Kernel, "__init__", lambda self, text: read(self, text.replace("bar.sync", "bar.warp.sync")))
    with pytest.raises(Fault, match="since the last barrier"):
        same(lambda: layer("LSTM", "bfloat16", False), floats(9, 5, 5))
