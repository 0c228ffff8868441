"""Networks whose layers are split between processes against the same network in one process: results, gradients, weights after steps."""

import itertools

import numpy as np
import pytest

import weft
from rank_tools import mesh_of
from weft import nn, optim, parallel
from weft.parallel.split.choose import PlanSearch
from weft.parallel.split.region import RowWindow
from weft.parallel.split.state import make_whole
from weft.precision import LossScale

CLASSES = 4


class Language(nn.Module):
    """Two transformer blocks between an embedding and a projection."""

    def __init__(self, dropout=0.0):
        self.tokens = nn.Embedding(13, 8)  # does not divide evenly
        self.blocks = [
            nn.TransformerBlock(8, 4, rotary=True, dropout=dropout),
            nn.TransformerBlock(8, 8, key_heads=4, norm_first=False, alibi=True, dropout=dropout),
        ]
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        y = self.tokens(x)
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y))


class Padded(nn.Module):
    """Attention with sizes of its own to sequences of different lengths."""

    def __init__(self, dropout=0.0):
        self.tokens = nn.Embedding(13, 6)
        self.attention = nn.MultiHeadAttention(
            6, 8, key_heads=4, head_size=2, value_size=3, rotary=True, dropout=dropout
        )
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        lengths = weft.asarray(np.array([5, 2, 4, 3])[: x.shape[0]])
        return self.head(self.attention(self.tokens(x), causal=True, key_lengths=lengths))


def mlp():
    return nn.Sequential(
        nn.Linear(4, 8, activation="tanh"), nn.Dropout(0.25), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, CLASSES)
    )


def lenet():
    """13 rows become 13, 7, 5 and 2: none of them divides evenly among 4."""
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, activation="tanh"), nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(8, 4, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * 2 * 2, CLASSES),
    )  # fmt: skip


def residual():
    """Rows of 12, then 6, with a dilation and a depthwise convolution."""
    body = nn.Sequential(
        nn.Conv2d(4, 4, 3, stride=2, padding="same", bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2, bias=False), nn.BatchNorm2d(4),
    )  # fmt: skip
    shortcut = nn.Sequential(nn.Conv2d(4, 4, 1, stride=2, bias=False), nn.BatchNorm2d(4))
    return nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1), nn.Residual(body, shortcut, activation="relu"),
        nn.DepthwiseConv2d(4, 3, padding="same"), nn.GlobalAvgPool(), nn.Linear(4, CLASSES),
    )  # fmt: skip


def columns():
    """A linear layer over the columns of images, and windows that cross the borders between their parts."""
    return nn.Sequential(
        nn.Linear(8, 8), nn.MaxPool2d(3, stride=1, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(4 * 3 * 4, CLASSES),
    )  # fmt: skip


def convolutions(how):
    return {"layers.0": how, "layers.1.body.layers.0": how, "layers.1.body.layers.3": how, "layers.1.shortcut.layers.0": how, "layers.2": how}  # fmt: skip


CASES = {  # the network, its input, the plan
    "mlp by output and input": (mlp, (4, 4), {"layers.0": "output", "layers.2": "input", "layers.4": "output"}),
    "mlp mixed": (mlp, (4, 4), {"layers.0": "input", "layers.2": "batch", "layers.4": "input"}),
    "lenet by batch": (lenet, (4, 4, 13, 11), {"layers.0": "batch", "layers.2": "batch"}),
    "lenet by output map": (lenet, (4, 4, 13, 11), {"layers.0": "output", "layers.2": "output", "layers.6": "input"}),
    "lenet by input map": (lenet, (4, 4, 13, 11), {"layers.0": "input", "layers.2": "input"}),
    "lenet by region": (lenet, (4, 4, 13, 11), {"layers.0": "region", "layers.2": "region"}),
    "lenet mixed": (lenet, (4, 4, 13, 11), {"layers.0": "region", "layers.2": "output", "layers.6": "batch"}),
    "residual by region": (residual, (4, 4, 12, 5), convolutions("region")),
    "residual by batch": (residual, (4, 4, 12, 5), convolutions("batch") | {"layers.4": "batch"}),
    "residual by output map": (residual, (4, 4, 12, 5), convolutions("output")),
    "columns by output": (columns, (4, 4, 6, 8), {"layers.0": "output"}),
    "transformer": (Language, (4, 5), {"tokens": "vocabulary", "blocks.*": "heads", "head": "output"}),
    "padded attention with dropout": (lambda: Padded(dropout=0.25), (4, 5), {"attention": "heads"}),
    "transformer with dropout": (lambda: Language(dropout=0.25), (4, 5), {"blocks.*": "heads"}),
}


def examples(shape, dtype):
    rng = np.random.default_rng(5)
    if len(shape) == 2 and shape[1] == 5:
        return rng.integers(0, 13, shape), rng.integers(0, CLASSES, shape)
    return rng.normal(size=shape).astype(dtype), rng.integers(0, CLASSES, shape[0])


# --- what every process runs -----------------------------------------------------------------------------------------------


def network(case, dtype):
    weft.random.seed(3)
    make, shape, plan = CASES[case]
    return make().astype(dtype), examples(shape, dtype), plan


def trained(model, x, y, *, adam, reduce=lambda g: g, steps=3):
    """Losses, the first gradients by name, and results in evaluation mode after some steps."""
    # Gradients that cancel exactly (of key biases) are rounding errors here, which Adam would scale to whole steps: hence its eps.
    optimizer = optim.adam(model, rate=0.01, eps=1e-3) if adam else optim.sgd(model, rate=0.1, momentum=0.9)

    @weft.jit
    def step(x, y):
        loss = weft.cross_entropy(model(x), y)
        gradients = [reduce(g) for g in weft.gradients(loss, optimizer.parameters)]
        optimizer.step(gradients)
        return loss, gradients

    weft.random.seed(4)
    if weft.knobs.device == "cpu" and weft.parallel.world().rank == 0:
        step.passes(x, y)  # one process compiles, the others find the code
    if weft.parallel.world().size > 1:
        parallel.barrier("model")
    losses, gradients = zip(*(step(x, y) for _ in range(steps)), strict=True)
    messages = sent_by(step.artifact(x, y).graph)
    return np.array([loss.item() for loss in losses]), gradients[0], model.eval()(x).numpy(), messages


def sent_by(graph):
    """The bytes of every collective of a program, sorted; counters of the optimizer and constants are none."""
    found = []
    for node in graph.nodes:
        if node.op.kind == "collective" and node.op.name not in ("replicate", "axis_index"):
            whole = node if node.op.name == "all_gather" else node.inputs[0]
            found.append((node.op.name, int(np.prod(whole.shape)) * whole.dtype.itemsize))
    return sorted(found)


def whole_gradients(model, gradients):
    found = {}
    for (name, parameter), g in zip(model.named_parameters().items(), gradients, strict=True):
        part = weft.mesh.parts.part_of(parameter)
        if part is not None:
            pieces = parallel.all_gather(g, part.axis).numpy()
            g = weft.asarray(np.concatenate(pieces, axis=part.dim).take(range(part.size), axis=part.dim))
        found[name] = g.numpy()
    return found


def one_process(case, dtype, adam):
    model, (x, y), _ = network(case, dtype)
    losses, gradients, result, _ = trained(model, x, y, adam=adam)
    names = list(model.named_parameters())
    return losses, result, dict(zip(names, (g.numpy() for g in gradients), strict=True)), values_of(model)


def values_of(model):
    return {name: tensor.numpy() for name, tensor in model.named_tensors().items()}


def split_cases(device, axes, cases, dtype, adam):
    """Of each case: losses, results, whole gradients and whole weights after some steps."""
    mesh_of(**axes)
    with weft.knobs.set(device=device):
        return {case: split_case(case, dtype, adam) for case in cases}


def split_case(case, dtype, adam):
    model, (x, y), plan = network(case, dtype)
    model = parallel.split(model, weft.asarray(x), plan=plan)
    losses, gradients, result, messages = trained(model, x, y, adam=adam)
    return losses, result, whole_gradients(model, gradients), parallel.whole_state(model), messages


@pytest.fixture
def pool(shared_pools):
    return shared_pools[4]


def close(got, wanted, tolerance):
    """Equal up to rounding, relative to the largest element."""
    assert got.shape == wanted.shape
    return np.abs(got - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())


# Each split of each layer is in one of them or compiled.
FOUR_RANKS = [
    "mlp by output and input", "lenet by input map", "residual by batch", "residual by output map", "padded attention with dropout",
]  # fmt: skip
TWO_RANKS = ["mlp mixed", "lenet by region", "residual by region", "columns by output", "transformer"]


@pytest.mark.parametrize(
    ("device", "cases", "axes", "dtype", "adam", "tolerance"),
    [
        ("reference", FOUR_RANKS, {"model": 4}, "float32", True, 1e-6),
        pytest.param("reference", list(CASES), {"model": 4}, "float32", True, 1e-6, marks=pytest.mark.slow),
        ("reference", TWO_RANKS, {"data": 2, "model": 2}, "float64", False, 1e-12),
        ("cpu", ["lenet mixed"], {"model": 4}, "float32", False, 1e-6),
    ],
)
def test_split_networks_compute_and_learn_what_one_process_does(pool, device, cases, axes, dtype, adam, tolerance):
    """Every split where programs run without being compiled, which takes seconds; one network as it is used."""
    everyone = pool.run(split_cases, device, axes, cases, dtype, adam)
    for case in cases:
        with weft.knobs.set(device=device):
            losses, result, gradients, state = one_process(case, dtype, adam)
        made, (x, _), plan = network(case, dtype)
        costs = parallel.split_costs(made, weft.asarray(x), plan=plan, ranks=axes["model"])
        for found in everyone:
            sent = sorted(tuple(m) for one in costs.values() for m in one.messages)
            assert set(found[case][4]) == set(sent), case
            # Both branches of the residual end in norms, whose shifts have one gradient, which is summed once.
            assert len(sent) - len(found[case][4]) == case.startswith(("residual by batch", "residual by region")), case
            assert close(found[case][0], losses, tolerance), case
            assert close(found[case][1], result, 10 * tolerance), case  # of weights that differ
            for i, wanted in ((2, gradients), (3, state)):
                assert list(found[case][i]) == list(wanted), case
                wrong = [name for name, v in wanted.items() if not close(found[case][i][name], v, tolerance)]
                assert not wrong, (case, wrong)


# --- with data parallelism, clipping and checkpoints ----------------------------------------------------------------------------


def plain():
    weft.random.seed(3)
    return nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 8, activation="tanh"), nn.Linear(8, CLASSES))


def tokens():
    rng = np.random.default_rng(7)
    return rng.integers(0, 13, (4, 3)), rng.integers(0, CLASSES, (4, 3))


def steps(model, optimizer, x, y, reduce=lambda g: g):
    @weft.jit
    def step():
        gradients = weft.gradients(weft.cross_entropy(model(x), y), optimizer.parameters)
        optimizer.step([reduce(g) for g in gradients])

    for _ in range(3):
        step()


PLAN = {"layers.0": "vocabulary", "layers.1": "output", "layers.2": "input"}


def data_and_model_parallel():
    """Whole weights and optimizer state after steps on 2 x 2 processes; then the same, loaded on 4 x 1 and gathered again."""
    with weft.knobs.set(device="reference"):
        mesh = mesh_of(data=2, model=2)
        x, y = (part[2 * mesh.index("data") : 2 * mesh.index("data") + 2] for part in tokens())
        model = parallel.split(plain(), weft.asarray(x), plan=PLAN)
        optimizer = optim.adam(model, rate=0.01, eps=1e-3, clip_norm=0.1)
        steps(model, optimizer, x, y, lambda g: parallel.all_reduce(g, "data") / 2.0)
        saved = parallel.whole_state(model), parallel.whole_optimizer_state(optimizer)
        mesh_of(model=4)
        other = parallel.split(plain(), weft.asarray(x), plan=PLAN)
        optimizer = optim.adam(other, rate=0.01, eps=1e-3, clip_norm=0.1)
        parallel.load_whole(other, saved[0])
        parallel.load_whole_optimizer(optimizer, saved[1])
        loaded = parallel.whole_state(other), parallel.whole_optimizer_state(optimizer)
        return saved, loaded, loss_of_parts(), errors_of(other)


def loss_of_parts():
    """The loss of logits that stay cut, and the gradient of the embedding below them."""
    model = parallel.split(plain(), tokens()[0], plan={"layers.2": "output"}, gather=False)
    loss = parallel.split_cross_entropy(model(tokens()[0]), tokens()[1])
    return loss.item(), weft.gradients(loss, [model[0].weight])[0].numpy(), model(tokens()[0]).shape


def errors_of(split_model):
    """What is rejected, as messages."""
    tied = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    tied[1].weight = tied[0].weight
    attempts = [
        lambda: parallel.split(nn.Linear(8, 6), (4, 8), plan={"": "output"}),
        lambda: parallel.split(nn.Linear(8, 8, activation="softmax"), (4, 8), plan={"": "output"}),
        lambda: parallel.split(tied, (4, 8), plan={"layers.0": "output"}),
        lambda: parallel.split(nn.Sequential(nn.Linear(8, 8)), (4, 8), plan={"layers.1": "output"}),
        lambda: parallel.split(nn.Linear(8, 8), (4, 8), plan={"": "region"}),
        lambda: parallel.split(nn.Linear(8, 8), (4, 8), plan={"": "batch"})(weft.ones((6, 8))),
        lambda: optim.lamb(split_model),
        lambda: parallel.load_whole(split_model, {"layers.1.weight": np.zeros((9, 8))}),
    ]
    return [message(attempt) for attempt in attempts]


def message(attempt):
    try:
        attempt()
    except weft.errors.UserError as error:
        return str(error)
    return "nothing was rejected"


def test_checkpoints_are_whole_and_gradients_are_clipped_by_the_norm_of_all_parts(pool):
    everyone = pool.run(data_and_model_parallel)
    with weft.knobs.set(device="reference"):
        model = plain()
        optimizer = optim.adam(model, rate=0.01, eps=1e-3, clip_norm=0.1)
        steps(model, optimizer, *tokens())
        wanted = values_of(model), {name: t.numpy() for name, t in optimizer.named_state().items()}
        model = plain()
        loss = weft.cross_entropy(model(tokens()[0]), tokens()[1])
        gradient = weft.gradients(loss, [model[0].weight])[0].numpy()
    for saved, loaded, parts, _ in everyone:
        assert abs(parts[0] - loss.item()) <= 1e-6
        assert close(parts[1], gradient, 1e-6)
        assert parts[2] == (4, 3, 1)
        for i in (0, 1):
            assert list(saved[i]) == list(wanted[i])
            assert all(close(saved[i][name], value, 1e-6) for name, value in wanted[i].items())
            assert all(np.array_equal(saved[i][name], loaded[i][name]) for name in saved[i])
    parts = [
        "the outputs of Linear must be a multiple of the 4 processes, got 6", "the activation softmax of Linear is not elementwise",
        "layers.0.weight is used by something else than its layer", "there is no layer 'layers.1'",
        "which can be split by output, input, batch, got 'region'", "a batch that is a multiple of the 4 processes is required, got 6",
        "[lamb] it needs whole tensors", "layers.1.weight of size 8 along dimension 0 is required, got (9, 8)",
    ]  # fmt: skip
    for part, found in zip(parts, everyone[0][3], strict=True):
        assert part in found


# --- plans ------------------------------------------------------------------------------------------------------------------------


def test_the_chosen_plan_is_the_best_of_all():
    """LeNet-5: convolutions by batch, where activations are many and weights few; linear layers by features, where it is the reverse."""
    with nn.module.without_values():
        net, example = weft.zoo.lenet5(), (64, 1, 28, 28)
        found = parallel.choose_split(net, example, ranks=2)
        search = PlanSearch(net, [example], 2, parallel.Speeds())
        plans = [dict(zip(search.options, rules, strict=True)) for rules in itertools.product(*search.options.values())]
        best = min(search.seconds({k: v for k, v in plan.items() if v is not None}) for plan in plans)
        assert len(plans) == 4 * 5 * 4 * 4
    assert found.plan == {"layers.0": "batch", "layers.2": "batch", "layers.5": "output", "layers.6": "input"}
    assert found.seconds == best
    for one in found.layers:
        assert one.seconds[one.how] == min(one.seconds.values()) == found.seconds
    assert "layers.5  output" in str(found)
    assert "2 processes: " in str(found)


def test_what_a_split_sends_is_counted():
    """By output, then by input: only the sums of the result and of the input's derivatives are sent."""
    net = nn.Sequential(nn.Embedding(16, 64), nn.Linear(64, 256, activation="relu"), nn.Linear(256, 64))
    example, plan = weft.zeros((512, 8), dtype="int64"), {"layers.1": "output", "layers.2": "input"}
    embedding, first, second = parallel.split_costs(net, example, plan=plan, ranks=4).values()
    assert embedding.messages == ()
    nbytes = 512 * 8 * 64 * 4
    assert [m.nbytes for m in (*first.messages, *second.messages)] == [nbytes, nbytes]
    assert first.sent(4) == nbytes * 2 * 3 // 4
    assert first.flops == 2 * 3 * 512 * 8 * 64 * 256 // 4


# --- windows over parts of the rows, without processes --------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_process_gets_exactly_the_rows_that_its_results_need(ranks):
    for rows in (5, 8, 13):
        for kernel, stride, dilation, before, behind in [
            (1, 1, 1, 0, 0),
            (3, 1, 1, 1, 1),
            (3, 2, 1, 0, 1),
            (2, 2, 1, 0, 0),
            (3, 1, 2, 2, 2),
            (5, 3, 1, 4, 4),
        ]:
            reach = (kernel - 1) * dilation + 1
            results = (rows + before + behind - reach) // stride + 1
            if results < 1:
                continue
            window = RowWindow(rows, results, kernel, stride, dilation, before, ranks)
            mine, count = -(-rows // ranks), -(-results // ranks)
            above, below = window.halo()
            for rank, start in enumerate(window.starts()):
                held = range(rank * mine - above, (rank + 1) * mine + below)
                for result in range(rank * count, min((rank + 1) * count, results)):
                    first = result * stride - before
                    assert rank * mine + start + (result - rank * count) * stride == first
                    assert all(row in held for row in range(first, first + reach, dilation) if 0 <= row < rows)


def overflowing(ranks):
    """A step of a layer split by output, in which only the last row of the weight gets an infinite gradient."""
    mesh_of(model=ranks)
    with weft.knobs.set(device="reference"):
        model = nn.Sequential(nn.Linear(4, 8))
        model = parallel.split(model, (4, 4), plan={"layers.0": "output"})
        scale, optimizer = LossScale(start=4.0), optim.sgd(model, rate=0.1)
        before = parallel.whole_state(model)
        large = weft.asarray(np.where(np.arange(8) == 7, 1e38, 1.0).astype(np.float32))
        weft.jit(lambda x: optimizer.minimize((model(x) * large).sum() * 8.0, scale))(np.ones((4, 4), np.float32))
        after = parallel.whole_state(model)
    return scale.scale.item(), all(np.array_equal(before[name], after[name]) for name in before)


def test_an_overflow_in_one_part_skips_the_step_in_all(shared_pools):
    assert shared_pools[2].run(overflowing, 2) == [(2.0, True)] * 2


def test_a_process_holds_its_parts_only_and_whole_layers_come_back():
    """What was cut is freed; make_whole puts the layers back, with values, for a training that has ended."""
    mesh = mesh_of(model=1)
    assert mesh.size("model") == 1
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    first, values = model.layers[0], {name: t.numpy() + 1.0 for name, t in model.named_tensors().items()}
    parallel.split(model, (4, 4), plan={"layers.0": "output", "layers.1": "input"})
    assert first.weight._node.abstract
    assert model.layers[0] is not first
    make_whole(model, values)
    assert model.layers[0] is first
    assert all(np.array_equal(t.numpy(), values[name]) for name, t in model.named_tensors().items())
    assert all(t.requires_grad for t in model.parameters())
