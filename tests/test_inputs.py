"""The layers at the entrance of a network, against NumPy; most of those on tensors have rows in test_layers.py."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

import weft
from weft import nn
from weft.testing import check_grads, close, counted

FLOATS = [weft.bfloat16, weft.float16, weft.float32, weft.float64]
X = np.random.default_rng(1).normal(3.0, 2.0, (6, 3, 4))


@pytest.fixture
def plain():
    with weft.knobs.set(device="reference"):
        yield


def said(call):
    with pytest.raises(weft.UserError) as error:
        call()
    return f"[{error.value.where}] {error.value.message}"


# --- Normalization and Discretization: what test_layers.py has no rows for ---------------------------------------------------


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_normalization_learns_mean_and_std(axis):
    layer = nn.Normalization(axis=axis).adapt(X)
    others = tuple(i for i in range(3) if axis is None or i != axis % 3)
    mean, std = X.mean(others, keepdims=True), X.std(others, keepdims=True)
    close(layer.mean.numpy(), mean.squeeze(), weft.float32)
    close(layer.std.numpy(), std.squeeze(), weft.float32)
    close(layer(weft.asarray(X)).numpy(), (X - mean) / std, weft.float32)
    assert set(layer.named_state()) == {"mean", "std"}
    assert not layer.parameters()


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normalization_in_every_float(dtype):
    layer = nn.Normalization(mean=[1.0, 2.0, 3.0], std=[0.5, 1.0, 0.0], eps=0.25).astype(dtype)
    y = layer(weft.asarray(X, dtype=dtype))
    assert y.dtype is dtype
    divisor = np.array([0.5, 1.0, 0.25]).reshape(3, 1)  # the third std is below eps
    x = weft.asarray(X, dtype=dtype).numpy().astype(np.float64)
    close(y.numpy(), (x - np.array([1.0, 2.0, 3.0]).reshape(3, 1)) / divisor, dtype)


@pytest.mark.usefixtures("plain")
def test_normalization_of_whole_numbers_and_with_numbers_for_all():
    image = np.array([[[0, 128], [255, 1]]], np.uint8)
    y = nn.Normalization(axis=None, mean=100.0, std=50.0)(image)
    assert y.dtype is weft.float32
    close(y.numpy(), (image.astype(np.float64) - 100.0) / 50.0, weft.float32)
    layer = nn.Normalization(mean=1.0)
    close(layer(X).numpy(), X - 1.0, weft.float32)  # one number, as often as there are channels
    assert layer.mean.shape == (3,)
    close(nn.Normalization(3)(X).numpy(), X, weft.float32)  # nothing learned, nothing changed


@pytest.mark.usefixtures("plain")
def test_a_feature_that_is_constant_becomes_0():
    data = np.array([[0.1, 1.0], [0.1, 3.0]], np.float32)
    close(nn.Normalization().adapt(data)(data).numpy(), [[0.0, -1.0], [0.0, 1.0]], weft.float32)


@pytest.mark.usefixtures("plain")
def test_normalization_differentiates_and_is_saved():
    layer = nn.Normalization().adapt(X)
    wide = nn.Normalization(3).load(layer.named_tensors()).astype(weft.float64)
    check_grads(wide, [X], rng=np.random.default_rng(2), order=1)
    twin = nn.Normalization(3).load({n: t.numpy() for n, t in layer.named_tensors().items()})
    assert np.array_equal(twin(X).numpy(), layer(X).numpy())
    assert repr(layer) == "Normalization(axis=1, eps=1e-07, mean: [3], std: [3])"


def test_a_compiled_step_sees_what_is_learned_later():
    layer = nn.Normalization(3)
    model = weft.jit(layer)
    x = weft.asarray(X, dtype=weft.float32)
    close(model(x).numpy(), X, weft.float32)
    layer.adapt(X)
    mean, std = X.mean((0, 2), keepdims=True), X.std((0, 2), keepdims=True)
    close(model(x).numpy(), (X - mean) / std, weft.float32)


EDGES = [-1.0, 0.5, 0.75, 2.0]


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("dtype", [*FLOATS, weft.int32], ids=str)
def test_discretization_counts_the_edges_below(dtype):
    values = np.array([[-9, -1, -0.5], [0.5, 0.625, 0.75], [1.5, 2, 99]])
    x = weft.asarray(values).astype(dtype)
    y = nn.Discretization(EDGES)(x)
    assert y.dtype is weft.int64
    close(y.numpy(), np.searchsorted(EDGES, x.numpy().astype(np.float64), side="right"), weft.int64)


@pytest.mark.usefixtures("plain")
def test_discretization_learns_bins_that_are_equally_full():
    data = np.random.default_rng(3).gamma(2.0, size=1000)
    layer = nn.Discretization(bins=4)
    assert layer([1.0, float("nan")]).tolist() == [0, 0]
    assert np.bincount(layer.adapt(data)(data).numpy()).tolist() == [250] * 4
    close(layer.edges.numpy(), np.quantile(data, [0.25, 0.5, 0.75]), weft.float32)
    assert np.bincount(layer.adapt(data, 10)(data).numpy()).tolist() == [100] * 10
    assert repr(layer) == "Discretization(edges: [9])"
    twin = nn.Discretization(bins=10).load({"edges": layer.edges.numpy()})
    assert np.array_equal(twin(data).numpy(), layer(data).numpy())
    assert layer.astype(weft.float16).adapt(data, 3).edges.dtype is weft.float16
    counted(3)


def test_inputs_of_a_network_compile():
    model = nn.Sequential(nn.Discretization(EDGES), nn.CategoryEncoding(5, "count"))
    x = weft.asarray(X[:, 0], dtype=weft.float32)
    expected = np.stack([np.bincount(row, minlength=5) for row in np.searchsorted(EDGES, X[:, 0], side="right")])
    close(weft.jit(model)(x).numpy(), expected, weft.float32)
    close(model(x).numpy(), expected, weft.float32)


# --- images and categories ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plain")
def test_resizing_by_hand():
    x = weft.asarray([[[0.0, 10.0, 20.0, 30.0]]])
    assert nn.Resizing(2)(x).tolist() == [[[5.0, 25.0]]]
    assert nn.Resizing(8)(x).tolist() == [[[0.0, 2.5, 7.5, 12.5, 17.5, 22.5, 27.5, 30.0]]]
    assert nn.Resizing(3, "nearest")(x).tolist() == [[[0.0, 20.0, 30.0]]]
    assert nn.Resizing(1)(x).tolist() == [[[15.0]]]
    labels = nn.Resizing(2, "nearest")(np.arange(4, dtype=np.uint8).reshape(1, 1, 4))
    assert labels.dtype is weft.uint8
    assert labels.tolist() == [[[1, 3]]]
    assert nn.Resizing(2)(np.arange(4, dtype=np.uint8).reshape(1, 1, 4)).tolist() == [[[0.5, 2.5]]]
    counted(7)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("scale", [2, 3])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_resizing_to_a_multiple_is_upsample(mode, scale):
    x = weft.asarray(X[:2, :, :, None] * X[0, 0, :2])
    close(nn.Resizing((4 * scale, 2 * scale), mode)(x).numpy(), nn.Upsample(scale, mode)(x).numpy(), weft.float64)


@pytest.mark.usefixtures("plain")
def test_what_is_not_finite_stays_where_it_is():
    x = weft.asarray([[[1.0, 2.0, 3.0, 4.0, 5.0, float("inf")]]])
    assert nn.Resizing(3)(x).tolist() == [[[1.5, 3.5, float("inf")]]]


@pytest.mark.usefixtures("plain")
def test_resizing_differentiates_twice():
    layer = nn.Resizing((5, 2))
    check_grads(lambda x: layer(x) * layer(x), [X[:1, :, :, None] * X[1, 0]], rng=np.random.default_rng(4))


@pytest.mark.usefixtures("plain")
def test_the_middle_of_an_image():
    x = np.arange(20).reshape(1, 1, 4, 5)
    assert nn.CenterCrop((2, 2))(x).tolist() == [[[[6, 7], [11, 12]]]]
    assert nn.CenterCrop((4, 5))(x).tolist() == x.tolist()
    counted(2)


@pytest.mark.usefixtures("plain")
def test_categories_outside_are_none():
    x = np.array([[0, 2, 2], [-1, 3, 1]])
    assert nn.CategoryEncoding(3, "multi_hot")(x).tolist() == [[1, 0, 1], [0, 1, 0]]
    assert nn.CategoryEncoding(3, "count")(x).tolist() == [[1, 0, 2], [0, 1, 0]]
    assert nn.CategoryEncoding(3, "one_hot")(x[:, 1]).tolist() == [[0, 0, 1], [0, 0, 0]]
    counted(3)


# --- texts -------------------------------------------------------------------------------------------------------------------


def test_string_lookup():
    lookup = nn.StringLookup(["b", "a"])
    ids = lookup(np.array([["a", "b"], ["c", "a"]]))
    assert ids.dtype is weft.int64
    assert ids.tolist() == [[2, 1], [0, 2]]
    assert lookup.invert(ids) == [["a", "b"], ["[unknown]", "a"]]
    assert lookup("a").tolist() == 2
    assert lookup.invert(1) == "b"
    assert lookup([]).shape == (0,)
    assert (lookup.size(), lookup.vocabulary()) == (3, ["b", "a"])
    assert repr(lookup) == "StringLookup(vocabulary of 2, unknown=1)"
    counted(8)


def test_lookups_learn_the_most_frequent_first():
    assert nn.StringLookup().adapt(["b", "a", "c", "c", "a"]).vocabulary() == ["a", "c", "b"]
    assert nn.IntegerLookup().adapt(np.array([[5, -3], [5, 10]])).vocabulary() == [5, -3, 10]
    assert nn.IntegerLookup().adapt(weft.asarray([7, 7, 1])).vocabulary() == [7, 1]
    assert nn.StringLookup().adapt(w for w in "xyx").vocabulary() == ["x", "y"]
    counted(4)


def test_integer_lookup():
    lookup = nn.IntegerLookup([100, -7], unknown=0)
    assert lookup([[np.int64(-7)], [100]]).tolist() == [[1], [0]]
    assert lookup.invert(weft.asarray([1, 0])) == [-7, 100]
    assert nn.IntegerLookup([10**30])([10**30, 3]).tolist() == [1, 0]
    assert nn.IntegerLookup([4]).invert([[0, 1]]) == [[None, 4]]
    counted(4)


def test_unknown_words_spread_over_their_ids():
    lookup = nn.StringLookup(["a"], unknown=4)
    ids = lookup([f"word {i}" for i in range(100)]).numpy()
    assert set(ids.tolist()) == {0, 1, 2, 3}
    assert lookup(["a"]).tolist() == [4]
    counted(2)


def test_hashing_is_the_same_everywhere():
    words = ["cat", "dog", "é", ""]
    digests = [hashlib.blake2b(w.encode(), digest_size=8, key=(9).to_bytes(8, "little")).digest() for w in words]
    ids = nn.Hashing(1000, salt=9)(words)
    assert ids.tolist() == [int.from_bytes(d, "little") % 1000 for d in digests]
    assert ids.dtype is weft.int64
    assert nn.Hashing(1000, salt=8)(words).tolist() != ids.tolist()
    assert nn.Hashing(1000)(np.array([[12], [-3]])).tolist() == nn.Hashing(1000)([["12"], ["-3"]]).tolist()
    program = "from weft import nn; print(nn.Hashing(1000, salt=9)(['cat', 'dog', 'é', '']).tolist())"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(ids.tolist())
    counted(5)


def test_texts_as_rows_of_ids():
    texts = nn.TextVectorization(["the", "cat", "sat"], length=4)
    ids = texts(["The cat sat: «the» cat!", "a Cat", "…"])
    assert ids.dtype is weft.int64
    assert ids.tolist() == [[2, 3, 4, 2], [1, 3, 0, 0], [0, 0, 0, 0]]
    assert texts.invert(ids) == ["the cat sat the", "[unknown] cat", ""]
    assert texts(["cat"] * 2 + ["the the cat sat sat"]).shape == (3, 4)
    assert texts.size() == 5
    assert nn.TextVectorization(["a"])(["a a", "a"]).tolist() == [[2, 2], [2, 0]]
    assert repr(texts) == (
        "TextVectorization(vocabulary of 3, length=4, split=words, standardize=lower_and_strip_punctuation)"
    )
    counted(7)


def test_texts_learn_their_vocabulary():
    examples = ["B a, b.", "c A b", "d"]
    assert nn.TextVectorization().adapt(examples).vocabulary() == ["b", "a", "c", "d"]
    assert nn.TextVectorization(most=2).adapt(examples).vocabulary() == ["b", "a"]
    kept = nn.TextVectorization(standardize=None).adapt(["B a, b.", "B"])
    assert kept.vocabulary() == ["B", "a,", "b."]
    letters = nn.TextVectorization(split="characters").adapt(["abba c"])
    assert letters.vocabulary() == ["a", "b", " ", "c"]
    assert letters.invert(letters(["cab"])) == ["cab"]
    assert nn.TextVectorization().adapt(["हिन्दी, ok_y"]).vocabulary() == ["oky", "हिन्दी"]  # marks belong to letters
    counted(6)


def test_a_vocabulary_is_kept_in_a_file(tmp_path):
    path = tmp_path / "words.json"
    nn.StringLookup(["é\n", "b"]).write(path)
    assert nn.StringLookup().read(path).vocabulary() == ["é\n", "b"]
    assert nn.TextVectorization().read(path)(["b"]).tolist() == [[3]]
    nn.IntegerLookup([5, -1]).write(path)
    assert nn.IntegerLookup().read(path)([-1]).tolist() == [2]
    assert "[StringLookup.read] strings" in said(lambda: nn.StringLookup().read(path))
    path.write_text('{"a": 1}')
    assert "[StringLookup.read] a list in JSON is required" in said(lambda: nn.StringLookup().read(path))
    counted(5)


def test_a_vocabulary_that_cannot_be_read_or_written(tmp_path):
    path = tmp_path / "words.json"
    for damaged in (b'["a"', b"\xff", b"[" * 100_000):
        path.write_bytes(damaged)
        with pytest.raises(weft.RunError, match=r"\[StringLookup.read\] .*words.json cannot be read"):
            nn.StringLookup().read(path)
    with pytest.raises(weft.RunError, match="cannot be read: Is a directory"):
        nn.StringLookup().read(tmp_path)
    with pytest.raises(weft.RunError, match="cannot be written: Is a directory"):
        nn.StringLookup(["a"]).write(tmp_path)
    counted(5)


def test_texts_into_a_network():
    texts = nn.TextVectorization(length=3).adapt(["a b", "b c"])
    embed = nn.Embedding(texts.size(), 2)
    expected = embed.weight.numpy()[texts(["b z"]).numpy()]
    close(weft.jit(embed)(texts(["b z"])).numpy(), expected, weft.float32)


# --- what is said when they are used wrongly ----------------------------------------------------------------------------------

ERRORS = [
    (lambda: nn.Rescaling(float("nan")), "[Rescaling] the scale must be finite, got nan."),
    (lambda: nn.Rescaling(2.0)([True]), "[Rescaling] a numeric dtype is required, got bool"),
    (lambda: nn.Normalization(0), "[Normalization] the number of features must be an int of 1 or more, got 0."),
    (lambda: nn.Normalization(eps=0.0), "[Normalization] the eps must be above 0, got 0.0."),
    (lambda: nn.Normalization(std=[1.0, -1.0]), "[Normalization] a std of 0 or more is required, got [1.0, -1.0]."),
    (lambda: nn.Normalization(2, mean=[1.0, 2.0, 3.0]), "or one for each feature along an axis, are required, got features=2"),
    (lambda: nn.Normalization(axis=None, mean=[1.0]), "or one for each feature along an axis, are required"),
    (lambda: nn.Normalization(mean=[[1.0]]), "or one for each feature along an axis, are required"),
    (lambda: nn.Normalization(2)(X), "[Normalization] an input with 2 entries along axis 1 is required, got shape (6, 3, 4)."),
    (lambda: nn.Normalization(axis=3)(X), "[Normalization] axis 3 does not exist in a tensor of 3 dimensions."),
    (lambda: nn.Normalization(2).adapt(X), "[Normalization.adapt] 2 entries along axis 1 are required, got 3."),
    (lambda: nn.Normalization().adapt(X[:0]), "[Normalization.adapt] finite examples, at least one, are required"),
    (lambda: nn.Normalization().adapt(X * np.inf), "[Normalization.adapt] finite examples, at least one, are required"),
    (lambda: nn.Resizing(0), "[Resizing] the size must be an int of 1 or more"),
    (lambda: nn.Resizing(2, "cubic"), "[Resizing] the mode must be 'bilinear' or 'nearest', got 'cubic'."),
    (lambda: nn.Resizing(2)(X[0]), "[Resizing] an input (batch, channels, spatial...) is required, got shape (3, 4)."),
    (lambda: nn.Resizing((2, 2))(X), "[Resizing] the size must be an int of 1 or more, or 1 of them, got (2, 2)."),
    (lambda: nn.CenterCrop(-1), "[CenterCrop] the size must be an int of 1 or more"),
    (lambda: nn.CenterCrop(5)(X), "[CenterCrop] an image of at least (5,) is required, got shape (6, 3, 4). Resize it first."),
    (lambda: nn.CategoryEncoding(0), "[CategoryEncoding] the number of categories must be an int of 1 or more, got 0."),
    (lambda: nn.CategoryEncoding(2, "hot"), "the mode must be 'one_hot', 'multi_hot' or 'count', got 'hot'."),
    (lambda: nn.CategoryEncoding(2)([1.0]), "[CategoryEncoding] an integer dtype is required, got float32"),
    (lambda: nn.CategoryEncoding(2, "count")(1), "[CategoryEncoding] an input (..., categories) is required, got shape ()."),
    (lambda: nn.Discretization(), "[Discretization] either edges or bins are required, got None and None."),
    (lambda: nn.Discretization([1.0, 1.0]), "[Discretization] edges, each above the one before, are required"),
    (lambda: nn.Discretization([]), "[Discretization] edges, each above the one before, are required, got []."),
    (lambda: nn.Discretization(bins=1), "[Discretization] 2 or more bins are required, got 1."),
    (lambda: nn.Discretization([1.0]).adapt([]), "[Discretization.adapt] finite examples, at least one, are required"),
    (lambda: nn.StringLookup(["a", "a"]), "[StringLookup] a vocabulary has each entry once, got 'a' again."),
    (lambda: nn.StringLookup([1]), "[StringLookup] strings, in lists of one length, are required, got int."),
    (lambda: nn.StringLookup(unknown=-1), "[StringLookup] the number of unknown ids must be an int of 0 or more, got -1."),
    (lambda: nn.StringLookup(["a"], unknown=0)(["b"]), "[StringLookup] 'b' is not in the vocabulary, and unknown is 0."),
    (lambda: nn.StringLookup()([["a"], ["b", "c"]]), "[StringLookup] strings, in lists of one length, are required, got list."),
    (lambda: nn.StringLookup()([b"a"]), "[StringLookup] strings, in lists of one length, are required, got bytes."),
    (lambda: nn.StringLookup(["a"]).invert([2]), "[StringLookup.invert] ids from 0 to 1 are required, got [2]."),
    (lambda: nn.StringLookup(["a"]).invert([-1]), "[StringLookup.invert] ids from 0 to 1 are required, got [-1]."),
    (lambda: nn.IntegerLookup()([1.5]), "[IntegerLookup] integers, in lists of one length, are required, got float."),
    (lambda: nn.IntegerLookup()([True]), "[IntegerLookup] integers, in lists of one length, are required, got bool."),
    (lambda: nn.Hashing(0), "[Hashing] the number of bins must be an int of 1 or more, got 0."),
    (lambda: nn.Hashing(2, salt=-1), "[Hashing] the salt must be an int of 0 or more, got -1."),
    (lambda: nn.Hashing(2, salt=2**64), "[Hashing] a salt below 2**64 is required"),
    (lambda: nn.Hashing(2)([1.5]), "[Hashing] strings or integers, in lists of one length, are required, got float."),
    (lambda: nn.TextVectorization(most=0), "the number of most frequent words must be an int of 1 or more, got 0."),
    (lambda: nn.TextVectorization(length=0), "[TextVectorization] the length must be an int of 1 or more, got 0."),
    (lambda: nn.TextVectorization(split="lines"), "the split must be 'words' or 'characters', got 'lines'."),
    (lambda: nn.TextVectorization(standardize="lower"), "must be 'lower_and_strip_punctuation' or None, got 'lower'."),
    (lambda: nn.TextVectorization()([3]), "[TextVectorization] strings, in lists of one length, are required, got int."),
    (lambda: nn.TextVectorization().invert([[2]]), "[TextVectorization.invert] ids from 0 to 1 are required, got [[2]]."),
]  # fmt: skip


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(("call", "text"), ERRORS, ids=[text[:50] for _, text in ERRORS])
def test_what_is_refused(call, text):
    assert text in said(call)
    counted()
