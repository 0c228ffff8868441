"""Epochs on the device: the same training as with batches from a loader."""

import numpy as np
import pytest

import weft
from weft import data, nn, train
from weft.data.loader import Loader
from weft.train.epoch_program import EpochProgram

RANDOM = np.random.default_rng(1)
SPLITS = data.Splits(
    *(data.Arrays(RANDOM.integers(0, 255, (n, 1, 6, 6)).astype(np.uint8), RANDOM.integers(0, 3, n)) for n in (50, 20))
)


def _trained(folder=None, epochs=3, resume=False, **settings):
    weft.seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
    prepare = data.Augment(data.ToFloat(), data.RandomFlip(), data.RandomCrop(6, 1))
    found = train.fit(
        model, SPLITS, batch=16, epochs=epochs, rate=0.05, prepare=prepare, folder=folder, resume=resume, **settings
    )
    return model, found


def _same(a, b):
    return all(
        np.array_equal(x.numpy(), y.numpy())
        for x, y in zip(a.named_tensors().values(), b.named_tensors().values(), strict=True)
    )


@pytest.mark.parametrize(
    "settings",
    [{"optimizer": "sgd", "momentum": 0.9, "average": 0.9}, {"precision": "float16", "label_smoothing": 0.1}, {"bias_rate": 4.0}],
)  # fmt: skip
def test_epochs_on_the_device_have_the_bits_of_single_steps(settings):
    (one, first), (other, second) = _trained(**settings), _trained(resident=True, **settings)
    assert _same(one, other)
    assert [row["train_loss"] for row in first.history] == [row["train_loss"] for row in second.history]
    assert [row["steps"] for row in second.history] == [3, 6, 9]


def test_a_resident_run_is_resumed(tmp_path):
    whole, _ = _trained(resident=True)
    _trained(tmp_path / "run", epochs=2, resident=True)
    rest, found = _trained(tmp_path / "run", resume=True, resident=True)
    assert _same(whole, rest)
    assert found.ended == "all epochs are done"


def test_the_rest_of_an_epoch_that_single_steps_began(tmp_path):
    whole, _ = _trained()

    def stop(now):
        if (now.epoch, now.step) == (2, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _trained(tmp_path / "run", on_step=stop, save_seconds=0)
    rest, _ = _trained(tmp_path / "run", resume=True, resident=True)
    assert _same(whole, rest)


def test_bias_rate_is_that_of_biases_and_norms():
    weft.seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    before = {name: t.numpy().copy() for name, t in model.named_parameters().items()}
    x, y = SPLITS.train.inputs(np.arange(16)).astype(np.float32), SPLITS.train.labels[:16]
    train.fit(model, (x, y), batch=16, epochs=1, optimizer="sgd", rate=1e-3, weight_decay=0.5, bias_rate=10.0)
    w, b = (weft.parameter(before[f"layers.1.{name}"]) for name in ("weight", "bias"))
    loss = weft.cross_entropy(weft.asarray(x.reshape(16, -1)) @ weft.permute_dims(w, (1, 0)) + b, y)
    gw, gb = (g.numpy() for g in weft.gradients(loss, [w, b]))
    after = [t.numpy() for t in model.parameters()]
    np.testing.assert_allclose(after[0], w.numpy() - 1e-3 * (gw + 0.5 * w.numpy()), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after[1], b.numpy() - 1e-2 * (gb + 0.05 * b.numpy()), rtol=1e-4, atol=1e-6)


def test_alternating_flips_show_each_side_in_turn():
    x = RANDOM.normal(size=(64, 1, 2, 3)).astype(np.float32)
    seen = weft.zeros((64, 1, 2, 3), dtype="float32").realize()

    def step(images, _):
        seen.assign(images)
        return images.sum()

    program, order = EpochProgram(step, x, np.zeros(64, np.int64), mirror=True, seed=5), np.arange(64).reshape(1, 64)
    shown = []
    for epoch in range(4):
        program(order, epoch)
        shown.append(seen.numpy().copy())
    mirrored = [np.array([np.array_equal(a, b[..., ::-1]) for a, b in zip(images, x, strict=True)]) for images in shown]
    assert 16 < mirrored[0].sum() < 48
    np.testing.assert_array_equal(mirrored[1], ~mirrored[0])
    np.testing.assert_array_equal(shown[0], shown[2])
    np.testing.assert_array_equal(shown[1], shown[3])


def test_a_loader_gives_its_order_and_moves_on():
    one, other = (Loader(SPLITS.train, 16, seed=2, drop_last=True, workers=0, limit=2) for _ in range(2))
    for _ in range(2):
        batches = np.stack([x for x, _ in one.arrays()])
        np.testing.assert_array_equal(SPLITS.train.inputs(other.take_order().ravel()), batches.reshape(-1, 1, 6, 6))
        assert one.state() == other.state()
    assert len(one) == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"alternate_flips": True}, "requires resident"), ({"bias_rate": 0.0}, "above 0"), ({"bias_rate": 2.0, "rate": None}, "learning rate"),
     ({"resident": True, "memory": "1MiB"}, "memory= limits a step")],
)  # fmt: skip
def test_what_does_not_go_together_is_rejected(settings, words):
    with pytest.raises(weft.errors.UserError, match=words):
        train.fit(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), SPLITS, **{"rate": 0.1} | settings)
