"""DLPack with PyTorch, CuPy and JAX on one GPU: shared memory, streams that wait for each other, memory that is given back."""

import gc
from typing import Any

import numpy as np
import pytest
from gpu_tools import DEVICE, IS_GPU, wait

import weft
from weft.testing import counted

if not IS_GPU:
    pytest.skip("memory of a GPU is shared here", allow_module_level=True)
torch: Any = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch has no GPU", allow_module_level=True)
GPU = torch.device("cuda", int((DEVICE.split(":") + ["0"])[1]))
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
LONG = 200_000_000  # cycles of a kernel that does nothing: about 0.1 s


def address(x: weft.Tensor) -> int:
    value: Any = x.realize()._node.value
    return int(value.content.memory.address)


def shared(x: weft.Tensor) -> Any:
    """The memory of a tensor as one of PyTorch."""
    try:
        return torch.from_dlpack(x, copy=False)
    except TypeError:  # versions before 2.9
        stream = torch.cuda.current_stream(GPU).cuda_stream or 1
        return torch.from_dlpack(x.__dlpack__(copy=False, max_version=(1, 0), stream=stream))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_torch_are_shared(dtype: str) -> None:
    for shape in ((), (0, 3), (5,), (33, 65)):
        t = torch.randint(0, 2, shape, device=GPU).to(getattr(torch, dtype))
        x = weft.from_dlpack(t)
        assert (x.dtype.name, x.shape, str(x.device)) == (dtype, shape, DEVICE)
        assert not t.numel() or address(x) == t.data_ptr()
        np.testing.assert_array_equal(x.astype("float32").numpy(), t.float().cpu().numpy())
        assert weft.asarray(t).tolist() == t.tolist()
        back = torch.from_dlpack(x)
        assert (back.dtype, back.tolist()) == (t.dtype, t.tolist())
        assert not t.numel() or back.data_ptr() != t.data_ptr()
        counted(4)


def test_strided_tensors_are_copied_on_the_gpu() -> None:
    base = torch.arange(24.0, device=GPU).reshape(4, 6)
    image = torch.randn(2, 3, 4, 5, device=GPU).to(memory_format=torch.channels_last)
    for view in (base.T, base[1:3, 1:5:2], base[:, 2], base[:1].expand(3, 6), image, base.flatten()[1:]):
        np.testing.assert_array_equal(weft.from_dlpack(view).numpy(), view.cpu().numpy())
        counted()


def test_work_of_torch_is_waited_for() -> None:
    side = torch.cuda.Stream(GPU)
    with torch.cuda.stream(side):
        t = torch.zeros(1 << 20, device=GPU)
        torch.cuda._sleep(LONG)
        t += 1
        x = weft.from_dlpack(t)
    assert weft.jit(lambda x: x.sum())(x).item() == 1 << 20


def test_torch_waits_for_our_work() -> None:
    step = weft.jit(lambda x: (x @ x) * 0.0 + 2.0)
    x = weft.ones((4096, 4096))
    for _ in range(5):
        y = shared(step(x))
        assert float(y.sum()) == 2.0 * 4096 * 4096


def test_memory_is_given_back() -> None:
    gc.collect()
    before = torch.cuda.memory_allocated(GPU)
    x = weft.from_dlpack(torch.ones(1 << 20, device=GPU))
    total = (x * 2.0).sum()
    assert torch.cuda.memory_allocated(GPU) > before
    assert total.item() == 2 << 20
    del x, total
    gc.collect()
    wait()
    assert torch.cuda.memory_allocated(GPU) == before


def test_memory_that_torch_still_reads_is_not_used_again() -> None:
    fill = weft.jit(lambda x: weft.zeros((1 << 22,)) + x)
    for i in range(20):
        t = shared(fill(float(i)))
        torch.cuda._sleep(LONG // 10)
        double = t * 2
        del t  # given back while PyTorch's kernel has not begun
        fill(-1.0)
        assert float(double.min()) == float(double.max()) == 2.0 * i


def test_state_that_torch_holds_is_copied_before_it_is_updated() -> None:
    total = weft.zeros(1000)

    @weft.jit
    def step() -> None:
        total.assign(total + 1.0)

    step()
    step()
    held = shared(total)
    assert held.data_ptr() == address(total)
    step()
    assert (float(held.max()), float(total.max().item())) == (2.0, 3.0)
    assert held.data_ptr() != address(total)


@pytest.mark.parametrize("library", ["cupy", "jax"])
def test_other_libraries(library: str) -> None:
    module: Any = pytest.importorskip(library)
    numpy_like = module if library == "cupy" else pytest.importorskip("jax.numpy")
    if library == "jax" and module.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    read = module.from_dlpack if library == "cupy" else module.dlpack.from_dlpack
    array = numpy_like.arange(1000, dtype="float32") * 2
    x = weft.from_dlpack(array)
    assert str(x.device) == DEVICE
    assert x.sum().item() == 999_000.0
    back = read(x + 1.0)
    assert float(back.sum()) == 1_000_000.0
