"""Saved programs: they run without the code that built them, at every size, with the same bits, and bad files are rejected."""

import json
import mmap
import subprocess
import sys
import zipfile
import zlib
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import nn, optim, zoo
from weft.io.crc32 import BLOCK, crc32
from weft.saved.dimensions import expression, merge_texts, sample_sizes
from weft.tree import flatten

GOLDEN = Path(__file__).parent / "saved"
Pair = namedtuple("Pair", "first second")


def round_trip(tmp_path, program, inputs, **options):
    weft.save(tmp_path / "net.weft", program, inputs, **options)
    return weft.load(tmp_path / "net.weft")


def same_bits(a, b):
    left, right = flatten(a)[0], flatten(b)[0]
    assert len(left) == len(right)
    for x, y in zip(left, right, strict=True):
        assert getattr(x, "dtype", None) == getattr(y, "dtype", None)
        assert np.shape(x) == np.shape(y)
        assert np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True)


def cnn():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 5)
    )
    net(weft.zeros((2, 3, 8, 8)))
    return net


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("batch", [1, 2, 3, 64])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_network_has_the_same_bits_at_every_batch_size(tmp_path, batch, training, compiled):
    net = cnn()
    again = round_trip(tmp_path, net, np.zeros((2, 3, 8, 8), np.float32))
    x = weft.random.normal((batch, 3, 8, 8))
    net.train(training), again.train(training)
    call, call_again = (weft.jit(net), weft.jit(again)) if compiled else (net, again)
    weft.random.seed(1)
    expected = [call(x).numpy() for _ in range(3)]
    weft.random.seed(1)
    same_bits(expected, [call_again(x).numpy() for _ in range(3)])
    assert list(net.named_tensors()) == list(again.named_tensors())
    same_bits(list(net.named_tensors().values()), list(again.named_tensors().values()))


def test_a_loaded_network_is_trained_further_as_the_original(tmp_path):
    nets = [cnn()]
    nets.append(round_trip(tmp_path, nets[0], np.zeros((2, 3, 8, 8), np.float32)))
    x, y = weft.random.normal((6, 3, 8, 8)), weft.asarray([0, 1, 2, 3, 4, 0])
    losses = []
    for net in nets:
        weft.random.seed(5)
        optimizer = optim.adam(net.train(), 0.01)

        @weft.jit
        def step(x, y, net=net, optimizer=optimizer):
            loss = weft.cross_entropy(net(x), y)
            optimizer.minimize(loss)
            return loss

        losses.append([step(x, y).item() for _ in range(4)])
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_a_training_step_is_saved_with_its_optimizer(tmp_path):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = weft.random.normal((6, 4)), weft.asarray([0, 1, 2, 0, 1, 2])
    net(x)
    optimizer = optim.adam(net, optim.schedules.cosine(0.1, steps=20))

    @weft.jit
    def step(x, y):
        loss = weft.cross_entropy(net(x), y)
        optimizer.minimize(loss)
        return loss

    step(x, y)
    again = round_trip(tmp_path, step, (x, y))
    assert "net.layers.0.weight" in again.named_parameters()
    compiled = weft.jit(again)
    assert [step(x, y).item() for _ in range(3)] == [compiled(x, y).item() for _ in range(3)]
    same_bits(step(x[:2], y[:2]), compiled(x[:2], y[:2]))
    assert again(x[2:5], y[2:5]).item() == pytest.approx(step(x[2:5], y[2:5]).item(), rel=1e-5)  # by other kernels


def test_state_random_streams_and_structures_of_results_are_kept(tmp_path):
    count, stream = weft.zeros((4,)), weft.random.Generator(5)

    def f(x, *, pair):
        count.assign(count + x.sum(axis=0))
        return count, {"noise": x + stream.uniform(x.shape), "three": 3}, [pair, None]

    x, pair = weft.ones((2, 4)), Pair(weft.ones(2), weft.zeros(2))
    again = round_trip(tmp_path, lambda d: f(d["x"], pair=d["pair"]), ({"x": x, "pair": pair},))
    for _ in range(3):
        mine, loaded = f(x, pair=pair), again({"x": x, "pair": pair})
        same_bits(mine, loaded)
        assert loaded[1]["three"] == 3
        assert loaded[2][1] is None
        assert isinstance(loaded[2][0], tuple)
    assert again.named_tensors()["f.count"].tolist() == count.tolist() == [6.0] * 4


def test_free_dimensions_beside_the_batch(tmp_path):
    layer, recurrent = nn.TransformerEncoderLayer(16, 2).eval(), nn.LSTM(5, 7)
    for net, width in ((layer, 16), (recurrent, 5)):
        net(weft.zeros((1, 2, width)))
        again = round_trip(tmp_path, net, weft.TensorSpec(("batch", "time", width))).eval()
        for batch, time in ((1, 1), (3, 6), (2, 33)):
            x = weft.random.normal((batch, time, width))
            same_bits(net.eval()(x), again(x))


def test_results_have_types_in_terms_of_free_dimensions(tmp_path):
    def pairs(x):
        return x.reshape((-1, 4)), {"first": x[:, :1], "count": weft.asarray(3)}

    again = round_trip(tmp_path, pairs, weft.TensorSpec(("batch", "time", 4)))
    assert again.argument_types() == ["float32[batch, time, 4]"]
    assert again.result_types() == ["float32[batch*time, 4]", "int64[]", "float32[batch, 1, 4]"]


def test_a_free_dimension_may_have_a_limit(tmp_path):
    table = weft.random.normal((16, 4))
    again = round_trip(tmp_path, lambda x: x + table[: x.shape[1]], weft.TensorSpec(("batch", "length<=16", 4)))
    x = weft.ones((2, 16, 4))
    same_bits(x + table, again(x))
    with pytest.raises(weft.UserError, match=r"\[Program\] length of up to 16 is required, got 17"):
        again(weft.ones((2, 17, 4)))


def test_keyword_arguments_and_several_inputs(tmp_path):
    again = round_trip(tmp_path, lambda a, b: a @ b, {"a": weft.TensorSpec(("n", 3)), "b": weft.TensorSpec((3, "m"))})
    a, b = weft.random.normal((4, 3)), weft.random.normal((3, 5))
    same_bits(a @ b, again(a=a, b=b))
    with pytest.raises(weft.UserError, match=r"arguments .* are required"):
        again(a, b)


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("name", ["lenet5", "resnet20", "mobilenet_v2", "vit_tiny", "gpt"])
def test_networks_of_the_zoo(tmp_path, name):
    net = zoo.gpt(40, 32, 16, 2, 2) if name == "gpt" else zoo.find(name)()
    shapes = {"lenet5": (1, 28, 28), "resnet20": (3, 32, 32), "mobilenet_v2": (3, 224, 224), "vit_tiny": (3, 224, 224)}
    spec = (
        weft.TensorSpec(("batch", "length<=32"), "int32")
        if name == "gpt"
        else weft.TensorSpec(("batch", *shapes[name]))
    )
    again = round_trip(tmp_path, net, spec).eval()
    x = weft.zeros((2, 9), dtype="int32") + 3 if name == "gpt" else weft.random.normal((1, *shapes[name]))
    same_bits(net.eval()(x), again(x))


def test_another_process_runs_it_without_the_code(tmp_path):
    net = cnn().eval()
    x = weft.random.normal((3, 3, 8, 8))
    np.save(tmp_path / "x.npy", x.numpy())
    weft.save(tmp_path / "net.weft", net, x, labels=list("abcde"))
    code = (
        "import sys, numpy as np, weft; net = weft.load(sys.argv[1] + '/net.weft').eval();"
        "np.save(sys.argv[1] + '/y.npy', weft.jit(net)(np.load(sys.argv[1] + '/x.npy')).numpy()); print(net.labels)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(list("abcde"))
    assert np.array_equal(np.load(tmp_path / "y.npy"), weft.jit(net)(x).numpy())


def test_ordinary_tools_open_the_file(tmp_path):
    weft.save(
        tmp_path / "net.weft", cnn(), np.zeros((2, 3, 8, 8), np.float32), licence="MIT", metrics={"accuracy": 0.9}
    )
    with zipfile.ZipFile(tmp_path / "net.weft") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["manifest.json", "eval.py", "train.py", "weights.safetensors"]
        manifest = json.loads(archive.read("manifest.json"))
        text = archive.read("eval.py").decode()
        archive.extract("weights.safetensors", tmp_path)
    assert manifest["licence"] == "MIT"
    assert manifest["version"] == 1
    assert "float32[batch, 3, 8, 8]" in text
    compile(text, "eval.py", "exec")  # it is Python to read, though nobody runs it
    assert set(weft.io.load(tmp_path / "weights.safetensors")) == set(cnn().named_tensors())


def test_equal_programs_are_equal_files(tmp_path):
    net = cnn()
    for name in ("a", "b"):
        weft.save(tmp_path / name, net, np.zeros((2, 3, 8, 8), np.float32))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_depends_on_the_size_otherwise_is_refused(tmp_path):
    x = weft.ones((4, 2))
    cases = {
        "half": lambda x: x[: x.shape[0] // 2],
        "branch": lambda x: x + 1 if x.shape[0] > 9 else x,
        "square": lambda x: weft.zeros((x.shape[0] ** 2,)) + x.sum(),
    }
    for f in cases.values():
        with pytest.raises(weft.UserError, match="cannot be saved for all sizes of its free dimensions"):
            weft.save(tmp_path / "f.weft", f, x)
        same_bits(f(x), round_trip(tmp_path, f, x, dynamic=False)(x))


def test_a_derivative_written_in_python_is_not_lost_in_silence(tmp_path):
    double = weft.custom_vjp(lambda x: x * 2.0, lambda g, y, x: (g * 5.0,))
    again = round_trip(tmp_path, lambda x: double(x) + 1.0, weft.ones((2,)))
    assert again(weft.ones(2)).tolist() == [3.0, 3.0]
    with pytest.raises(weft.UserError, match="cannot be differentiated"):
        weft.grad(lambda x: again(x).sum())(weft.ones(2))


def test_clear_errors_at_saving_and_calling(tmp_path):
    with pytest.raises(weft.UserError, match=r"\[save\] inputs must be arrays"):
        weft.save(tmp_path / "f.weft", lambda x: x, 0.1)
    with pytest.raises(weft.UserError, match=r"\[TensorSpec\] a size is a number"):
        weft.TensorSpec((-1,))
    with pytest.raises(weft.UserError, match="facts about a program must be JSON"):
        weft.save(tmp_path / "f.weft", lambda x: x, weft.ones(2), metrics={"a": object()})
    assert not (tmp_path / "f.weft").exists()
    again = round_trip(tmp_path, cnn(), np.zeros((2, 3, 8, 8), np.float32))
    for wrong in (np.zeros((2, 3, 9, 8), np.float32), np.zeros((2, 3, 8, 8)), np.zeros((3, 8, 8), np.float32)):
        with pytest.raises(weft.UserError, match=r"\[Program\] argument 0 must be float32\[batch, 3, 8, 8\]"):
            again(wrong)


def changed(path, change):
    """The file at `path` with entries changed by a function of their name and bytes."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in change(entries).items():
            archive.writestr(name, content)
    return path


def with_manifest(**new):
    return lambda e: e | {"manifest.json": json.dumps(json.loads(e["manifest.json"]) | new).encode()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_manifest(version=4, weft="99.0"), "version 4 of the format; this weft reads up to version 3. Install a newer weft"),
        (with_manifest(ops={"conv": 7}), "has in an older version: conv"),
        (with_manifest(ops={"warp_drive": 1}), "does not have: warp_drive"),
        (with_manifest(format="zip"), "the format is 'zip'"),
        (with_manifest(functions={}), "'functions' is empty"),
        (lambda e: {n: c for n, c in e.items() if n != "weights.safetensors"}, "weights.safetensors is missing, which manifest.json names"),
        (lambda e: e | {"weights.safetensors": e["weights.safetensors"][:-4]}, "not where its size says"),
        (lambda e: e | {"manifest.json": b"{"}, "the JSON is wrong"),
    ],
)  # fmt: skip
def test_damaged_and_newer_files_are_refused(tmp_path, change, message):
    weft.save(tmp_path / "net.weft", cnn(), np.zeros((2, 3, 8, 8), np.float32))
    with pytest.raises(weft.RunError, match=message):
        weft.load(changed(tmp_path / "net.weft", change))


def test_a_stream_without_its_state_is_refused(tmp_path):
    weft.save(tmp_path / "net.weft", lambda x: x + weft.random.normal(x.shape), np.zeros(3, np.float32))

    def rename(entries):
        return entries | {"manifest.json": entries["manifest.json"].replace(b'"weft.random"', b'"weft.ranom"')}

    with pytest.raises(weft.RunError, match="manifest.json names weft.ranom.key"):
        weft.load(changed(tmp_path / "net.weft", rename))


def test_types_that_differ_between_manifest_and_graph_are_refused(tmp_path):
    weft.save(tmp_path / "net.weft", nn.Linear(4, 2), np.zeros((3, 4), np.float32))

    def wider(entries):
        return entries | {"manifest.json": entries["manifest.json"].replace(b"float32[batch, 4]", b"float32[batch, 7]")}

    program = weft.load(changed(tmp_path / "net.weft", wider))
    with pytest.raises(weft.RunError, match=r"net.weft is damaged: argument 0 is float32\[batch, 7\] in manifest.json"):
        program(np.zeros((3, 4), np.float32))


def test_texts_are_parsed_and_never_executed(tmp_path):
    weft.save(tmp_path / "net.weft", cnn(), np.zeros((2, 3, 8, 8), np.float32))
    evil = b'__import__("os").mkdir("%s")\n' % str(tmp_path / "evil").encode()
    net = weft.load(changed(tmp_path / "net.weft", lambda e: e | {"eval.py": evil + e["eval.py"]})).eval()
    with pytest.raises(weft.RunError, match=r"eval\.py in .* is damaged: line 1"):
        net(np.zeros((2, 3, 8, 8), np.float32))
    assert not (tmp_path / "evil").exists()


def test_a_flipped_bit_is_noticed(tmp_path):
    weft.save(tmp_path / "net.weft", cnn(), np.zeros((2, 3, 8, 8), np.float32))
    content = bytearray((tmp_path / "net.weft").read_bytes())
    content[len(content) - 2000] ^= 1
    (tmp_path / "net.weft").write_bytes(content)
    with pytest.raises(weft.RunError, match="checksum of weights.safetensors is wrong"):
        weft.load(tmp_path / "net.weft")


@pytest.mark.parametrize("size", [0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_the_checksum_of_many_threads_is_that_of_zlib(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert crc32(data) == zlib.crc32(data)


def test_weights_are_mapped_and_training_does_not_change_the_file(tmp_path):
    net = round_trip(tmp_path, nn.Linear(4, 3), np.zeros((2, 4), np.float32))
    before = (tmp_path / "net.weft").read_bytes()
    owner = net.weight.numpy()
    while isinstance(owner, np.ndarray):
        assert not owner.flags.owndata
        owner = owner.base
    assert isinstance(owner.obj if isinstance(owner, memoryview) else owner, mmap.mmap)
    optimizer = optim.sgd(net.train(), 0.1)
    weft.jit(lambda x: optimizer.minimize(net(x).sum()))(weft.ones((2, 4)))
    assert (tmp_path / "net.weft").read_bytes() == before
    assert not np.array_equal(net.weight.numpy(), weft.load(tmp_path / "net.weft").weight.numpy())


def test_entries_that_other_tools_packed_are_aligned(tmp_path):
    net = nn.Linear(4, 3)
    weft.save(tmp_path / "net.weft", net, np.zeros((2, 4), np.float32))
    with zipfile.ZipFile(tmp_path / "net.weft") as old, zipfile.ZipFile(tmp_path / "other.weft", "w") as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), old.read(name))
    again = weft.load(tmp_path / "other.weft")
    assert again.weight.numpy().ctypes.data % 4 == 0
    same_bits(again.weight, net.weight)


def test_compressed_entries_are_refused(tmp_path):
    weft.save(tmp_path / "net.weft", cnn(), np.zeros((2, 3, 8, 8), np.float32))
    with zipfile.ZipFile(tmp_path / "net.weft") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "net.weft", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(weft.RunError, match="is compressed"):
        weft.load(tmp_path / "net.weft")


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.weft")), ids=lambda p: p.stem)
def test_files_of_earlier_versions_load_for_ever(path):
    program = weft.load(path).eval()
    expected = np.load(path.with_suffix(".npz"))
    inputs = [expected[f"x{i}"] for i in range(len(expected.files) - 1)]
    assert np.allclose(program(*inputs).numpy(), expected["y"], rtol=1e-5, atol=1e-6)


def test_there_are_files_of_every_version():
    assert {p.stem.rpartition("-")[2] for p in GOLDEN.glob("*.weft")} == {"v1", "v2", "v3"}


def test_expressions_of_sizes():
    points = sample_sizes({"n": None})
    forms = {
        "n": lambda n: n, "2*n + 1": lambda n: 2 * n + 1, "-n": lambda n: -n, "(n) / 1": float,
        "-(-(18*n) // 4)": lambda n: -(-18 * n // 4), "(n) / (n - 1)": lambda n: n / (n - 1), "1 / (49*n)": lambda n: 1 / (49 * n), "(n) / 2": lambda n: 0.5 * n,
    }  # fmt: skip
    for text, form in forms.items():
        assert expression([repr(form(at["n"])) for at in points], points) == text
    for form in (lambda n: n * n, lambda n: n // 2, lambda n: n // 4, lambda n: n % 3, lambda n: n**-0.5):
        assert expression([repr(form(at["n"])) for at in points], points) is None
    both = sample_sizes({"a": None, "b": 16})
    assert expression([repr(at["a"] * at["b"] - at["b"]) for at in both], both) == "a*b - b"
    assert merge_texts([f"x1 = f({at['n']})  # t[{at['n']}]" for at in points], points) == "x1 = f(n)  # t[n]"
