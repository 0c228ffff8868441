"""Checks event files with TensorBoard's own reader: exact values, several files, files that are cut off or damaged."""

import os
import signal
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import data, nn, train, zoo
from weft.errors import RunError, UserError
from weft.io import EventWriter
from weft.io.graph_def import graph_def
from weft.io.tensorboard import crc32c, record
from weft.report import png
from weft.testing import counted

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that TensorBoard imports
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader, RawEventFileLoader
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.util.tensor_util import make_ndarray


def accumulated(folder: Path) -> Any:
    found = EventAccumulator(
        str(folder), size_guidance={"tensors": 0, "scalars": 0, "images": 0, "histograms": 0, "compressedHistograms": 1}
    )
    return found.Reload()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(e.step, e.value) for e in accumulated(folder).Scalars(tag)]


def same(found: list[tuple[int, float]], expected: list[tuple[int, float]]) -> None:
    assert [s for s, _ in found] == [s for s, _ in expected]
    np.testing.assert_array_equal([v for _, v in found], np.array([v for _, v in expected], "float32"))
    counted(len(expected))


VALUES = [0.0, -0.0, 1 / 3, -2.5e-30, 1e-45, 3.4e38, float("nan"), float("inf"), float("-inf")]


def test_scalars_come_back_exactly(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        for step, value in enumerate(VALUES):
            events.scalar("train/loss", value, step * 1000, time=1000.125 + step)
    same(scalars(tmp_path, "train/loss"), [(s * 1000, v) for s, v in enumerate(VALUES)])
    times = [e.wall_time for e in accumulated(tmp_path).Scalars("train/loss")]
    assert times == [1000.125 + s for s in range(len(VALUES))]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3.0), (np.float16(0.1), float(np.float16(0.1))), (1e300, float("inf")), (-1e300, float("-inf"))],
)
def test_numbers_of_other_kinds(tmp_path: Path, value: Any, expected: float) -> None:
    with EventWriter(tmp_path) as events:
        events.scalar("x", value, step=2**40)
    same(scalars(tmp_path, "x"), [(2**40, expected)])


def test_a_tensor_of_one_number_is_a_scalar(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        events.scalar("x", weft.asarray(0.1), 1)
    same(scalars(tmp_path, "x"), [(1, 0.1)])


@pytest.mark.parametrize("text", ["", "plain", "äöü 学习 🎉", "x" * 100_000, "lone \ud800 half"])
def test_texts_and_tags_come_back(tmp_path: Path, text: str) -> None:
    with EventWriter(tmp_path) as events:
        events.text("notes/Übersicht", text, step=-1)
    (event,) = accumulated(tmp_path).Tensors("notes/Übersicht")
    assert make_ndarray(event.tensor_proto).item() == text.encode("utf-8", "replace")
    assert event.step == -1
    assert accumulated(tmp_path).SummaryMetadata("notes/Übersicht").plugin_data.plugin_name == "text"


def test_settings_are_a_table(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        events.hparams({"model": "lenet", "note": "a|b\nc", "rate": 0.1})
    (event,) = accumulated(tmp_path).Tensors("hparams")
    lines = make_ndarray(event.tensor_proto).item().decode().splitlines()
    assert lines == ["| setting | value |", "|---|---|", "| model | lenet |", "| note | a\\|b c |", "| rate | 0.1 |"]


def test_pictures_come_back(tmp_path: Path) -> None:
    pictures = [np.arange(35, dtype="uint8").reshape(5, 7), np.zeros((2, 3, 3), "uint8"), np.zeros((2, 3, 4), "uint8")]
    with EventWriter(tmp_path) as events:
        for step, picture in enumerate(pictures):
            events.image("sample", png(picture), step)
    for event, picture in zip(accumulated(tmp_path).Images("sample"), pictures, strict=True):
        assert (event.height, event.width) == picture.shape[:2]
        assert event.encoded_image_string == png(picture)
        counted()


def test_histograms_come_back(tmp_path: Path) -> None:
    values = np.array([0.0, 1.0, 1.0, 4.0, np.nan, np.inf])
    with EventWriter(tmp_path) as events:
        events.histogram("weights", values, 1, bins=4)
        events.histogram("nothing", [], 1)
    (event,) = accumulated(tmp_path).Histograms("weights")
    found = event.histogram_value
    assert (found.min, found.max, found.num, found.sum, found.sum_squares) == (0, 4, 4, 6, 18)
    assert (found.bucket_limit, found.bucket) == ([1, 2, 3, 4], [1, 2, 0, 1])
    assert accumulated(tmp_path).Histograms("nothing")[0].histogram_value.num == 0


def test_a_resumed_run_gets_a_new_file_behind_the_old_ones(tmp_path: Path) -> None:
    for start in range(0, 30, 10):
        with EventWriter(tmp_path) as events:
            for step in range(start, start + 10):
                events.scalar("x", step, step)
    assert len(list(tmp_path.iterdir())) == 3
    same(scalars(tmp_path, "x"), [(s, s) for s in range(30)])
    (tmp_path / "events.out.tfevents.odd").write_bytes(b"")
    EventWriter(tmp_path).close()


KILLED = """
import os, signal, sys
from weft.io import EventWriter
events = EventWriter(sys.argv[1])
for step in range(50):
    events.scalar("x", step, step)
events.flush()
for step in range(50, 1000):
    events.scalar("x", step, step)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 on this system")
def test_what_is_flushed_outlives_a_kill(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)]).returncode == -signal.SIGKILL
    found = scalars(tmp_path, "x")
    assert len(found) >= 50
    same(found, [(s, s) for s in range(len(found))])


def written(tmp_path: Path, count: int = 3) -> tuple[Path, bytes]:
    with EventWriter(tmp_path) as events:
        for step in range(count):
            events.scalar("x", step, step)
    return events.path, events.path.read_bytes()


def record_ends(content: bytes) -> list[int]:
    ends, at = [], 0
    while at < len(content):
        at += 16 + struct.unpack_from("<Q", content, at)[0]
        ends.append(at)
    return ends


def test_a_file_cut_off_anywhere_keeps_its_whole_records(tmp_path: Path) -> None:
    path, content = written(tmp_path)
    ends = record_ends(content)
    assert ends[-1] == len(content)
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        assert len(list(RawEventFileLoader(str(path)).Load())) == sum(end <= size for end in ends)
        counted()


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    """The checksums are right: TensorBoard stops at the record that holds the damage, and only there."""
    path, content = written(tmp_path)
    ends = record_ends(content)
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert len(list(RawEventFileLoader(str(path)).Load())) <= sum(end <= place for end in ends)
        counted()


def test_the_file_begins_with_its_version(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    first = next(iter(EventFileLoader(str(path)).Load()))
    assert first.file_version == "brain.Event:2"


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", 0), (b"\0" * 32, 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)],
)
def test_checksums_are_those_of_rfc_3720(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


def test_a_record_by_hand() -> None:
    assert record(b"") == bytes(8) + struct.pack("<I", masked(0x8C28B28A)) + struct.pack("<I", masked(0))


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    events = EventWriter(tmp_path / "new" / "folder")
    with pytest.raises(
        UserError,
        match=r"\[EventWriter.image\] an image must be the bytes of a PNG file, got b'GIF89a'. Use weft.report.png\(array\).",
    ):
        events.image("x", b"GIF89a", 0)
    with pytest.raises(UserError, match=r"\[EventWriter.histogram\] bins must be at least 1, got 0."):
        events.histogram("x", [1.0], 0, bins=0)
    events.close()
    events.close()
    with pytest.raises(
        UserError, match=r"\[EventWriter\] events.out.* is closed. Open a new EventWriter on the same folder."
    ):
        events.scalar("x", 1.0, 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"\[EventWriter\] .*file cannot be written to: "):
        EventWriter(tmp_path / "file")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    events = EventWriter(tmp_path)
    events._file.close()
    events._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    events.scalar("x", 1.0, 1)
    with pytest.raises(RunError, match="cannot be written: No space left on device"):
        events.close()
    assert events._file.closed
    events.close()


# The graph of a network.


class Residual(nn.Module):
    def __init__(self) -> None:
        self.branch = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)
        self.scale = weft.parameter(np.ones(4, np.float32))

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return self.head(x * self.scale + self.branch(x))


def graph_of(folder: Path) -> Any:
    return GraphDef.FromString(accumulated(folder).Graph().SerializeToString())


def test_the_graph_of_a_network_comes_back(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        events.scalar("loss", 1.0, 0)
        events.graph(Residual(), (3, 4))
    assert accumulated(tmp_path).Tags()["graph"] is True
    nodes = {node.name: node for node in graph_of(tmp_path).node}
    kinds = {name: node.op for name, node in nodes.items()}
    assert kinds["input"] == "Placeholder"
    assert kinds["scale"] == kinds["branch/Linear[0]/weight"] == "Parameter"
    assert (kinds["branch/Linear[0]/contract"], kinds["head/contract"]) == ("contract",) * 2
    assert all(source in nodes for node in nodes.values() for source in node.input)
    assert list(nodes["output"].input) == ["head/add"]
    assert list(nodes["head/contract"].input) == ["add", "head/permute"]
    [shape] = nodes["head/contract"].attr["_output_shapes"].list.shape
    assert ([d.size for d in shape.dim], nodes["output"].attr["T"].type) == ([3, 2], 1)
    assert nodes["head/permute"].attr["axes"].s == b"(1, 0)"
    scopes = {"/".join(name.split("/")[:i]) for name in nodes for i in range(1, name.count("/") + 1)}
    assert not scopes & set(nodes)  # a scope with the name of a node would hide it


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "gpt"])
def test_graphs_of_the_zoo(name: str) -> None:
    model = zoo.gpt(7, context=8, features=8, heads=2, layers=1) if name == "gpt" else getattr(zoo, name)()
    size = {"lenet5": (2, 1, 28, 28), "gpt": (2, 8)}.get(name, (2, 3, 32, 32))
    example = np.zeros(size, np.int64) if name == "gpt" else size
    nodes = {node.name: node for node in GraphDef.FromString(graph_def(model, example)).node}
    found = {name for name, node in nodes.items() if node.op == "Parameter"}
    assert len(found) == len(model.named_parameters())
    assert all(source in nodes for node in nodes.values() for source in node.input)
    counted(len(nodes))


def test_a_run_has_the_graph_of_its_network(tmp_path: Path) -> None:
    x, y = np.zeros((8, 4), np.uint8), np.arange(8) % 2
    train.fit(Residual(), data.Arrays(x, y), epochs=1, batch=4, prepare=data.ToFloat(), folder=tmp_path / "run")
    found = accumulated(tmp_path / "run")
    assert found.Tags()["graph"] is True
    assert "train/loss" in found.Tags()["scalars"]
    [shape] = next(n for n in graph_of(tmp_path / "run").node if n.name == "input").attr["_output_shapes"].list.shape
    assert [d.size for d in shape.dim] == [1, 4]
