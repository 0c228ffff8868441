"""Structured pruning: networks really shrink, and compute what the masked network computed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, zoo
from weft.compress import (
    Codebook,
    Mask,
    channel_groups,
    densities,
    is_parametrized,
    parametrize,
    prune,
    prune_blocks,
    prune_channels,
    prune_n_of_m,
    shrink,
    weights_of,
)  # fmt: skip
from weft.zoo.resnet import resnet, resnet_cifar
from weft.zoo.vgg import vgg


class SqueezedBlock(nn.Module):
    """Channels that meet in an addition, a concatenation and a gate."""

    def __init__(self) -> None:
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1, bias=False)
        self.c, self.scale = nn.Conv2d(8, 4, 1, activation="sigmoid"), nn.parameter((8, 1, 1), "ones")
        self.gate = nn.Linear(8, 8, activation="sigmoid")
        self.head = nn.Linear(12, 5)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        y = (self.a(x) + self.b(x)) * self.scale
        y = y * self.gate(y.mean(axis=(2, 3))).reshape(y.shape[0], y.shape[1], 1, 1)
        both = weft.concat([y, self.c(y)], axis=1)
        return self.head(both.mean(axis=(2, 3)))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: zoo.mlp(16, 20, 12, 3), (2, 16)),
    "lenet5": (lambda: zoo.lenet5(), (2, 1, 28, 28)),
    "vgg": (lambda: vgg((1, 1), 10, 3, width=8, hidden=32, norm=True), (2, 3, 32, 32)),
    "resnet": (lambda: resnet((1, 1), 10, 3, width=8, stem="cifar", bottleneck=True), (2, 3, 16, 16)),
    "resnet_cifar": (lambda: resnet_cifar(8, width=8), (2, 3, 16, 16)),
    "mobilenet_v1": (lambda: zoo.mobilenet_v1(10, width=0.25, rows=((64, 1), (128, 2))), (2, 3, 16, 16)),
    "mobilenet_v2": (lambda: zoo.mobilenet_v2(10, width=0.25, rows=((1, 16, 1, 1), (6, 24, 2, 2)), last=64), (2, 3, 16, 16)),
    "squeezed": (SqueezedBlock, (2, 3, 8, 8)),
    "attention": (lambda: nn.Sequential(nn.Linear(6, 8), nn.TransformerEncoderLayer(8, 2, hidden=24), nn.Linear(8, 3)), (2, 5, 6)),
    "transposed": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.ConvTranspose2d(8, 6, 2, stride=2), nn.ReLU(), nn.Conv2d(6, 2, 1)),
        (2, 3, 4, 4),
    ),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.DepthwiseConv2d(8, 3, padding=1), nn.Conv2d(8, 4, 1)),
        (2, 3, 6, 6),
    ),
}  # fmt: skip


def made(name: str) -> tuple[nn.Module, np.ndarray]:
    """A network in evaluation mode with statistics that differ by channel, and an input."""
    weft.random.seed(0)
    build, shape = NETWORKS[name]
    model, rng = build().eval(), np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)
    model(x)
    for tensor in model.named_tensors().values():
        if tensor.ndim == 1:
            tensor.assign(tensor.numpy() + rng.uniform(0.05, 0.2, tensor.shape).astype(np.float32))
    return model, x


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_shrinks_and_computes_the_same(name: str) -> None:
    model, x = made(name)
    before, dense = nn.summary(model, x.shape), model(x).numpy()
    prune_channels(model, x.shape, 0.5)
    masked = model(x).numpy()
    assert np.abs(masked - dense).max() > 1e-3, "channels that matter were masked"
    changed = shrink(model, x.shape)
    np.testing.assert_allclose(model(x).numpy(), masked, rtol=1e-4, atol=1e-5 * np.abs(masked).max())
    after = nn.summary(model, x.shape)
    assert after.parameters < (0.8 if name == "attention" else 0.6) * before.parameters
    assert after.macs < (0.8 if name == "attention" else 0.6) * before.macs
    tensors = model.named_tensors()
    assert all(tensors[path].shape == shape for path, (_, shape) in changed.items())
    assert shrink(model, x.shape) == {}, "nothing is left to remove"


def test_the_smallest_filters_are_removed_with_what_reads_them() -> None:
    weft.random.seed(1)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4, 5)).eval()
    x = np.random.default_rng(1).normal(size=(3, 2, 4, 4)).astype(np.float32)
    values = {path: tensor.numpy() for path, tensor in model.named_tensors().items()}
    norms = np.linalg.norm(values["layers.0.weight"].reshape(6, -1), axis=1)
    keep = np.sort(np.argsort(-norms)[:3])
    prune_channels(model, x, 0.5)
    shrink(model, x)
    left = {path: tensor.numpy() for path, tensor in model.named_tensors().items()}
    assert is_parametrized(model[0], "weight")
    np.testing.assert_array_equal(left["layers.0.weight_parametrization.original"], values["layers.0.weight"][keep])
    assert left["layers.0.weight_parametrization.mask"].all()
    for name in ("bias",):
        np.testing.assert_array_equal(left[f"layers.0.{name}"], values[f"layers.0.{name}"][keep])
    for name in ("scale", "shift", "mean", "var"):
        np.testing.assert_array_equal(left[f"layers.1.{name}"], values[f"layers.1.{name}"][keep])
    columns = values["layers.4.weight"].reshape(5, 6, 4)[:, keep].reshape(5, 12)
    np.testing.assert_array_equal(left["layers.4.weight_parametrization.original"], columns)


def test_channels_of_an_addition_are_tied() -> None:
    model, x = made("resnet_cifar")
    groups = channel_groups(model, x.shape)
    tied = [group for group in groups if len(group.layers) > 1]
    assert [len(group) for group in tied] == [32], "the shortcuts without parameters tie all three stages"
    assert tied[0].layers[0] == "layers.0.layers.0"
    with pytest.raises(weft.UserError, match="one density is required for layers that are tied"):
        prune_channels(model, x.shape, {tied[0].layers[0]: 0.5, tied[0].layers[1]: 0.25})
    assert prune_channels(model, x.shape, {groups[0].layers[0]: 0.5})
    before = model.named_tensors()["layers.0.layers.0.weight"].shape
    shrink(model, x.shape)
    assert model.named_tensors()["layers.0.layers.0.weight"].shape == before, "other groups stay whole"


def test_weights_pruned_one_by_one_leave_neurons_without_readers() -> None:
    model, x = made("mlp")
    prune(model, {"layers.2": 0.05, "layers.3": 0.2})
    before = model(x).numpy()
    alive = int((weights_of(model)["layers.2.weight"].value != 0).any(axis=0).sum())
    shrink(model, x)
    assert model.named_tensors()["layers.1.weight"].shape[0] == alive
    np.testing.assert_allclose(model(x).numpy(), before, rtol=1e-5, atol=1e-6)


def test_layers_have_densities_of_their_own() -> None:
    model, x = made("mlp")
    prune_channels(model, x, {"layers.2": 0.5, "layers.1": 0.25})
    shrink(model, x)
    assert [one.value.shape for one in weights_of(model).values()] == [(5, 16), (6, 5), (3, 6)]


def test_channels_of_all_layers_compete_and_each_keeps_one() -> None:
    model, x = made("lenet5")
    model[0].weight.assign(model[0].weight.numpy() * np.linspace(0.01, 1.0, 20, dtype=np.float32).reshape(20, 1, 1, 1))
    prune_channels(model, x, 0.3, scope="global")
    shrink(model, x)
    rows = [one.value.shape[0] for one in weights_of(model).values()]
    assert all(now < before for now, before in zip(rows[:3], (20, 50, 500), strict=True))
    assert rows[3] == 10
    assert sum(rows[:3]) <= 0.31 * 570 + 3


def test_a_shrunk_network_trains_and_is_saved(tmp_path: Any) -> None:
    model, x = made("squeezed")
    prune_channels(model, x, 0.5)
    shrink(model, x)
    optimizer = weft.optim.sgd(model.train(), rate=0.1)

    @weft.jit
    def step(x: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(model(x), weft.asarray([1, 2]))
        optimizer.minimize(loss)
        return loss

    assert step(x).item() > step(x).item()
    model.eval()
    weft.save(tmp_path / "net.weft", model, x)
    np.testing.assert_array_equal(weft.load(tmp_path / "net.weft").eval()(x).numpy(), model(x).numpy())


class FixedSize(nn.Module):
    """Its forward knows the number of channels by heart."""

    def __init__(self) -> None:
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return self.last(self.first(x) * weft.ones((8,)))


def test_what_is_not_understood_is_said_and_nothing_changes() -> None:
    model, x = FixedSize(), np.ones((3, 4), np.float32)
    prune_channels(model, x, 0.5)
    masked = model(x).numpy()
    with pytest.raises(weft.UserError, match="Nothing was changed"):
        shrink(model, x)
    np.testing.assert_array_equal(model(x).numpy(), masked)
    normed = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    with pytest.raises(weft.UserError, match=r"'layers.0' cannot be removed. layers.0: sum is taken over it"):
        prune_channels(nn.Sequential(*normed, nn.Linear(2, 8), nn.Linear(8, 1)), x, {"layers.0": 0.5})
    with pytest.raises(
        weft.UserError, match="channels that can be removed is required. layers.0: sum is taken over it"
    ):
        prune_channels(normed, x, 0.5)
    with pytest.raises(weft.UserError, match="'layer.1' cannot be removed.*layers.1"):
        prune_channels(zoo.mlp(4, 8, 2), x, {"layer.1": 0.5})
    with pytest.raises(weft.UserError, match="above 0"):
        prune_channels(zoo.mlp(4, 8, 2), x, 0.0)
    shared = zoo.mlp(4, 8, 2)
    parametrize(shared[1], "weight", Codebook([1.0], np.ones((8, 4), np.int32)))
    with pytest.raises(weft.UserError, match="which is a Codebook. Bake it"):
        shrink(shared, x)


# --- patterns ----------------------------------------------------------------------------------------------------------------


def test_two_of_four_neighbours_are_kept() -> None:
    model = nn.Sequential(nn.Conv2d(8, 5, 3), nn.Flatten(), nn.Linear(5, 3))
    before = model[0].weight.numpy()
    assert prune_n_of_m(model) == {"layers.0.weight": 0.5, "layers.2.weight": 1.0}
    after = weights_of(model)["layers.0.weight"].value
    for o in range(5):
        for t in np.ndindex(3, 3):
            for c in (0, 4):
                four = np.abs(before[(o, slice(c, c + 4), *t)])
                kept = after[(o, slice(c, c + 4), *t)] != 0
                assert kept.sum() == 2
                assert four[kept].min() > four[~kept].max()
    with pytest.raises(weft.UserError, match="a multiple of 4 inputs is required, got 5 for layers.2.weight"):
        prune_n_of_m(model, layers=["layers.2"])
    with pytest.raises(weft.UserError, match="kept <= of"):
        prune_n_of_m(model, 5, 4)


def test_blocks_are_kept_whole() -> None:
    model = nn.Sequential(nn.Linear(10, 6))
    before = model[0].weight.numpy()
    prune_blocks(model, 0.5, block=(2, 4))
    keep = weights_of(model)["layers.0.weight"].value != 0
    means = {(r, c): (before[r : r + 2, c : c + 4] ** 2).mean() for r in range(0, 6, 2) for c in range(0, 10, 4)}
    best = sorted(means, key=lambda place: -means[place])[:4]  # round(0.5 * 9) is 4
    for r, c in means:
        assert (keep[r : r + 2, c : c + 4] == ((r, c) in best)).all()
    assert densities(model)["layers.0.weight"] == pytest.approx(keep.mean())
    with pytest.raises(weft.UserError, match="1 x 1 or more"):
        prune_blocks(model, 0.5, block=(0, 4))
    with pytest.raises(weft.UserError, match="above 0"):
        prune_blocks(model, 1.5)
    assert isinstance(weights_of(model)["layers.0.weight"].parametrization, Mask)
