"""Sparse weights: products against dense ones in float64, the same bits for any number of threads and examples, and networks that use them."""

import sys

import numpy as np
import pytest

import weft
from weft import compress, nn
from weft.compiler.cpu.engine import assembly
from weft.compiler.cpu.library import module_of
from weft.compiler.cpu.special.sparse import TABLE
from weft.compiler.cpu.target import compiling_for, find_target
from weft.compiler.thresholds import thresholds
from weft.compress.sparse import MARGIN
from weft.compress.sparse_format import FILLED, STEP, SparseArrays, sparse_codes, sparse_values
from weft.ops.sparse import dense_weight
from weft.testing import close, counted

RNG = np.random.default_rng(0)
# outputs, inputs, block, density
SHAPES = [
    (1, 1, 1, 1.0), (1, 37, 64, 0.5), (9, 1, 8, 0.6), (5, 23, 4, 0.3), (33, 70, 32, 0.0), (7, 300, 128, 0.9),
    (20, 9000, 8192, 0.05), (3, 16, 16, 1.0), (0, 5, 8, 0.5),
]  # fmt: skip


def codes_of(outputs, inputs, density, size):
    """Codes from 0 (pruned) to `size`, with rows that have none and a row that has all."""
    codes = np.where(RNG.random((outputs, inputs)) < density, RNG.integers(1, size + 1, (outputs, inputs)), 0)
    codes[1::3] = 0
    if density and outputs > 3:
        codes[3] = RNG.integers(1, size + 1, inputs)
    return codes


def weights(outputs, inputs, density, size, block):
    """A dense weight, and both sparse forms of it."""
    book = RNG.normal(size=size).astype(np.float32)
    codes = codes_of(outputs, inputs, density, size)
    dense = np.concatenate([np.zeros(1, np.float32), book])[codes]
    return dense, sparse_values(dense, block), sparse_codes(book, codes, block)


def product(x, arrays: SparseArrays, threads=1, dtype=np.float32):
    given = [a.astype(dtype) if a.dtype == np.float32 else a for a in arrays.tensors]
    with weft.knobs.set(threads=threads):
        return weft.jit(lambda x: weft.sparse_matmul(x, *given, block=arrays.block))(x.astype(dtype)).numpy()


@pytest.mark.parametrize(("outputs", "inputs", "block", "density"), SHAPES)
def test_products_are_those_of_the_dense_weight(outputs, inputs, block, density):
    dense, *forms = weights(outputs, inputs, density, 20, block)
    for batch in (1, 3):
        x = RNG.normal(size=(batch, inputs)).astype(np.float32)
        expected = x.astype(np.float64) @ dense.T.astype(np.float64)
        for arrays in forms:
            close(product(x, arrays), expected, weft.float32, slack=10)


@pytest.mark.parametrize("size", [1, TABLE - 1, TABLE, TABLE + 1, 255])
def test_codebooks_of_every_size(size):
    dense, _, arrays = weights(12, 50, 0.7, size, 64)
    x = RNG.normal(size=(1, 50))
    for dtype in (np.float32, np.float64):
        close(product(x, arrays, dtype=dtype), x.astype(dtype) @ dense.T.astype(np.float64), weft.float32, slack=10)


@pytest.mark.parametrize(
    "length",
    [0, 1, STEP - 1, STEP, STEP + 1, FILLED * STEP - 1, FILLED * STEP, 2 * FILLED * STEP + 1],
)
def test_rows_of_every_length(length):
    """Rows on both sides of a whole iteration, filled up and not."""
    codes = np.zeros((4, 200), int)
    codes[:, :length] = RNG.integers(1, 4, (4, length))
    book = np.float32([1.5, -2.0, 0.25])
    dense = np.concatenate([np.zeros(1, np.float32), book])[codes]
    x = RNG.normal(size=(1, 200)).astype(np.float32)
    for arrays in (sparse_values(dense, 256), sparse_codes(book, codes, 256)):
        assert len(arrays.columns) == 4 * (-(-length // STEP) * STEP if length >= FILLED * STEP else length)
        close(product(x, arrays), x.astype(np.float64) @ dense.T, weft.float32, slack=10)


def test_bits_depend_neither_on_threads_nor_on_the_batch():
    _, *forms = weights(45, 500, 0.3, 20, 128)
    x = RNG.normal(size=(33, 500)).astype(np.float32)
    for arrays in forms:
        alone = np.concatenate([product(row[None], arrays) for row in x])
        for batch, threads in ((1, 3), (2, 2), (7, 1), (8, 2), (9, 3), (33, 2)):
            np.testing.assert_array_equal(product(x[:batch], arrays, threads), alone[:batch])
            counted()
        for tile in (1, 3, 1000):
            with thresholds.set(sparse_tile=tile):
                np.testing.assert_array_equal(product(x[:2], arrays, 2), alone[:2])


def test_what_does_not_fit_the_form_counts_as_zero():
    """Damaged tensors: the kernel reads nothing beyond its operands, and agrees with the definition."""
    count, block = 40, 8
    starts = np.array([[0, 5, 3, 90], [-7, 20, 2_000_000_000, -2_000_000_000]], np.int32)
    columns, codes = RNG.integers(0, 1 << 16, count).astype(np.uint16), RNG.integers(0, 256, count).astype(np.uint8)
    x = RNG.normal(size=(2, 11)).astype(np.float32)
    for values, listed in ((RNG.normal(size=count), None), (RNG.normal(size=9), codes)):
        arrays = SparseArrays(values.astype(np.float32), columns, starts, listed, block)
        expected = x.astype(np.float64) @ dense_weight(*arrays, 11).T
        close(product(x, arrays), expected, weft.float32, slack=10)


def test_inputs_that_no_weight_reads_do_not_matter():
    """Rows are filled up with weights of an input that is 0, not of one that could be infinite."""
    codes = np.zeros((3, 100), int)
    codes[:, 1 : FILLED * STEP + 2] = 1
    x = np.full((1, 100), np.inf, np.float32)
    x[:, 1 : FILLED * STEP + 2] = 2.0
    for arrays in (sparse_values(codes.astype(np.float32)), sparse_codes(np.ones(1, np.float32), codes)):
        assert len(arrays.columns) > 3 * (FILLED * STEP + 1)
        np.testing.assert_array_equal(product(x, arrays), 2.0 * (FILLED * STEP + 1))
        counted()


def test_derivatives_by_the_inputs_and_the_values():
    dense, values, codes = weights(7, 30, 0.4, 5, 16)
    x, g = RNG.normal(size=(3, 30)).astype(np.float32), RNG.normal(size=(3, 7)).astype(np.float32)
    for arrays in (values, codes):
        columns, starts, *rest = [weft.asarray(a) for a in arrays.tensors[1:]]
        loss = weft.jit(
            weft.grad(
                lambda x, v, c=columns, s=starts, r=rest: (g * weft.sparse_matmul(x, v, c, s, *r, block=15)).sum(),
                argnums=(0, 1),
            )
        )
        dx, dv = loss(weft.asarray(x), weft.asarray(arrays.values))
        close(dx.numpy(), g @ dense, weft.float32, slack=10)
        whole = g.T.astype(np.float64) @ x
        if arrays.codes is None:
            outputs = np.repeat(np.tile(np.arange(7), 2), np.diff(arrays.starts, axis=1).ravel())
            inputs = arrays.columns + 15 * np.repeat(np.arange(2), np.diff(arrays.starts, axis=1).sum(axis=1))
            close(dv.numpy(), whole[outputs, inputs], weft.float32, slack=10)
        else:
            close(dv.numpy(), [whole[dense == value].sum() for value in arrays.values], weft.float32, slack=50)


def test_many_examples_and_leading_axes():
    dense, _, arrays = weights(6, 20, 0.5, 9, 32)
    given = [weft.asarray(a) for a in arrays.tensors]
    x = RNG.normal(size=(4, 2, 20)).astype(np.float32)
    expected = x.astype(np.float64) @ dense.T
    close(weft.vmap(lambda x: weft.sparse_matmul(x, *given, block=20))(x).numpy(), expected, weft.float32, slack=10)
    close(weft.sparse_matmul(x, *given, block=20).numpy(), expected, weft.float32, slack=10)
    close(weft.sparse_matmul(x[0, 0], *given, block=20).numpy(), expected[0, 0], weft.float32, slack=10)


def test_a_device_without_the_kernel_makes_the_dense_weight(monkeypatch, tmp_path):
    pytest.importorskip("triton")
    pytest.importorskip("fake_gpu").install(monkeypatch)
    dense, values, codes = weights(6, 20, 0.5, 9, 8)
    x = RNG.normal(size=(2, 20)).astype(np.float32)
    with weft.knobs.set(device="cuda", cache=str(tmp_path)):
        for arrays in (values, codes):
            close(product(x, arrays), x.astype(np.float64) @ dense.T, weft.float32, slack=10)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", "armv7", "riscv64", "wasm32"])
def test_kernels_compile_for_other_cpus(target):
    with compiling_for(find_target(target)):
        for form, lanes in (("values", 1), ("few", 1), ("codes", 8)):
            assert assembly(module_of(f"sparse.rows.float32.{lanes}.13.{form}"), find_target(target))
            counted()


# --- networks -----------------------------------------------------------------------------------------------------------------


def pruned(bits=None, density=0.05):
    weft.seed(0)
    net = nn.Sequential(
        nn.Linear(512, 300, activation="relu"), nn.Sequential(nn.Linear(300, 70)), nn.Linear(70, 10, bias=False)
    )
    compress.prune(net, density)
    if bits:
        compress.share(net, bits=bits)
    return net.eval()


@pytest.mark.parametrize("bits", [None, 4, 8])
def test_a_sparse_network_computes_the_same_and_runs_after_loading(tmp_path, bits):
    net = pruned(bits)
    x = RNG.normal(size=(4, 512)).astype(np.float32)
    before = net(x).numpy()
    found = compress.sparse(net, choose="all")
    assert [layer.form for layer in found.layers] == ["codes" if bits else "values"] * 3
    assert all(layer.is_sparse and abs(layer.density - 0.05) < 0.01 for layer in found.layers)
    assert [type(layer) for layer in net.modules() if isinstance(layer, nn.Linear)] == []
    close(net(x).numpy(), before, weft.float32)
    close(weft.jit(net)(x).numpy(), before, weft.float32)
    weft.save(tmp_path / "net.weft", net, weft.zeros((1, 512)))
    compress.pack(net, tmp_path / "packed.weft", weft.zeros((1, 512)))
    for name in ("net.weft", "packed.weft"):
        close(weft.load(tmp_path / name)(x[:1]).numpy(), before[:1], weft.float32)


def test_layers_are_replaced_where_that_is_measured_to_be_faster(monkeypatch):
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).eval()
    compress.prune(net, {"layers.0": 0.1, "layers.1": 0.1, "layers.2": 0.95})
    times = iter([(1.2e-3, 1e-3), (1.05e-3, 1e-3)])  # of the layers that are smaller: on both sides of the margin
    monkeypatch.setattr(sys.modules["weft.compress.sparse"], "_times", lambda functions, x: next(times))
    found = compress.sparse(net)
    assert [(layer.is_sparse, layer.reason) for layer in found.layers] == [
        (True, ""), (False, "not faster"), (False, "not smaller"), (False, "nothing is pruned")
    ]  # fmt: skip
    assert [isinstance(layer, compress.SparseLinear) for layer in net.layers] == [True, False, False, False]
    table = str(found).splitlines()
    assert table[2].split()[-3:] == ["1000", "1.2x", "sparse"]
    assert table[5].endswith("dense: nothing is pruned")
    assert table[-1].split()[-2:] == ["1", "sparse"]
    assert found.as_json()["layers"][0]["name"] == "layers.0"


def test_both_forms_are_measured():
    net = pruned()
    for layer in compress.sparse(net, batch=2).layers:
        assert layer.dense_time > 0
        assert layer.sparse_time > 0
        assert layer.is_sparse == (layer.speedup > MARGIN)


def test_the_layer_before_a_sparse_one_is_trained():
    net = nn.Sequential(nn.Linear(6, 20), nn.Linear(20, 3))
    compress.prune(net, {"layers.1": 0.3})
    x, y = RNG.normal(size=(8, 6)).astype(np.float32), np.arange(8) % 3
    loss = lambda: weft.cross_entropy(net(x), y)  # noqa: E731
    before = weft.gradients(loss(), [net.layers[0].weight])[0].numpy()
    compress.sparse(net, choose="all", skip=["layers.0"])
    assert list(net.named_parameters()) == ["layers.0.weight", "layers.0.bias", "layers.1.bias"]
    close(weft.gradients(loss(), [net.layers[0].weight])[0].numpy(), before, weft.float32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: compress.sparse(nn.Sequential(nn.ReLU())), "[sparse] a network with linear layers is required, got none."),
        (lambda: compress.sparse(nn.Linear(3, 2)), "[sparse] a network of layers is required, got a Linear. Put it in nn.Sequential."),
        (lambda: compress.sparse(pruned(), choose="some"), "[sparse] choose must be 'measured' or 'all', got 'some'."),
        (lambda: compress.sparse(pruned(), batch=0), "[sparse] a batch of 1 or more is required, got 0."),
        (lambda: compress.sparse(pruned(), skip=["layer.0"]), "[sparse] skip names 'layer.0', which is no such layer."),
        (lambda: compress.SparseLinear(sparse_values(np.eye(3)), 3, None)(weft.zeros((1, 4))), "[SparseLinear]"),
    ],
)  # fmt: skip
def test_errors(call, text):
    with pytest.raises(weft.UserError) as error:
        call()
    assert text in str(error.value)


@pytest.mark.parametrize("shared", [False, True], ids=["values", "codes"])
def test_onnx_models_of_sparse_networks_have_dense_weights(shared, tmp_path):
    net = nn.Sequential(nn.Linear(40, 30, activation="relu"), nn.Linear(30, 7)).eval()
    compress.prune(net, 0.2)
    if shared:
        compress.share(net, bits=3)
    weights = [layer.weight.numpy() for layer in net.layers]
    compress.sparse(net, choose="all")
    weft.onnx.save(tmp_path / "net.onnx", net, weft.zeros((1, 40)))
    loaded = weft.onnx.load(tmp_path / "net.onnx")
    x = RNG.normal(size=(3, 40)).astype(np.float32)
    np.testing.assert_allclose(loaded(x).numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)
    kept = loaded.named_parameters()
    for i, weight in enumerate(weights):
        np.testing.assert_array_equal(kept[f"layers.{i}.weight"].numpy(), weight)
