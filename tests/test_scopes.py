"""Every kernel knows the layers that it computes, in which phase of a training step: while tracing, in saved programs, in ONNX models."""

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.compiler import planning
from weft.errors import Scope, current_scope
from weft.graph.text import parse, to_text


class Block(nn.Module):
    def __init__(self) -> None:
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return x + nn.ReLU()(self.inner(x))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), Block(), nn.Linear(8, 3))


def training_step():
    model = network()
    optimizer = optim.adam(model, rate=1e-3)

    def step(x, y):
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    return step


def layers_of(function, *args) -> dict[tuple[str, str, str], float]:
    """The share of kernels that belongs to each layer."""
    found: dict[tuple[str, str, str], float] = {}
    program = weft.jit(function)._for(args, {}).executable.program
    for call in program.calls:
        shares = planning.describe.scopes(call.kernel, program)
        assert sum(shares.values()) == pytest.approx(1.0)
        for scope, share in shares.items():
            found[scope[:3]] = found.get(scope[:3], 0.0) + share
    return found


def test_a_training_step_has_layers_and_phases():
    found = layers_of(training_step(), np.ones((4, 6), np.float32), np.arange(4) % 3)
    for path, kind in (("layers.0", "Linear"), ("layers.1.inner", "Linear"), ("layers.2", "Linear")):
        assert found[path, kind, "forward"] > 0
        assert found[path, kind, "backward"] > 0
    assert found["", "", "update"] > 0
    assert found["", "", "forward"] > 0  # the loss
    assert any(path == "layers.1" and kind == "Block" for path, kind, _ in found)
    assert any(path == "layers.1.ReLU" for path, _, _ in found)  # made while it runs


def test_scopes_end_with_the_call_and_cost_nothing_outside_of_a_trace():
    model = network()
    model(np.ones((2, 6), np.float32)).numpy()
    with pytest.raises(weft.UserError):
        weft.jit(model)(np.ones((2, 5), np.float32))
    assert current_scope() is None


def test_two_networks_in_one_program_are_told_apart():
    a, b = network(), network()
    program = weft.jit(lambda x: (a(x), b(x)))._for((np.ones((2, 6), np.float32),), {}).executable.program
    roots = {s.root for call in program.calls for s in planning.describe.scopes(call.kernel)}
    assert len(roots) == 2


class Looping(nn.Module):
    """A layer that is called in every step of a loop, another one in a rematerialized function, and a third as usual."""

    def __init__(self) -> None:
        self.cell, self.kept, self.last = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        x, _ = weft.scan(lambda h, _: (weft.tanh(self.cell(h)), None), x, length=5)
        return self.last(weft.checkpoint(lambda x: self.kept(x))(x))


def test_layers_inside_of_control_flow():
    model = Looping()
    optimizer = optim.sgd(model, rate=0.1)

    def step(x):
        loss = (model(x) ** 2).sum()
        optimizer.minimize(loss)
        return loss

    found = layers_of(step, np.ones((4, 8), np.float32))
    for path in ("cell", "kept", "last"):
        for phase in ("forward", "backward"):
            assert found[path, "Linear", phase] > 0.3, (path, phase)


def test_equal_bodies_of_several_layers_are_told_apart():
    """They are one object, with the names of the layer that was traced last."""

    class Remat(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            return weft.checkpoint(lambda x: weft.tanh(self.inner(x)))(x)

    x = np.ones((4, 8), np.float32)
    model = nn.Sequential(*(Remat() for _ in range(3)))
    found = layers_of(lambda x: weft.grad(lambda x: model(x).sum())(x), x)
    for i in range(3):
        assert found[f"layers.{i}.inner", "Linear", "backward"] > 0.9

    class Outside(nn.Module):
        def __init__(self) -> None:
            self.parts = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]

        def forward(self, x):
            for part in self.parts:
                x = weft.checkpoint(part)(x)
            return x

    outside = Outside()
    found = layers_of(lambda x: weft.grad(lambda x: outside(x).sum())(x), x)
    assert {path for path, _, _ in found} <= {"", "parts.0", "parts.1", "parts.2"}, "which one it is cannot be told"


def test_which_branch_runs_is_not_known():
    a, b = nn.Linear(8, 8), nn.Linear(8, 8)

    class Either(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = a, b

        def forward(self, x):
            return weft.cond(x.sum() > 0, self.a, lambda x: weft.tanh(self.b(x)), x)

    assert {path for path, _, _ in layers_of(Either(), np.ones((4, 8), np.float32))} == {""}


def test_saved_programs_keep_their_layers(tmp_path):
    model = network().eval()
    x = np.ones((2, 6), np.float32)
    weft.save(tmp_path / "net.weft", model, inputs=weft.asarray(x))
    loaded = weft.load(tmp_path / "net.weft").eval()
    before, after = layers_of(model, x), layers_of(loaded, x)
    assert {layer[:2] for layer in before} == {layer[:2] for layer in after}
    np.testing.assert_array_equal(weft.jit(loaded)(x).numpy(), weft.jit(model)(x).numpy())


def test_text_with_layers_parses_to_the_same_graph():
    model = network().eval()
    graph = weft.jit(model)._for((np.ones((2, 6), np.float32),), {}).graph
    text = to_text(graph, layers=True)
    assert "@ layers.1.inner Linear\n" in text
    assert " @ " not in to_text(graph)
    assert to_text(parse(text)) == to_text(graph)
    strange = text.replace("@ layers.0 Linear", "@ a b c d e").replace("@ layers.2 Linear", "@")
    assert to_text(parse(strange)) == to_text(graph)


def test_onnx_models_have_the_names_of_their_nodes(tmp_path):
    pytest.importorskip("onnx")
    model = nn.Sequential(nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 3)).eval()
    weft.onnx.save(tmp_path / "net.onnx", model, inputs=weft.zeros((2, 6)))
    del model
    loaded = weft.load(tmp_path / "net.onnx").eval()
    kinds = {kind for _, kind, _ in layers_of(loaded, np.ones((2, 6), np.float32))}
    assert kinds & {"MatMul", "Gemm"}


def test_scope_is_a_plain_value():
    assert Scope() == Scope("", "", "forward", 0)


def test_live_bytes_never_exceed_the_plan():
    args = np.ones((64, 6), np.float32), np.arange(64) % 3
    program = weft.jit(training_step())._for(args, {}).executable.program
    live = planning.describe.live_bytes(program)
    assert set(live) == set(program.kernels)
    assert 0 < max(live.values()) <= program.memory.needed


def test_names_are_those_of_the_network_that_was_traced_last(tmp_path):
    """Equal operations are one node, whichever network made it: saved files must not depend on what was traced before."""

    class Named(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.second(self.first(x))

    plain, named = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)).eval(), Named().eval()
    x = np.ones((2, 6), np.float32)
    texts = []
    for model in (plain, named, plain):
        weft.save(tmp_path / "net.weft", model, inputs=weft.asarray(x))
        texts.append(weft.load(tmp_path / "net.weft").graph_text("eval"))
        paths = {path for path, kind, _ in layers_of(model, x) if kind == "Linear"}
        assert paths == ({"first", "second"} if model is named else {"layers.0", "layers.1"})
    assert texts[0] == texts[2] != texts[1]
