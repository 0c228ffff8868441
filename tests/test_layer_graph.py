"""The flow of data between layers, and its picture."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import weft
from weft import nn, optim
from weft.cli import main
from weft.errors import UserError
from weft.insight import ProgramProfile, profile, profile_from_json
from weft.insight.layer_flow import FlowLayer, layer_flow

SVG = "{http://www.w3.org/2000/svg}"


class Residual(nn.Module):
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return x + self.second(weft.relu(self.first(x)))


@pytest.fixture(scope="module")
def trained() -> ProgramProfile:
    model = nn.Sequential(Residual(), nn.ReLU(), nn.Linear(32, 3))
    optimizer = optim.sgd(model.parameters(), 0.1)

    def step(x: weft.Tensor) -> weft.Tensor:
        loss = (model(x) ** 2).mean()
        optimizer.minimize(loss)
        return loss

    return profile(step, weft.ones((16, 32)), repeats=1)


def flow_of(function: Callable[..., weft.Tensor], *args: weft.Tensor) -> list[FlowLayer]:
    traced = weft.jit(function).traced_function(*args)
    return list(layer_flow(traced.graph, traced.graph.inputs[: traced.given]))


def boxes(svg: str) -> dict[str, list[str]]:
    """The lines of each box, by their first."""
    root = ElementTree.fromstring(svg)
    found = [[text.text or "" for text in group.iter(f"{SVG}text")] for group in root.iter(f"{SVG}g")]
    return {lines[0]: lines[1:] for lines in found}


def test_layers_come_after_what_they_read(trained: ProgramProfile) -> None:
    flow = trained.flow
    assert all(read < position for position, layer in enumerate(flow) for read in layer.reads)
    by_path = {layer.path: layer for layer in flow if layer.path}
    named = {path: {flow[i].path or flow[i].kind for i in layer.reads} for path, layer in by_path.items()}
    assert named["layers.0.first"] == {"input"}
    assert "layers.0" in named["layers.1"]
    assert by_path["layers.2"].shape == (16, 3)
    assert by_path["layers.0.first"].shape == (16, 32)


def test_what_runs_backward_is_no_layer_of_the_flow(trained: ProgramProfile) -> None:
    assert [layer.path for layer in trained.flow].count("layers.2") == 1


def test_a_layer_that_is_called_again_is_there_again() -> None:
    layer, other = nn.Linear(4, 4), nn.Linear(4, 4)
    flow = flow_of(lambda x: layer(other(layer(x))), weft.ones((2, 4)))
    assert [one.reads for one in flow] == [(), (0,), (1,), (2,)]
    assert flow[1].key == flow[3].key != flow[2].key


def test_the_picture_has_shapes_costs_and_what_is_fused(trained: ProgramProfile) -> None:
    found = boxes(trained.graph_svg("time", "small & good"))
    assert found["input"] == ["16 × 32"]
    assert "16 × 3" in found["layers.2"]
    assert any("%" in line for line in found["layers.2"])
    assert any("%" in line for line in found["optimizer"])
    assert "layers.1" not in found  # the activation has no kernel of its own


@pytest.mark.parametrize(
    ("by", "unit", "told"), [("time", "s", "time of a call"), ("energy", "J", "modelled"), ("memory", "B", "in use")]
)
def test_costs(trained: ProgramProfile, by: str, unit: str, told: str) -> None:
    svg = trained.graph_svg(by)
    assert told in svg
    assert boxes(svg)["layers.2"][-1].split(",")[0].endswith(unit)


def test_the_largest_cost_has_the_strongest_colour(trained: ProgramProfile) -> None:
    kernels = tuple(
        replace(k, seconds=1.0 if any(s.path == "layers.2" for s, _ in k.layers) else 0.01) for k in trained.kernels
    )
    root = ElementTree.fromstring(replace(trained, kernels=kernels).graph_svg())
    strongest = [
        next(group.iter(f"{SVG}text")).text
        for group in root.iter(f"{SVG}g")
        if next(group.iter(f"{SVG}rect")).get("fill") == "#b02018"
    ]
    assert strongest == ["layers.2"]


def test_a_picture_of_a_profile_that_was_kept(trained: ProgramProfile) -> None:
    again = profile_from_json(json.loads(trained.to_json()))
    assert again.flow == trained.flow
    assert again.graph_svg() == trained.graph_svg()


def test_what_cannot_be_drawn(trained: ProgramProfile) -> None:
    with pytest.raises(UserError, match="by is one of time, energy, memory, got 'money'"):
        trained.graph_svg("money")
    with pytest.raises(UserError, match="a picture has 1 to 400 layers, this profile has 0"):
        replace(trained, flow=()).graph_svg()


def test_weft_profile_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graph.svg"
    assert main(["profile", "mlp", "size=8", "classes=3", "seconds=0", "batch=2", f"graph={path}", "by=energy"]) == 0
    assert "written: " in capsys.readouterr().out
    assert "mlp for 1x8x8 images, 3 classes, infer, batch 2, cpu" in path.read_text()
    assert "energy of a call, modelled" in path.read_text()


def test_a_cheap_layer_that_begins_a_branch_has_a_box_of_its_own(trained: ProgramProfile) -> None:
    """Otherwise the box before it would have the shape of one branch."""
    flow = (
        FlowLayer("", "input", 1, (2,), (), 1),
        FlowLayer("layers.2", "Linear", trained.flow[1].root, (2, 8), (0,), 1),
        FlowLayer("left", "Conv2d", 1, (2, 3), (1,), 1),
        FlowLayer("right", "Conv2d", 1, (2, 4), (1,), 1),
        FlowLayer("after", "ReLU", 1, (2, 5), (3,), 1),
    )
    found = boxes(replace(trained, flow=flow).graph_svg())
    assert "2 × 8" in found["layers.2"]
    assert found["left"] == ["Conv2d", "2 × 3"]
    assert found["right"] == ["Conv2d + ReLU", "2 × 5"]
