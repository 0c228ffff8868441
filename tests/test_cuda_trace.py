"""Timelines of the device `cuda`, on a GPU made of the host's memory."""

from pathlib import Path

import numpy as np
import pytest

import weft
from trace_tools import checked, names
from weft import insight, nn
from weft.knobs import knobs

pytest.importorskip("triton")
import fake_gpu


def test_the_stream_of_a_gpu_is_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = fake_gpu.install(monkeypatch)
    with knobs.set(device="cuda"):
        layer = nn.Linear(4, 3)
        forward = weft.jit(lambda x: layer(x))
        x = np.ones((2, 4), np.float32)
        expected = forward(x).numpy()
        with insight.trace(tmp_path / "trace.json"):
            for _ in range(3):
                assert np.array_equal(forward(x).numpy(), expected)
        assert np.array_equal(forward(x).numpy(), expected)
    assert gpu.recording is None
    found = checked(tmp_path / "trace.json")
    kernels = [event for event in found["stream"] if event["cat"] == "kernel"]
    assert len(kernels) >= 3
    assert {event["args"]["class"] for event in kernels} == {"Linear"}
    main = found["main thread"]
    assert names(main, "call") == 3 * ["<lambda>"]
    assert names(main, "wait") == 3 * ["wait for a result"]
    assert "copy an argument to the GPU" in names(main, "copy")
    begin = min(event["ts"] for event in main if event["cat"] == "call")
    assert all(event["ts"] >= begin for event in kernels)
