"""What a row of test_layers.py cannot say: statistics that run, noise, modes in compiled functions, containers, first values."""

import numpy as np
import pytest

import weft
from weft import nn
from weft.testing import close, counted, generator

F32, F64 = weft.float32, weft.float64


@pytest.fixture(autouse=True)
def _same_seed():
    weft.seed(3)


def ones(*shape):
    return weft.ones(shape)


# --- batch norm ---------------------------------------------------------------------------------------------------------------


def running(batches, momentum):
    """The running statistics after some batches, as the formula says."""
    mean, var = np.zeros(2), np.ones(2)
    for x in batches:
        columns = x.swapaxes(0, 1).reshape(2, -1)
        mean += momentum * (columns.mean(1) - mean)
        var += momentum * (columns.var(1, ddof=1) - var)
    return mean, var


@pytest.mark.parametrize("compiled", [False, True])
def test_batch_norm_runs_along_and_is_used(compiled):
    rng = generator("batch norm")
    batches = [rng.normal(3.0, 2.0, (3, 2, 4)).astype(np.float32) for _ in range(3)]
    layer = nn.BatchNorm(2, momentum=0.3)

    def step(x):
        loss = (layer(x) ** 2 * 0.5).sum()
        for p, g in zip(layer.parameters(), weft.gradients(loss, layer.parameters()), strict=True):
            p.assign(p - 0.01 * g)
        return loss

    run = weft.jit(step) if compiled else step
    for x in batches:
        run(x).item()
    mean, var = running([x.astype(np.float64) for x in batches], 0.3)
    close(layer.mean.numpy(), mean, F32)
    close(layer.var.numpy(), var, F32)
    layer.eval()
    x, scale, shift = batches[0], layer.scale.numpy()[:, None], layer.shift.numpy()[:, None]
    close(layer(x).numpy(), (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5) * scale + shift, F32, 4.0)
    close(layer.mean.numpy(), mean, F32)  # use changes nothing


def test_batch_norm_by_hand():
    layer = nn.BatchNorm(1, momentum=0.5, eps=1e-12, affine=False)
    close(layer(weft.asarray([[1.0], [3.0]])).numpy(), [[-1.0], [1.0]], F32)
    assert layer.mean.tolist() == [1.0]
    assert layer.var.tolist() == [1.5]  # half of 1, and half of 2: the variance of two values by n - 1


def test_derivatives_go_through_the_statistics_of_the_batch():
    x = weft.asarray(generator("through").normal(size=(4, 3)), dtype=F64)
    weights = weft.asarray(generator("weights").normal(size=(4, 3)), dtype=F64)
    slopes = []
    for track in (True, False):  # whether a row of test_layers.py also speaks for the layer that tracks
        layer = nn.BatchNorm(3, track=track).astype(F64)
        slopes.append(weft.grad(lambda v, layer=layer: (layer(v) * weights).sum())(x).numpy())
    close(slopes[0], slopes[1], F64)
    close(slopes[0].sum(0), np.zeros(3), F64)  # moving the whole batch moves nothing


def test_batch_norm_in_half_precision_keeps_its_dtype():
    layer = nn.BatchNorm(2).astype("float16")
    y = layer(weft.asarray([[100.0, 200.0], [300.0, 600.0]], dtype="float16"))
    assert (y.dtype.name, layer.mean.dtype.name) == ("float16", "float16")
    close(layer.mean.numpy(), [20.0, 40.0], weft.float16)
    assert np.isfinite(layer.var.numpy()).all()  # 20,000 and 80,000 would not fit, a tenth of the second does


# --- noise --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "axes"),
    [
        (nn.Dropout(0.25), (40, 50), 2),
        (nn.Dropout1d(0.25), (40, 50, 3), 2),
        (nn.Dropout2d(0.25), (40, 50, 2, 2), 2),
        (nn.Dropout3d(0.25), (40, 50, 1, 2, 2), 2),
        (nn.DropPath(0.25), (2000, 3, 2), 1),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "",
)
def test_what_is_dropped_and_what_stays(layer, shape, axes):
    y = layer(ones(*shape)).numpy()
    groups = y.reshape(*shape[:axes], -1)
    assert np.array_equal(groups, np.broadcast_to(groups[..., :1], groups.shape))  # one decision for each group
    kept = groups[..., 0].ravel()
    assert set(np.unique(kept)) == {np.float32(0.0), np.float32(1 / 0.75)}
    assert abs((kept == 0).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / kept.size)
    counted(3)


def test_alpha_dropout_keeps_mean_and_variance():
    x = weft.random.normal((200, 200))
    y = nn.AlphaDropout(0.3)(x).numpy()
    assert abs(y.mean()) < 0.03
    assert abs(y.var() - 1.0) < 0.05
    lowest = 0.3 * ((0.7 * (1 + 0.3 * 1.7580993408473766**2)) ** -0.5) * 1.7580993408473766
    dropped = lowest - lowest / 0.3  # a * (-s * alpha) + b, where b = a * s * alpha * rate
    assert abs(np.isclose(y, dropped, atol=1e-5).mean() - 0.3) < 0.02
    counted(3)


def test_gaussian_noise_has_the_spread_it_says():
    y = nn.GaussianNoise(0.5)(weft.zeros((200, 100))).numpy()
    assert abs(y.std() - 0.5) < 0.02
    y = nn.GaussianDropout(0.2)(ones(200, 100)).numpy()
    assert abs(y.mean() - 1.0) < 0.02
    assert abs(y.std() - 0.5) < 0.02  # sqrt(0.2 / 0.8)
    counted(3)


def test_a_rate_of_zero_is_no_noise():
    x = ones(2, 3, 4)
    for layer in (nn.Dropout(0.0), nn.Dropout1d(0.0), nn.DropPath(0.0), nn.AlphaDropout(0.0), nn.GaussianNoise(0.0)):
        assert np.array_equal(layer(x).numpy(), x.numpy())
        counted()


def test_compiled_functions_follow_modes_settings_and_streams():
    net = nn.Sequential(nn.Dropout(0.5))
    run = weft.jit(lambda x: net(x))
    x = ones(64)
    first, second = run(x).numpy(), run(x).numpy()
    assert not np.array_equal(first, second)
    weft.seed(3)
    assert np.array_equal(run(x).numpy(), first)
    assert np.array_equal(run(x).numpy(), second)
    assert np.array_equal(net.eval() and run(x).numpy(), x.numpy())
    net.train()[0].rate = 0.75
    assert set(np.unique(run(x).numpy())) == {0.0, 4.0}
    counted(5)


# --- modules of modules ---------------------------------------------------------------------------------------------------------


def test_sequential_as_a_list():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert len(net) == 3
    assert [type(m).__name__ for m in net] == ["Linear", "ReLU", "Linear"]
    assert net[-1] is net[2]
    assert list(net[:2]) == [net[0], net[1]]
    assert list(net.named_tensors()) == ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"]
    x = ones(1, 2)
    assert np.array_equal(net[2](net[:2](x)).numpy(), net(x).numpy())
    assert np.array_equal(nn.Sequential()(x).numpy(), x.numpy())
    counted(7)


def test_sequential_by_names():
    net = nn.Sequential({"first": nn.Linear(2, 3), "second": nn.Sequential(nn.Tanh(), nn.Linear(3, 1))})
    assert net["first"] is net[0]
    assert list(net.named_tensors()) == [
        "layers.first.weight",
        "layers.first.bias",
        "layers.second.layers.1.weight",
        "layers.second.layers.1.bias",
    ]
    assert list(net[1:].named()) == ["second"]
    assert "layers.second: Sequential(" in repr(net)
    counted(4)


def test_the_first_of_a_sequence_may_take_several_inputs():
    net = nn.Sequential(nn.Add(), nn.ReLU())
    assert net(weft.asarray([1.0, -3.0]), weft.asarray([1.0, 1.0])).tolist() == [2.0, 0.0]
    counted()


def test_lists_and_dicts_of_modules():
    parts = nn.ModuleList([nn.Linear(2, 2)])
    parts.append(nn.Linear(2, 1))
    assert [p.weight.shape for p in parts] == [(2, 2), (1, 2)]
    assert len(parts[1:]) == 1
    assert list(parts.named_tensors()) == ["items.0.weight", "items.0.bias", "items.1.weight", "items.1.bias"]
    names = nn.ModuleDict({"a": nn.Linear(2, 2)})
    names["b"] = nn.ReLU()
    assert (list(names), len(names), "b" in names, "c" in names) == (["a", "b"], 2, True, False)
    assert list(names.named_tensors()) == ["items.a.weight", "items.a.bias"]
    counted(5)


def test_a_residual_without_a_shortcut_adds_its_input():
    double = nn.Residual(nn.Identity())
    assert double(weft.asarray([1.0, -2.0])).tolist() == [2.0, -4.0]
    shortened = nn.Residual(nn.Identity(), activation=nn.ReLU())
    assert shortened(weft.asarray([1.0, -2.0])).tolist() == [2.0, 0.0]
    counted(2)


# --- activations by name, first values, tables -----------------------------------------------------------------------------------


def test_activations_are_found_by_name():
    x = weft.asarray([-2.0, 0.5, 7.0])
    names = [
        "relu",
        "relu6",
        "leaky_relu",
        "elu",
        "selu",
        "celu",
        "gelu",
        "silu",
        "mish",
        "sigmoid",
        "tanh",
        "softplus",
    ]
    names += ["softsign", "softmax", "log_softmax", "log_sigmoid", "hard_sigmoid", "hard_swish", "hard_tanh"]
    for name in names:
        assert np.array_equal(nn.activation(name)(x).numpy(), getattr(weft, name)(x).numpy()), name
        counted()
    for nothing in (None, "linear", "identity"):
        assert np.array_equal(nn.activation(nothing)(x).numpy(), x.numpy())
        counted()
    assert np.array_equal(nn.activation("swish")(x).numpy(), weft.silu(x).numpy())
    layer = nn.LeakyReLU(0.1)
    assert nn.activation(layer) is layer
    counted(2)


def test_a_layer_as_activation_is_a_part():
    layer = nn.Linear(2, 3, activation=nn.PReLU(3))
    assert list(layer.named_parameters()) == ["weight", "bias", "activation.slope"]
    assert layer(ones(1, 2)).shape == (1, 3)
    counted(2)


@pytest.mark.parametrize(
    ("layer", "limit"),
    [
        (nn.Linear(24, 64), 0.5),  # sqrt(6 / fan_in)
        (nn.Conv2d(6, 64, 2), 0.5),
        (nn.Conv2d(12, 64, 2, groups=2), 0.5),
        (nn.ConvTranspose2d(6, 64, 2), 0.5),
        (nn.ConvTranspose2d(12, 64, 2, groups=2), 0.5),
        (nn.DepthwiseConv2d(64, (4, 6)), 0.5),
        (nn.Linear(24, 64, init="fan_in_uniform"), 24**-0.5),
    ],
)
def test_weights_begin_with_the_spread_of_their_inputs(layer, limit):
    weight = layer.weight.numpy()
    assert 0.97 * limit < np.abs(weight).max() <= limit
    assert abs(weight.std() - limit / 3**0.5) < 0.05 * limit
    assert not layer.bias.numpy().any()
    counted(3)


def test_first_values_can_be_chosen_and_follow_the_seed():
    layer = nn.Conv1d(1, 2, 3, init=0.5, bias_init=nn.init.constant(2.0))
    assert layer(ones(1, 1, 3)).tolist() == [[[3.5], [3.5]]]
    one = nn.Linear(3, 3).weight.numpy()
    weft.seed(3)
    assert np.array_equal(nn.Linear(3, 3).weight.numpy(), one)
    assert not np.array_equal(nn.Linear(3, 3).weight.numpy(), one)
    assert abs(nn.Embedding(100, 100).weight.numpy().std() - 1.0) < 0.05
    counted(4)


def test_an_identity_filter_gives_back_its_input():
    x = generator("identity").normal(size=(1, 2, 4, 4)).astype(np.float32)
    close(nn.Conv2d(2, 2, 3, padding="same", init="identity")(x).numpy(), x, F32)
    close(nn.ConvTranspose2d(2, 2, 3, padding=1, init="identity")(x).numpy(), x, F32)


def test_rows_of_a_table_are_trained_as_often_as_they_are_used():
    layer = nn.Embedding(4, 2, padding=3)
    [slope] = weft.gradients(layer(weft.asarray([[0, 1, 1], [3, 3, 3]])).sum(), [layer.weight])
    assert slope.tolist() == [[1.0, 1.0], [2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    counted()


def test_the_norm_of_an_empty_window_has_no_slope():
    slope = weft.grad(lambda x: nn.LPPool2d(2, 2)(x).sum())(weft.zeros((1, 1, 2, 2)))
    assert not slope.numpy().any()
    counted()


def test_unfolding_and_folding_count_the_windows():
    x = ones(1, 1, 3, 3)
    y = nn.Fold(3, 2)(nn.Unfold(2)(x))
    assert y.tolist() == [[[[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]]]
    counted()


def test_a_convolution_is_an_unfolding_and_a_product():
    x = generator("unfold").normal(size=(2, 3, 5, 4)).astype(np.float32)
    layer = nn.Conv2d(3, 2, 3, stride=2, padding=1, bias=False)
    columns = nn.Unfold(3, stride=2, padding=1)(x).numpy()
    expected = np.einsum("ok,nkl->nol", layer.weight.numpy().reshape(2, -1), columns).reshape(2, 2, 3, 2)
    close(layer(x).numpy(), expected, F32, 2.0)
