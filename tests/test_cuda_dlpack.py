"""DLPack on a GPU made of the host's memory: memory is shared both ways, stays alive, and changes hands in stream order."""

import ctypes
import itertools

import numpy as np
import pytest

import weft
from weft.dtypes import as_dtype
from weft.runtime import dlpack
from weft.testing import counted

pytest.importorskip("triton")
import fake_gpu

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
LEGACY = 1


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    found = fake_gpu.install(monkeypatch)
    with weft.knobs.set(device="cuda", cache=str(tmp_path / "cache"), compile_after=1):
        yield found


class Memory:
    """Memory of another library on the GPU. It counts how often it is given back."""

    def __init__(self, gpu, nbytes):
        self.gpu, self.address, self.freed = gpu, gpu.allocate(max(nbytes, 1)), 0


class View(dlpack.DeviceView):
    def __init__(self, memory, *facts):
        super().__init__(*facts)
        self.memory = memory

    def __del__(self):
        self.memory.freed += 1


class Foreign:
    """An array of another library on the GPU."""

    def __init__(
        self, gpu, array, *, offset=0, strides=None, shape=None, versioned=True, readonly=False, device=(2, 0)
    ):
        self.memory, self.versioned, self.readonly, self.device = (
            Memory(gpu, array.nbytes + 64),
            versioned,
            readonly,
            device,
        )
        address = self.memory.address + offset
        ctypes.memmove(address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
        self.view = View(self.memory, address, shape or array.shape, strides or array.strides, array.dtype)
        self.streams = []

    def __dlpack__(self, *, stream=None, **settings):
        if settings and not self.versioned:
            raise TypeError("unexpected keyword")
        self.streams.append(stream)
        view, self.view = self.view, None  # only the capsule refers to it from now on
        return dlpack.export_view(view, self.device, settings.get("max_version"), is_copied=not self.readonly)

    def __dlpack_device__(self):
        return self.device


def filled(dtype, shape):
    kind = as_dtype(dtype).numpy
    return np.asarray(np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, shape)).astype(kind)


def address(tensor):
    return tensor.realize()._node.value.content.memory.address


@pytest.mark.parametrize("versioned", [True, False])
def test_imports_share_memory(gpu, versioned):
    for dtype, shape in itertools.product(DTYPES, ((), (3,), (2, 0), (2, 3))):
        array = filled(dtype, shape)
        other = Foreign(gpu, array, versioned=versioned)
        x = weft.from_dlpack(other)
        assert (x.device.name, x.shape, x.dtype.name) == ("cuda", shape, dtype)
        assert not array.size or address(x) == other.memory.address
        assert other.streams == [gpu.stream]
        assert x.numpy().tobytes() == array.tobytes()
        assert other.memory.freed == 0
        del x
        assert other.memory.freed == 1
        counted()


def test_memory_is_given_back_when_the_work_that_reads_it_is_done(gpu):
    other = Foreign(gpu, filled("float32", (4,)))
    x = weft.from_dlpack(other)
    gpu.is_busy = True
    del x
    assert other.memory.freed == 0
    gpu.is_busy = False
    weft.device("cuda").wait()
    assert other.memory.freed == 1


def test_memory_that_goes_while_work_is_recorded_is_given_back_later(gpu):
    other = Foreign(gpu, filled("float32", (4,)))
    x = [weft.from_dlpack(other)]
    y = weft.asarray(filled("float32", (4,)))
    lent = [y.__dlpack__(copy=False, max_version=(1, 0))]
    gpu.synchronized.clear()
    gpu.record(lambda: (x.clear(), lent.clear()))
    assert (other.memory.freed, gpu.synchronized) == (0, [])
    weft.device("cuda").wait()
    assert (other.memory.freed, gpu.synchronized) == (1, [("follow", LEGACY)])


def test_memory_is_not_used_again_if_waiting_for_its_reader_fails(gpu, monkeypatch):
    x = weft.asarray([1.0, 2.0])
    other, where = Exported(x, stream=4096, copy=False), address(x)

    def fails(stream):
        raise weft.RunError("cuda", "a stream is being recorded")

    with monkeypatch.context() as patched:
        patched.setattr(gpu, "follow", fails)
        del x, other
    assert where in gpu.rooms
    weft.device("cuda").wait()
    assert where not in gpu.rooms


def test_a_compiled_function_reads_the_memory_of_another_library(gpu):
    array = filled("float32", (4,))
    other = Foreign(gpu, array)
    x, step = weft.from_dlpack(other), weft.jit(lambda x: x * 2.0)
    for _ in range(3):
        np.testing.assert_array_equal(step(x).numpy(), 2 * array)
    copies = gpu.copies
    step(x)
    assert gpu.copies == copies


@pytest.mark.parametrize("readonly", [False, True])
def test_asarray_copies_what_could_be_written_to(gpu, readonly):
    array = filled("float32", (4,))
    other = Foreign(gpu, array, readonly=readonly)
    x = weft.asarray(other)
    assert (address(x) == other.memory.address) is readonly
    ctypes.memset(other.memory.address, 0, array.nbytes)
    np.testing.assert_array_equal(x.numpy(), 0 * array if readonly else array)
    assert weft.asarray(Foreign(gpu, array), dtype="int32").tolist() == array.tolist()
    assert weft.from_dlpack(Foreign(gpu, array), copy=True).tolist() == array.tolist()


def test_strided_arrays_are_copied_on_the_gpu(gpu):
    base = filled("float32", (4, 6))
    views = {
        "transposed": base.T,
        "sliced": base[1:3, 1:5:2],
        "column": base[:, 2],
        "repeated": np.broadcast_to(base[:1, :1], (3, 2)),
    }
    downloads = gpu.downloads
    for view in views.values():
        other = Foreign(gpu, base, shape=view.shape, strides=view.strides)
        other.view.__array_interface__["data"] = (other.memory.address + view.ctypes.data - base.ctypes.data, False)
        x = weft.from_dlpack(other)
        assert gpu.downloads == downloads
        np.testing.assert_array_equal(x.numpy(), view)
        downloads = gpu.downloads


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"strides": (4, 16)},
            r"copy=False, but a copy is needed: .*strides \(4, 16\) in bytes, and is not contiguous",
        ),
        ({"offset": 4}, "copy=False, but a copy is needed: its memory does not begin at a multiple of 16 bytes"),
    ],
)
def test_copy_false_is_refused_where_a_copy_is_needed(gpu, change, message):
    array = filled("float32", (4, 4))
    with pytest.raises(weft.UserError, match=message):
        weft.from_dlpack(Foreign(gpu, array, **change), copy=False)
    np.testing.assert_array_equal(weft.from_dlpack(Foreign(gpu, array, offset=4)).numpy(), array)


def test_what_cannot_be_imported_is_said(gpu):
    array = filled("float32", (4, 4))
    with pytest.raises(
        weft.UserError,
        match=r"\[from_dlpack\] an array whose elements are a slice of contiguous memory is required, got .*",
    ):
        weft.from_dlpack(Foreign(gpu, array, strides=(8, 4)))  # a sliding window: elements occur twice
    with pytest.raises(weft.UserError, match=r"\[from_dlpack\] there is no dtype .*complex64"):
        weft.from_dlpack(Foreign(gpu, array.astype(np.complex64)))
    with pytest.raises(
        weft.UserError, match=r"\[asarray\] no device of weft has the memory of DLPack's device \(2, 1\)"
    ):
        weft.asarray(Foreign(gpu, array, device=(2, 1)))
    with pytest.raises(weft.UserError, match="copy=False, but a copy is needed to move"):
        weft.from_dlpack(Foreign(gpu, array), device="cpu", copy=False)
    with pytest.raises(weft.UserError, match="copy=False, but a copy is needed to move"):
        weft.from_dlpack(array, device="cuda", copy=False)
    with pytest.raises(
        weft.UserError, match=r"\[asarray\] no device of weft has the memory of DLPack's device \(10, 0\)"
    ):
        weft.asarray(Foreign(gpu, array, device=(10, 0)))  # of AMD
    with pytest.raises(weft.UserError, match=r"\[asarray\] an array in memory is required, got Foreign"):
        weft.asarray(Foreign(gpu, array, device=None))


def test_arrays_of_the_host_stay_there(gpu):
    array = filled("float32", (3,))
    x = weft.from_dlpack(array)
    assert x.device.name == "cpu"
    assert np.shares_memory(x.numpy(), array)
    assert weft.from_dlpack(array, device="cuda").device.name == "cuda"
    assert weft.from_dlpack(Foreign(gpu, array), device="cpu").device.name == "cpu"


# --- exports ------------------------------------------------------------------------------------------------------------------------


class Exported:
    """A tensor's memory as another library sees it. The GPU's memory is the host's: it can be read."""

    def __init__(self, tensor, **settings):
        assert tensor.__dlpack_device__() == (2, 0)

        self.array, self.is_read_only = dlpack.read_view(Exporter(tensor, settings), 0, None)


class Exporter:
    def __init__(self, tensor, settings):
        self.tensor, self.settings = tensor, settings

    def __dlpack__(self, stream, max_version=None, copy=None):
        return self.tensor.__dlpack__(**{"max_version": max_version, **self.settings})


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_exports_are_copies_that_the_consumer_may_write_to(gpu, max_version):
    for dtype in DTYPES:
        array = filled(dtype, (2, 3))
        x = weft.asarray(array)
        other = Exported(x, max_version=max_version)
        assert (other.array.dtype, other.array.tobytes()) == (array.dtype, array.tobytes())
        assert not other.is_read_only
        ctypes.memset(other.array.ctypes.data, 0, other.array.nbytes)
        assert x.numpy().tobytes() == array.tobytes()
        counted()


def test_exports_without_a_copy(gpu):
    for dtype in DTYPES:
        array = filled(dtype, (2, 3))
        x = weft.asarray(array)
        other = Exported(x, copy=False)
        assert other.array.ctypes.data == address(x)
        assert other.is_read_only
        del x
        assert other.array.tobytes() == array.tobytes()  # the memory lives on
        counted()


@pytest.mark.parametrize("stream", [None, 1, 2, 4096])
def test_the_stream_of_the_consumer_waits_for_ours_and_ours_for_its(gpu, stream):
    expected = LEGACY if stream is None else stream
    x = weft.asarray([1.0])
    other = Exported(x, stream=stream, copy=False)
    assert gpu.synchronized == [("precede", expected)]
    del other
    assert gpu.synchronized == [("precede", expected), ("follow", expected)]


def test_streams(gpu):
    x = weft.asarray([1.0])
    Exported(x, stream=-1)
    assert ("precede", -1) not in gpu.synchronized
    for wrong in (0, -2, "1", True):
        with pytest.raises(weft.UserError, match="stream must be None, -1"):
            x.__dlpack__(stream=wrong)


def test_state_that_another_library_holds_is_copied_before_it_is_replaced(gpu):
    total = weft.zeros(3)

    @weft.jit
    def step(x):
        total.assign(total + x)

    one = weft.ones(3)
    step(one)
    before = address(total)
    other = Exported(total, copy=False)
    step(one)
    assert other.array.tolist() == [1.0] * 3
    assert (total.tolist(), address(total) == before) == ([2.0] * 3, False)
    now = address(total)
    step(one)
    assert (total.tolist(), address(total)) == ([3.0] * 3, now)


def test_results_that_another_library_holds_are_not_written_over(gpu):
    double = weft.jit(lambda x: x * 2.0)
    held = [Exported(double(np.full(3, float(i), np.float32)), copy=False) for i in range(5)]
    assert [h.array.tolist() for h in held] == [[2.0 * i] * 3 for i in range(5)]


def test_exports_to_other_devices(gpu):
    x = weft.asarray([1.0, 2.0])
    assert np.from_dlpack(
        type(
            "Host",
            (),
            {"__dlpack__": lambda s, **k: x.__dlpack__(dl_device=(1, 0)), "__dlpack_device__": lambda s: (1, 0)},
        )()
    ).tolist() == [1.0, 2.0]
    with pytest.raises(BufferError, match="cuda"):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="cannot be shared"):
        x.__dlpack__(copy=False)  # without versions nothing can be marked as read-only


def test_filters_in_another_order_are_exported_with_their_strides(gpu):
    x = weft.asarray(filled("float32", (2, 3, 2, 2)))
    value = x.realize()._node.value
    expected = x.numpy()
    value.content = value.device.copied(value, (0, 2, 3, 1))[1]
    downloads = gpu.downloads
    for copy in (None, False):
        other = Exported(x, copy=copy)
        assert other.array.strides == (48, 4, 24, 12)
        np.testing.assert_array_equal(other.array, expected)
    assert gpu.downloads == downloads
