"""The device `cuda` on a GPU made of the host's memory: everything above the driver is the real thing."""

import contextvars
import threading

import numpy as np
import pytest

import weft
from weft import nn, optim, zoo
from weft.errors import RunError, UserError
from weft.insight import measured_memory, memory_timeline
from weft.testing import counted

pytest.importorskip("triton")
import fake_gpu
from weft.runtime.cuda import device as cuda_device
from weft.runtime.cuda import executable, results


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    found = fake_gpu.install(monkeypatch)
    with weft.knobs.set(device="cuda", cache=str(tmp_path / "cache"), compile_after=1):
        yield found


X = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)


def test_values_go_there_and_back(gpu):
    x = weft.asarray(X)
    assert x.device is weft.device("cuda")
    y = weft.sin(x) * 2
    np.testing.assert_allclose(y.numpy(), 2 * np.sin(X), rtol=1e-6)
    assert gpu.launched


def test_a_compiled_function_is_recorded_and_replayed(gpu):
    step = weft.jit(lambda x: (x * 2 + 1).sum(axis=0))
    for i in range(5):
        np.testing.assert_allclose(step(X + i).numpy(), (2 * (X + i) + 1).sum(axis=0), rtol=1e-5)
    assert gpu.replayed >= 2


def test_weights_of_a_depthwise_convolution_that_change_are_copied_again(gpu):
    w = weft.asarray(np.ones((5, 1, 3, 3), np.float32)).realize()
    x = np.random.default_rng(1).normal(size=(2, 5, 6, 7)).astype(np.float32)
    net = weft.jit(lambda x: weft.conv(x, w, groups=5, padding=1))
    for run in range(6):
        if run == 3:
            w.assign(w * -2.0)
        with weft.knobs.set(device="reference"):
            expected = weft.conv(weft.asarray(x), weft.asarray(w.numpy()), groups=5, padding=1).numpy()
        np.testing.assert_allclose(net(x).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_program_follows_the_arena_where_it_moves(gpu):
    """A larger program, and a release, move it between two runs of a smaller one."""
    small = weft.jit(lambda x: weft.softmax(x @ x, axis=0) @ x)
    large = weft.jit(lambda x: weft.softmax(x @ x, axis=0) @ x)
    x = np.random.default_rng(2).normal(size=(8, 8)).astype(np.float32)
    y = np.random.default_rng(3).normal(size=(40, 40)).astype(np.float32)
    expected = small(x).numpy()
    for run in range(8):
        if run == 2:
            large(y)
        if run == 5:
            weft.device("cuda").context.release()
        assert small(x).numpy().tobytes() == expected.tobytes()


def test_a_generation_ends_where_an_address_changes(gpu):
    """Programs keep the addresses of the arena and the workspace for a generation."""
    context = weft.device("cuda").context
    for memory in (context.arena, context.workspace):
        before = context.generation
        first = memory(1 << 12)
        assert context.generation == before + 1
        assert memory(1 << 10) == memory(1 << 12) == first
        assert context.generation == before + 1
        memory(1 << 13)
        assert context.generation == before + 2
        context.release()
        assert context.generation == before + 3


def test_arguments_are_changed_and_numbers_stay_numbers(gpu):
    def step(p, x, rate):
        p -= rate * x
        return p, rate * 2

    compiled, p, q = weft.jit(step), weft.ones(3, dtype="float16"), weft.ones(3, dtype="float16")
    for i in range(4):
        x, rate = weft.full(3, i + 1.0, dtype="float16"), 0.25 / (i + 1)
        result, number = compiled(p, x, rate)
        assert result is p
        assert (type(number), number) == (float, 2 * rate)
        step(q, x, rate)
        assert (p.dtype, p.tolist()) == (q.dtype, q.tolist())


def test_programs_that_share_state_lose_no_update(gpu):
    total, one = weft.zeros(8), weft.ones(8)
    first, second = weft.jit(lambda x: total.assign(total + x)), weft.jit(lambda x: total.assign(x + total + 0.0))
    context = contextvars.copy_context()  # the device is that of the block
    for f in (
        first,
        second,
    ) * 3:  # Triton's interpreter reads the source of a kernel at its first run, and not in two threads at once
        f(one)
    total.assign(weft.zeros(8))

    def work(f):
        for _ in range(20):
            f(one)
            assert len(set(total.tolist())) == 1

    errors = []
    monitored = [lambda f=f: errors.append(context.copy().run(caught, work, f)) for f in (first, second, first)]
    threads = [threading.Thread(target=one_of) for one_of in monitored]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == [None] * 3
    assert total.tolist() == [60.0] * 8


def test_programs_that_share_state_keep_their_recorded_graphs(gpu, monkeypatch):
    total, seen, record = weft.zeros(8), [], gpu.record
    monkeypatch.setattr(gpu, "record", lambda enqueue: seen.append(1) or record(enqueue))
    step, read = weft.jit(lambda x: total.assign(total * 2 + x)), weft.jit(lambda: total + 1.0)
    replace = weft.jit(lambda x: total.assign(weft.where(x > 0, x, total)))
    one, expected = np.ones(8, np.float32), 0.0
    for number in range(12):
        if number == 8:
            seen.clear()
        if number % 2:
            replace(3 * one)
            expected = 3.0
        step(one)
        expected = 2 * expected + 1
        assert read().tolist() == [expected + 1] * 8
    assert not seen


def test_state_that_somebody_still_holds_is_copied(gpu):
    total = weft.zeros(4)
    step, replace = weft.jit(lambda x: total.assign(total + x)), weft.jit(lambda x: total.assign(total * 0 + x))
    one = np.ones(4, np.float32)
    for _ in range(3):
        step(one)
        held = total.detach()
        before = held.tolist()
        replace(5 * one)
        step(one)
        assert (held.tolist(), total.tolist()) == (before, [6.0] * 4)


def caught(work, *args):
    try:
        work(*args)
    except BaseException as error:
        return error


@pytest.mark.parametrize(("name", "value"), [("tf32", 1), ("matmul_algorithm", "NAIVE"), ("conv_algorithm", "DIRECT")])
def test_settings_that_change_are_followed(gpu, name, value):
    x, w = weft.asarray(np.ones((1, 16, 6, 6), np.float32)), weft.asarray(np.ones((16, 16, 3, 3), np.float32))
    f = weft.jit(lambda x: (weft.conv(x, w), x[0, 0] @ x[0, 0]))
    f(x)
    before = f.sources(x)
    with weft.knobs.set(**{name: value}):
        f(x)
        during = f.sources(x)
        assert during == weft.jit(f.function).sources(x)
    f(x)
    assert f.sources(x) == before != during
    assert len(f.programs.latest) == 2


def test_passes_are_those_of_gpus(gpu):
    after = weft.jit(lambda x: x @ x, precision="bfloat16").passes(X[:5])
    assert {"precision", "refine"} <= after.keys()
    assert "widened copies" not in after


# --- training: the same as on the CPU -----------------------------------------------------------------------------------------------


def trained(device, build, shape, classes=4, steps=6, precision=None):
    """The losses of some training steps from the same beginning, and the parameters at the end."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, *shape)).astype(np.float32), rng.integers(0, classes, (2, shape[0]))
    with weft.knobs.set(device=device):
        weft.seed(3)
        model = build()
        model(weft.asarray(x[0][:1]))
        optimizer = optim.sgd(model, 0.1, momentum=0.9)

        @weft.jit(precision=precision)
        def step(x, y):
            loss = weft.cross_entropy(model(x), y)
            optimizer.minimize(loss)
            return loss

        losses = [float(step(x[i % 2], y[i % 2])) for i in range(steps)]
        return losses, {name: p.numpy() for name, p in model.named_tensors().items()}


def conv_net():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(None, 4)
    )


NETWORKS = {
    "a perceptron": (lambda: zoo.mlp(20, 16, 4), (9, 20)),
    "convolution, batch norm, dropout": (conv_net, (4, 2, 6, 6)),
    "an LSTM": (lambda: nn.Sequential(nn.LSTM(5, 6, batch_first=True), Last(), nn.Linear(6, 4)), (3, 7, 5)),
}


class Last(nn.Module):
    def forward(self, x):
        return (x[0] if isinstance(x, tuple) else x)[:, -1]


@pytest.mark.sweep(share=0.4)
@pytest.mark.parametrize("name", NETWORKS)
def test_training_is_that_of_the_cpu(name, gpu):
    there, after = trained("cuda", *NETWORKS[name])
    here, expected = trained("cpu", *NETWORKS[name])
    np.testing.assert_allclose(there, here, rtol=1e-4)
    for key, value in expected.items():
        np.testing.assert_allclose(after[key], value, rtol=2e-3, atol=2e-4, err_msg=key)
    assert gpu.replayed >= 2
    counted(len(expected))


def test_mixed_precision(gpu):
    there, _ = trained("cuda", conv_net, (4, 2, 6, 6), steps=3, precision="bfloat16")
    here, _ = trained("cpu", conv_net, (4, 2, 6, 6), steps=3, precision="bfloat16")
    np.testing.assert_allclose(there, here, rtol=0.03)


def test_filters_lie_as_the_matrix_units_want_them_and_are_seen_as_usual(gpu):
    conv = nn.Conv2d(3, 5, 3)
    conv(weft.zeros((1, 3, 5, 5)))
    before = conv.weight.numpy().copy()
    double = weft.jit(lambda x: (conv.weight.assign(conv.weight * 2), conv(x))[1])
    double(np.ones((1, 3, 5, 5), np.float32))
    assert conv.weight._node.value.content.order == (0, 2, 3, 1)
    np.testing.assert_array_equal(conv.weight.numpy(), 2 * before)
    np.testing.assert_allclose((conv.weight + 0).numpy(), 2 * before)


# --- control flow -------------------------------------------------------------------------------------------------------------------


def test_scans_of_odd_sizes_forward_and_back(gpu):
    def last(x):
        return weft.scan(lambda c, v: (c * 0.5 + v.sum(), c * v[0]), weft.zeros(()), x)

    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    both = weft.jit(lambda x: (*last(x), weft.grad(lambda x: last(x)[0] + last(x)[1].sum())(x)))
    found = [both(x) for _ in range(3)][-1]
    with weft.knobs.set(device="reference"):
        expected = (*last(weft.asarray(x)), weft.grad(lambda x: last(x)[0] + last(x)[1].sum())(weft.asarray(x)))
        expected = [e.numpy() for e in expected]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f.numpy(), e, rtol=1e-5, atol=1e-6)


def test_the_host_decides_where_a_value_must_be_asked(gpu):
    collatz = weft.jit(
        lambda n: weft.while_loop(
            lambda c: c[0] > 1, lambda c: (weft.where(c[0] % 2 == 0, c[0] // 2, 3 * c[0] + 1), c[1] + 1), (n, n * 0)
        )[1]
    )
    assert [int(collatz(np.int32(n))) for n in (6, 7, 6)] == [8, 16, 8]
    choose = weft.jit(lambda x: weft.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, x))
    for x in (X, -abs(X), X + 5):
        np.testing.assert_allclose(choose(x).numpy(), x * 2 if x.sum() > 0 else x - 1, rtol=1e-6)


# --- memory -------------------------------------------------------------------------------------------------------------------------


def test_constants_are_prepared_once(gpu):
    model = nn.Linear(20, 7)
    x = np.ones((3, 20), np.float32)
    model(x)
    predict = weft.jit(lambda x: model(x), precision="bfloat16")
    first = predict(x).numpy()
    predict(x), predict(x), predict(x)
    before = gpu.launched
    predict(x)
    each = gpu.launched - before
    model.weight.assign(model.weight * 2)
    before = gpu.launched
    second = predict(x).numpy()
    assert gpu.launched - before > each
    np.testing.assert_allclose(second, 2 * (first - model.bias.numpy()) + model.bias.numpy(), rtol=0.02, atol=0.02)


def test_nothing_is_lost_over_many_steps(gpu):
    w = weft.asarray(X)

    @weft.jit
    def step(x):
        w.assign(w - 0.1 * x)
        return (w * x).sum()

    def used():
        return gpu.memory()[1] - gpu.memory()[0]

    for _ in range(5):
        loss = step(X)
    before = used()
    for _ in range(50):
        loss = step(X)
    assert used() == before
    assert np.isfinite(float(loss))


def test_state_that_somebody_else_holds_is_not_overwritten(gpu):
    w = weft.asarray(X)
    step = weft.jit(lambda: w.assign(w + 1))
    step()
    held = w * 1  # names the value of now
    kept = w.detach()
    step(), step()
    np.testing.assert_allclose(held.numpy(), X + 1, rtol=1e-6)
    np.testing.assert_allclose(kept.numpy(), X + 1, rtol=1e-6)
    np.testing.assert_allclose(w.numpy(), X + 3, rtol=1e-6)


def test_arguments_on_the_gpu_are_read_wherever_they_are(gpu):
    double = weft.jit(lambda x: x * 2)
    tensors = [weft.asarray(X + i) for i in range(3)]
    for i in (0, 0, 1, 2, 1, 0, 0, 2):
        np.testing.assert_array_equal(double(tensors[i]).numpy(), 2 * (X + i))


def test_no_memory_says_what_to_do_and_the_next_goes_on(monkeypatch, tmp_path):
    fake_gpu.install(monkeypatch, total=1 << 20)
    with weft.knobs.set(device="cuda", cache=str(tmp_path), compile_after=1):
        with pytest.raises(RunError, match="no room for a tensor of 0.00 GB.*smaller batches"):
            weft.asarray(np.zeros(1 << 20, np.float32)).realize()
        big = weft.jit(lambda x: weft.softmax(x[:, None] * x[None, :]).sum(axis=0) @ (x[:, None] + x[None, :]))
        with pytest.raises(RunError, match="The largest tensors: float32.*smaller batch"):
            big(np.ones(600, np.float32))
        np.testing.assert_array_equal(weft.asarray(X).numpy(), X)


# --- errors -------------------------------------------------------------------------------------------------------------------------


def test_an_index_out_of_range_is_told_when_somebody_looks(gpu):
    rows = weft.jit(lambda x, i: weft.take(x, i, axis=0))
    assert rows(X, np.array([0, 5])).shape == (2, 5)
    for _ in range(3):
        wrong = rows(X, np.array([0, 77]))
        with pytest.raises(RunError, match="index 77 is out of range for axis 0 of size 6"):
            wrong.numpy()
    np.testing.assert_array_equal(rows(X, np.array([0, 5])).numpy(), X[[0, 5]])


def test_a_missing_gpu_is_one_sentence(monkeypatch):

    monkeypatch.setattr(cuda_device, "_found", [])
    with pytest.raises(UserError, match=r"pip install '\.\[cuda\]'|no NVIDIA"):
        weft.device("cuda")
    assert "cpu" in [d.name for d in weft.devices()]


def test_several_gpus_have_numbers(gpu, monkeypatch):

    second = cuda_device.CudaDevice(fake_gpu.FakeGpu(), "cuda:1")
    monkeypatch.setattr(cuda_device, "_found", [*cuda_device._found, second])
    assert weft.device("cuda:1") is second
    assert weft.device("cuda:0") is weft.device("cuda")
    x = weft.asarray(X).to_device("cuda:1")
    assert x.device is second
    np.testing.assert_allclose((x + x).numpy(), 2 * X)
    with pytest.raises(UserError, match="There are: cuda, cuda:1"):
        weft.device("cuda:2")


def test_the_second_start_compiles_nothing(gpu, monkeypatch):
    def double(x):
        return weft.softmax(x * 2)

    first = weft.jit(double)(X).numpy()
    monkeypatch.setattr("weft.compiler.gpu.compile_pool.compile_kernels", lambda *a: pytest.fail("compiled again"))
    np.testing.assert_array_equal(weft.jit(double)(X).numpy(), first)


def test_explain_names_every_launch_and_changes_nothing(gpu):
    w = weft.asarray(X)
    step = weft.jit(lambda x: w.assign(w - (x @ w.mT).sum(axis=1, keepdims=True)))
    before = w.numpy().copy()
    found = step.explain(X)
    np.testing.assert_array_equal(w.numpy(), before)
    assert found.where == "fake"
    assert found.kernels >= 1
    assert "TB/s" in str(found)
    assert all(row.seconds > 0 for row in found.rows)


def test_events_that_would_cost_too_much_are_replaced_by_prefixes(gpu, monkeypatch):
    """Of a program of short kernels the first 1, 2, ... commands are replayed instead: nothing is added to any run."""
    monkeypatch.setattr("weft.runtime.cuda.profile.TOLERATED", -0.999)  # whatever events cost, it is too much
    w = weft.asarray(X)

    def body(c, x):
        c = c + (x * w).sum(axis=0)
        return c, c

    step = weft.jit(lambda x: (weft.scan(body, weft.zeros(X.shape[-1]), weft.stack([x, x, x]))[0], w.assign(w * 2)))
    before = w.numpy().copy()
    replayed = gpu.replayed
    found = step.explain(X, repeats=2)
    np.testing.assert_array_equal(w.numpy(), before)
    assert gpu.replayed - replayed >= 3 * 3, "the whole and two prefixes or more, three times each"
    assert all(row.seconds > 0 for row in found.rows)
    assert max(row.starts for row in found.rows) >= 3, "a scan starts the kernels of every step"
    assert sum(row.seconds for row in found.rows) == pytest.approx(found.plain * (1 + found.overhead))


def test_results_that_are_kept_stay_what_they_are(gpu):
    """Rooms for results take turns only as long as nobody keeps what is in them, directly or in something not yet computed."""
    double = weft.jit(lambda x: x * 2)
    kept = [double(X + i) for i in range(6)]
    later = [double(X + i) + 1 for i in range(6)]
    for i in range(6):
        np.testing.assert_array_equal(kept[i].numpy(), 2 * (X + i))
        np.testing.assert_array_equal(later[i].numpy(), 2 * (X + i) + 1)
    before = gpu.memory()[0]
    for i in range(20):
        last = double(X + i)
    np.testing.assert_array_equal(last.numpy(), 2 * (X + 19))
    assert gpu.memory()[0] <= before


def test_large_results_belong_to_whoever_has_them(gpu, monkeypatch):
    """A program that is done keeps no memory for them, and is still recorded where addresses come again."""
    monkeypatch.setattr(results, "LARGE", X.nbytes)
    double = weft.jit(lambda x: x * 2)
    for _ in range(3):  # arguments from the host have rooms of their own by then
        double(X)
    before, replayed = gpu.memory()[0], gpu.replayed
    kept = [double(X + i) for i in range(6)]
    assert gpu.memory()[0] <= before - 6 * X.nbytes
    for i in range(6):
        np.testing.assert_array_equal(kept[i].numpy(), 2 * (X + i))
    del kept
    assert gpu.memory()[0] == before
    for i in range(20):
        np.testing.assert_array_equal(double(X + i).numpy(), 2 * (X + i))
    assert gpu.memory()[0] == before
    assert gpu.replayed > replayed


@pytest.mark.parametrize(("large", "copies"), [(X.nbytes, 0), (X.nbytes + 1, 1)])
def test_arguments_that_move_about_are_copied_unless_they_are_large(large, copies, gpu, monkeypatch):
    """To a place that stays, for the sake of the recorded graph."""
    monkeypatch.setattr(executable, "LARGE", large)
    double = weft.jit(lambda x: x * 2)
    moving = [weft.asarray(X + i).realize() for i in range(6)]
    double(moving[0])  # makes rooms for results
    before = gpu.memory()[0]
    for _ in range(3):
        for i, x in enumerate(moving):
            np.testing.assert_array_equal(double(x).numpy(), 2 * (X + i))
    assert gpu.memory()[0] == before - copies * X.nbytes


@pytest.mark.parametrize(("far", "there"), [(1 << 28, False), (4 * 64 * 64 * 2, True)])
def test_what_comes_once_is_done_on_the_host_unless_it_is_far(far, there, gpu, monkeypatch):
    """Two tensors of 64 x 64 numbers are as many bytes as may not be carried to the host and back."""
    monkeypatch.setattr(cuda_device, "FAR", far)
    with weft.knobs.set(compile_after=100):
        x = weft.asarray(np.ones((64, 64), np.float32))
        downloads = []
        real = gpu.download
        monkeypatch.setattr(gpu, "download", lambda *args: (downloads.append(args), real(*args)))
        y = (x * 2.0 + 1.0).realize()
        assert (downloads == []) is there
        assert y.device.name == "cuda"
        assert y.numpy().tolist() == [[3.0] * 64] * 64


def test_tensors_without_elements(gpu):
    empty = np.zeros((0, 3), np.float32)
    both = weft.jit(lambda a, b: (weft.sin(a) + 1, a.sum(axis=0), b * 2))
    for _ in range(3):
        nothing, total, rest = both(empty, X)
        assert nothing.numpy().shape == (0, 3)
        np.testing.assert_array_equal(total.numpy(), [0, 0, 0])
        np.testing.assert_array_equal(rest.numpy(), 2 * X)


def test_filters_that_are_only_read_lie_in_order_too(gpu):
    """They are copied once, and not again while they stay the same; after a training step they lie so already."""
    conv = nn.Conv2d(3, 5, 3)
    x = np.random.default_rng(2).normal(size=(2, 3, 6, 6)).astype(np.float32)
    conv(weft.asarray(x))
    predict = weft.jit(lambda x: conv(x))

    def expected():
        with weft.knobs.set(device="reference"):
            return weft.conv(
                weft.asarray(x), weft.asarray(conv.weight.numpy()), weft.asarray(conv.bias.numpy())
            ).numpy()

    for _ in range(3):
        np.testing.assert_allclose(predict(x).numpy(), expected(), rtol=1e-4, atol=1e-5)
    [made] = predict.programs.latest.values()
    [state] = [s for s in made.states if s.order is not None]
    assert state.order == (0, 2, 3, 1)
    assert not state.written
    step = weft.jit(lambda: conv.weight.assign(conv.weight * 2))
    step()
    np.testing.assert_allclose(predict(x).numpy(), expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_values_before_every_step_of_a_loop(reverse, gpu):
    """The derivative of a scan reads them in the order of the steps."""

    def total(start, rows):
        last, seen = weft.scan(lambda s, row: (weft.sin(s * row), s * s), start, rows, reverse=reverse)
        return last.sum() + seen.sum()

    slopes = weft.grad(total, argnums=(0, 1))
    with weft.knobs.set(device="reference"):
        expected = [g.numpy() for g in slopes(weft.asarray(X[0]), weft.asarray(X))]
    for found, wanted in zip(weft.jit(slopes)(X[0], X), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_a_saved_program_brings_its_kernels_along(gpu, monkeypatch, tmp_path):
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU()).eval()
    weft.save(tmp_path / "net.weft", net, X, compiled="cuda", train=False)
    expected = weft.jit(net)(X).tolist()

    def refuse(*_):
        raise AssertionError("nothing may be compiled")

    monkeypatch.setattr(executable, "_cast", refuse)
    with weft.knobs.set(cache="off"):
        program = weft.load(tmp_path / "net.weft", trust_compiled=True).eval()
        assert program.compiled_targets == ["cuda"]
        assert weft.jit(program)(X).tolist() == expected
        with pytest.raises(AssertionError, match="nothing may be compiled"):
            weft.jit(program)(X[:3])


def test_the_measured_memory_of_a_step_has_its_arena(gpu):
    x = np.ones((64, 8), np.float32)

    def make():
        model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
        return weft.jit(lambda x: model(x)), (weft.asarray(x.copy()),)

    step, args = make()
    expected = memory_timeline(step, *args)
    assert expected.arena > 0.3 * expected.allocated
    step(np.ones((128, 8), np.float32))  # an arena that is large enough is there already
    found = measured_memory(make)
    assert found.how == "bytes in use in the memory pool of cuda"
    assert found.allocated == pytest.approx(expected.allocated, rel=0.05)
