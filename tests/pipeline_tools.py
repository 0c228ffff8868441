"""Networks, data and the one-process training that pipelines are compared with."""

import numpy as np

import weft
from rank_tools import mesh_of
from weft import nn, optim, parallel, zoo
from weft.parallel.pipeline_sums import TreeSum
from weft.random import default_generator
from weft.zoo.resnet import resnet_cifar


def mlp():
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(12, 12), nn.Tanh())), nn.Linear(12, 4))


def norm_and_dropout():
    """Batch norm, dropout on both sides of a cut, and a nested block that cannot be cut."""
    block = nn.Residual(nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3)))
    return nn.Sequential(
        nn.Linear(12, 12), nn.Dropout(0.25), block, nn.Linear(12, 12), nn.BatchNorm1d(12), nn.GELU(), nn.Dropout(0.5), nn.Linear(12, 4)
    )  # fmt: skip


def resnet():
    return resnet_cifar(8, classes=4, channels=1, width=4)


def gpt():
    return zoo.gpt(11, context=6, features=8, heads=2, layers=2, dropout=0.1)


class Tied(nn.Module):
    """Tokens to logits by the same embedding, as in GPT."""

    def __init__(self):
        self.tokens = nn.Embedding(11, 8)
        self.layers = [nn.Linear(8, 8) for _ in range(5)]

    def forward(self, x):
        y = self.tokens(x)
        for layer in self.layers:
            y = weft.tanh(layer(y))
        return y @ self.tokens.weight.mT


def token_loss(logits, y):
    return weft.cross_entropy(logits.reshape((-1, logits.shape[-1])), y.reshape((-1,)))


def data(name, batch=12):
    rng = np.random.default_rng(3)
    if name in ("gpt", "tied"):
        return rng.integers(0, 11, (batch, 6)), rng.integers(0, 11, (batch, 6))
    shape = (batch, 1, 8, 8) if name == "resnet" else (batch, 12)
    return rng.normal(size=shape).astype(np.float32), rng.integers(0, 4, batch)


NETWORKS = {"mlp": mlp, "norm_and_dropout": norm_and_dropout, "resnet": resnet, "gpt": gpt, "tied": Tied}


def loss_of(name):
    return token_loss if name in ("gpt", "tied") else weft.cross_entropy


def make(name):
    weft.random.seed(5)
    return NETWORKS[name]()


def sgd(parameters, **more):
    return optim.sgd(parameters, rate=1e-1, momentum=0.9, **more)


def one_process(name, micro_batches, steps, **more):
    """Losses, tensors and optimizer state of one process that accumulates the same micro-batches."""
    model, loss = make(name), loss_of(name)
    x, y = data(name)
    weft.random.seed(9)
    optimizer = sgd(model.parameters(), **more)

    @weft.jit
    def gradients(x, y, number):
        with default_generator.substream(number, number + 1 == micro_batches):
            value = loss(model(x), y)
        return value, weft.gradients(value, model.parameters())

    @weft.jit
    def update(total):
        optimizer.step([g / float(micro_batches) for g in total])

    losses = []
    for _ in range(steps):
        sums, values = TreeSum(lambda a, b: [p + q for p, q in zip(a, b, strict=True)]), TreeSum(np.add)
        for m, (part, target) in enumerate(zip(np.split(x, micro_batches), np.split(y, micro_batches), strict=True)):
            value, found = gradients(part, target, weft.asarray(m))
            sums.add(found)
            values.add(value.numpy())
        update(sums.result())
        losses.append(float(values.result() / np.float32(micro_batches)))
    tensors = {n: t.numpy() for n, t in model.named_tensors().items()}
    return losses, tensors, {n: t.numpy() for n, t in optimizer.named_state().items()}


def pipelined(name, stages, micro_batches, steps, schedule, options=(), more=()):
    """The same by a pipeline, in one of its processes; and the report."""
    mesh_of(stage=stages)
    model = make(name)
    x, y = data(name)
    weft.random.seed(9)
    made = parallel.Pipeline(
        model, loss_of(name), lambda p: sgd(p, **dict(more)), x, micro_batches=micro_batches, schedule=schedule, **dict(options)
    )  # fmt: skip
    losses = [made.step(x, y) for _ in range(steps)]
    return losses, made.named_tensors(), made.optimizer_state(), made.report()


def difference(a, b):
    assert list(a) == list(b)
    assert all(a[n].shape == b[n].shape and a[n].dtype == b[n].dtype for n in a)
    return max(float(np.abs(np.asarray(a[n], np.float64) - np.asarray(b[n], np.float64)).max(initial=0.0)) for n in a)
