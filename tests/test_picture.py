"""Checks the pictures of graphs: what they show, that nothing overlaps, and that they come out the same."""

import random
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from typing import Any

import pytest

from weft.dtypes import float32
from weft.errors import UserError
from weft.graph import OPS, Graph, Node, Op, Type, make, placeholder
from weft.graph.picture import MAX_SVG_NODES, to_dot, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def declare(name: str, kind: Any, arity: int | None = 1, params: tuple[str, ...] = ()) -> Op:
    def infer(*arguments: Any) -> Type:
        first = arguments[0][0] if arity is None else arguments[0]
        return first.type

    return Op(f"picture_test_{name}", kind, infer, lambda x, *_: x, params=params, arity=arity)


UNARY = declare("unary", "elementwise")
MIX = declare("mix", "anchor", 2)
JOIN = declare("join", "move", None, ("axis",))
NOTE = declare("note", "index", 1, ("text", "extra"))
LOOP = declare("loop", "control", 1, ("body", "length"))
SPLIT = Op(
    "picture_test_split",
    "control",
    lambda x: (x.type, Type((), float32)),
    lambda x: (x, x),
    params=(),
    arity=1,
)


def inputs(count: int) -> tuple[Node, ...]:
    return tuple(placeholder(i, Type((3, 4), float32)) for i in range(count))


def const(value: float) -> Node:
    return make(OPS["const"], (), (value, float32, (3, 4)))


def chain() -> Graph:
    (x,) = inputs(1)
    y = x
    for _ in range(8):
        y = make(UNARY, (y,))
    return Graph((x,), (y,))


def network() -> Graph:
    x, *weights = inputs(9)
    half, h = const(0.5), x
    for w in weights:
        h = make(MIX, (h, make(MIX, (make(UNARY, (make(MIX, (h, w)),)), half))))
    return Graph((x, *weights), (make(UNARY, (h,)), h))


def wide() -> Graph:
    xs = inputs(40)
    return Graph(xs, (make(JOIN, tuple(make(UNARY, (x,)) if i % 3 else x for i, x in enumerate(xs)), (0,)),))


def tangle(size: int, seed: int) -> Graph:
    pick = random.Random(seed)
    nodes = list(inputs(4))
    while len(nodes) < size:
        near, far = pick.choice(nodes[-8:]), pick.choice(nodes)
        nodes.append(make(NOTE, (near,), (len(nodes), None)) if pick.random() < 0.3 else make(MIX, (near, far)))
    return Graph(tuple(nodes[:4]), tuple(nodes[-3:]))


GRAPHS = {
    "empty": lambda: Graph((), ()),
    "identity": lambda: Graph(inputs(1), inputs(1)),
    "unused input": lambda: Graph(inputs(2), (make(UNARY, inputs(1)),)),
    "same twice": lambda: Graph(inputs(1), (make(MIX, inputs(1) * 2), make(SPLIT, inputs(1)))),
    "chain": chain,
    "network": network,
    "wide": wide,
    "small tangle": lambda: tangle(60, 1),
    "large tangle": lambda: tangle(250, 2),
}
every_graph = pytest.mark.parametrize("graph", [pytest.param(build(), id=name) for name, build in GRAPHS.items()])


@dataclass
class Drawn:
    """One box of a picture."""

    name: str | None
    kind: str
    texts: list[str]
    tooltip: str
    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


def read(svg: str) -> list[Drawn]:
    boxes = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        kind = group.get("class", "")
        if kind.startswith("node "):
            rect, title = group.find(f"{SVG}rect"), group.find(f"{SVG}title")
            assert rect is not None
            assert title is not None
            x, y, width, height = (float(rect.get(side, "")) for side in ("x", "y", "width", "height"))
            texts = [text.text or "" for text in group.iter(f"{SVG}text") if text.get("class") != "port"]
            where = (x, y, x + width, y + height)
            boxes.append(Drawn(group.get("data-name"), kind[5:], texts, title.text or "", *where))
    return boxes


def names(graph: Graph) -> dict[Node, str]:
    """What to_text calls the nodes."""
    called = {node: f"x{i}" for i, node in enumerate(graph.inputs)}
    for node in graph.nodes:
        called.setdefault(node, f"v{len(called) - len(graph.inputs)}")
    return called


def edge_segments(svg: str) -> list[tuple[float, float, float]]:
    """The level parts of all edges: y, and from which x to which."""
    found = []
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        x = y = 0.0
        if path.get("class") == "edge":
            for command, text in re.findall(r"([MHC])([^MHC]*)", path.get("d", "")):
                numbers = [float(number) for number in text.split()]
                if command == "H":
                    found.append((y, x, numbers[0]))
                    x = numbers[0]
                else:
                    x, y = numbers[-2:]
    return found


@every_graph
def test_every_node_and_output_appears_once(graph: Graph) -> None:
    boxes = read(to_svg(graph))
    assert sorted(b.name for b in boxes if b.name) == sorted(names(graph).values())
    assert sum(b.kind == "output" for b in boxes) == len(graph.outputs)


@every_graph
def test_boxes_do_not_overlap_and_lie_on_the_page(graph: Graph) -> None:
    svg = to_svg(graph, "a title")
    root, boxes = ElementTree.fromstring(svg), read(svg)
    for i, a in enumerate(boxes):
        assert 0 < a.left < a.right < float(root.get("width", ""))
        assert 40 < a.top < a.bottom < float(root.get("height", ""))
        for b in boxes[:i]:
            apart = a.right <= b.left or b.right <= a.left or a.bottom + 4 <= b.top or b.bottom + 4 <= a.top
            assert apart, (a, b)


@every_graph
def test_edges_run_to_the_right(graph: Graph) -> None:
    called = names(graph)
    boxes = {b.name: b for b in read(to_svg(graph)) if b.name}
    for node in graph.nodes:
        for argument in node.inputs:
            assert boxes[called[argument]].right < boxes[called[node]].left


@every_graph
def test_no_edge_runs_through_a_box(graph: Graph) -> None:
    svg = to_svg(graph)
    boxes = read(svg)
    for y, start, end in edge_segments(svg):
        for box in boxes:
            inside = box.top < y < box.bottom and max(start, box.left) + 0.2 < min(end, box.right)
            assert not inside, (box, y, start, end)


def test_a_chain_is_straight() -> None:
    boxes = read(to_svg(chain()))
    assert max(abs(b.middle - boxes[0].middle) for b in boxes) < 0.11


def test_a_residual_network_keeps_its_main_line_straight() -> None:
    graph = network()
    boxes = {b.name: b for b in read(to_svg(graph)) if b.name}
    heights = {round(boxes[name].middle) for node, name in names(graph).items() if node.op is UNARY}
    assert max(heights) - min(heights) < 25


@every_graph
def test_the_same_graph_gives_the_same_picture(graph: Graph) -> None:
    assert to_svg(graph, "t") == to_svg(graph, "t")
    assert to_dot(graph, "t") == to_dot(graph, "t")


def test_parameters_without_text_show_no_address() -> None:
    graph = Graph(inputs(1), (make(NOTE, inputs(1), (object(), (1, object()))),))
    for picture in (to_svg(graph), to_dot(graph)):
        assert "0x" not in picture
        assert "object at" not in picture


def test_text_is_escaped() -> None:
    nasty = '<&">\\ \x01\n]]>'
    graph = Graph(inputs(1), (make(NOTE, inputs(1), (nasty, None)),))
    svg, dot = to_svg(graph, nasty), to_dot(graph, nasty)
    note = next(b for b in read(svg) if b.name == "v0")
    assert f"text={nasty!r}" in note.texts
    assert f"text: {nasty!r}" in note.tooltip
    strings = re.findall(r'"(?:[^"\\]|\\.)*"', dot, re.DOTALL)
    assert any(r"<&\">" in text for text in strings)
    assert '"' not in re.sub(r'"(?:[^"\\]|\\.)*"', "", dot, flags=re.DOTALL)


def test_a_box_shows_op_notable_parameters_and_type() -> None:
    (x,) = inputs(1)
    boxes = {b.name: b for b in read(to_svg(Graph((x,), (make(JOIN, (x, x), (1,)),))))}
    assert boxes["x0"].texts == ["x0", "float32[3, 4]"]
    assert boxes["v0"].texts == ["picture_test_join", "axis=1", "float32[3, 4]"]
    assert boxes["v0"].kind == "move"
    lines = boxes["v0"].tooltip.splitlines()
    assert lines[:3] == ["v0 = picture_test_join(x0, x0)", "axis: 1", "float32[3, 4]"]
    assert lines[3].startswith("test_picture.py:")


def test_parameters_that_say_nothing_new_are_only_in_the_tooltip() -> None:
    graph = Graph(inputs(1), (make(NOTE, inputs(1), (float32, None)),))
    note = next(b for b in read(to_svg(graph)) if b.name == "v0")
    assert note.texts == ["picture_test_note", "float32[3, 4]"]
    assert "text: float32\nextra: None\n" in note.tooltip


def test_a_body_is_named_with_its_size() -> None:
    (x,) = inputs(1)
    body = Graph((x,), (make(UNARY, (make(UNARY, (x,)),)),))
    graph = Graph((x,), (make(LOOP, (x,), (body, 7)),))
    assert "body=body0 (3 nodes)" in next(b for b in read(to_svg(graph)) if b.name == "v0").texts
    assert "body=body0 (3 nodes)" in to_dot(graph)


def test_all_results_of_a_node_are_named() -> None:
    graph = Graph(inputs(1), (make(SPLIT, inputs(1)),))
    split = next(b for b in read(to_svg(graph)) if b.name == "v0")
    assert split.texts == ["picture_test_split", "float32[3, 4]", "float32[]"]


def test_a_constant_is_a_pill_next_to_its_users() -> None:
    (x,) = inputs(1)
    early = make(MIX, (x, const(0.1234567891)))
    late = make(MIX, (make(UNARY, (make(UNARY, (early,)),)), const(0.1234567891)))
    boxes = [b for b in read(to_svg(Graph((x,), (late,)))) if b.kind.startswith("const")]
    assert [b.texts for b in boxes] == [["0.1235"]] * 2
    assert [b.kind for b in boxes if not b.name] == ["const echo"]
    assert all("value: 0.1234567891" in b.tooltip for b in boxes)


def test_a_picture_of_too_many_nodes_is_refused() -> None:
    (x,) = inputs(1)
    y = x
    for _ in range(MAX_SVG_NODES):
        y = make(UNARY, (y,))
    with pytest.raises(UserError, match=r"\[svg\] a picture can have 1000 nodes, this graph has 1001\. ") as error:
        to_svg(Graph((x,), (y,)))
    assert "Draw a part" in str(error.value)
    assert "to_text()" in str(error.value)
    assert to_dot(Graph((x,), (y,))).count(" -> ") == MAX_SVG_NODES + 1
    assert to_svg(Graph((x,), y.inputs)).endswith("</svg>\n")


@every_graph
def test_dot_is_well_formed(graph: Graph) -> None:
    dot = to_dot(graph, "a graph")
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", dot)
    assert "rankdir=LR;" in bare
    assert '"' not in bare
    assert bare.count("{") == bare.count("}") == 1
    assert bare.count("[") == bare.count("]")
    edges = sum(len(node.inputs) for node in graph.nodes) + len(graph.outputs)
    assert len(re.findall(r"^  n\d+ -> n\d+", bare, re.MULTILINE)) == edges
    assert len(re.findall(r"^  n\d+ \[", bare, re.MULTILINE)) == len(graph.nodes) + len(graph.outputs)


def test_argument_numbers_stand_where_the_order_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = inputs(2)
    assert re.findall('headlabel="(.)"', to_dot(Graph((x, y), (make(MIX, (x, y)),)))) == ["0", "1"]
    assert to_svg(Graph((x, y), (make(MIX, (x, y)),))).count('class="port"') == 2
    assert "headlabel" not in to_dot(Graph((x,), (make(UNARY, (x,)),)))
    monkeypatch.setattr(MIX, "commutes", True)
    assert "headlabel" not in to_dot(Graph((x, y), (make(MIX, (x, y)),)))


def test_the_picture_needs_nothing_from_outside() -> None:
    svg = to_svg(network(), "network")
    assert "prefers-color-scheme:dark" in svg
    for forbidden in ("<script", "<image", "href", "@import", "url("):
        assert forbidden not in svg
    assert svg.count("http") == 1  # the name of the format
