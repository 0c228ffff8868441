"""Networks as text: the grammar, every kind of error with its line and fix, bounds, and the zoo written as text."""

import random
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import nn, zoo
from weft.cli import main
from weft.errors import UserError
from weft.io import save
from weft.jobs.definitions import definition_file, kept_definition
from weft.jobs.network_store import NetworkStore
from weft.jobs.prediction.find import find_predictor
from weft.jobs.stored import settings_of
from weft.nn.module import without_values
from weft.zoo.definition import (
    DefinitionError,
    Fix,
    NotExpressible,
    TextProblem,
    layer_specs,
    network_as_text,
    network_costs,
    network_from_text,
    parse_network,
    plan_network,
    zoo_network_as_text,
)
from weft.zoo.definition import plan as planning

SMALL = """\
name: small
input: [3, 16, 16]
classes: 4
blocks:
  stage:
    arguments: {width: 8, stride: 1}
    layers:
      - conv_norm: {out: width, stride: stride}
      - residual:
          layers: [conv_norm: same, conv: {out: width, kernel: 3}]
          activation: relu
layers:
  - stage: {width: 8, name: low}
  - stage: {width: 2 * 8, stride: 2}
  - conv_transpose: half
  - concat: [low, previous]
  - branches:
      paths:
        - [conv: {out: 6, kernel: 1}]
        - [max_pool: {size: 3, stride: 1, padding: 1}, conv: {out: 6, kernel: 1}]
      merge: add
  - repeat:
      times: 2
      layers: [conv: {out: same, groups: same}, relu]
  - global_avg_pool
  - linear: classes
"""


def problem(text: str, shape: tuple[int, ...] | None = None) -> TextProblem:
    with pytest.raises(DefinitionError) as raised:
        plan_network(parse_network(text), shape)
    return raised.value.problems[0]


def fixed(text: str, fix: Fix) -> str:
    """The text with a change applied, as the page does it."""
    lines = text.splitlines(keepends=True)
    starts = [sum(map(len, lines[:i])) for i in range(len(lines) + 1)]
    begin = starts[fix.place.line - 1] + fix.place.column - 1
    end = starts[fix.place.end_line - 1] + fix.place.end_column - 1
    return text[:begin] + fix.text + text[end:]


def test_blocks_branches_repeats_and_layers_that_read_earlier_ones() -> None:
    plan = plan_network(parse_network(SMALL))
    shapes = {layer.path: layer.output for layer in plan.layers}
    assert shapes["layers.low"] == (8, 16, 16)
    assert shapes["layers.1"] == (16, 8, 8)
    assert shapes["layers.3"] == (16, 16, 16)  # low and the layer before it
    assert shapes["layers.4"] == (6, 16, 16)
    assert [layer.path for layer in plan.layers[5:9]] == ["layers.5", "layers.6", "layers.7", "layers.8"]
    model = plan.build()
    assert model(np.ones((2, 3, 16, 16), np.float32)).shape == (2, 4)
    assert "layers.low.layers.1.body.layers.0.layers.0.weight" in model.named_tensors()
    costs = network_costs(plan)
    found = nn.summary(model, (1, 3, 16, 16))
    assert (costs.parameters, costs.macs) == (found.parameters, found.macs)
    assert sum(one.parameters for one in costs.layers if one.depth == 0) == found.parameters
    assert sum(one.macs for one in costs.layers if one.depth == 0) == found.macs
    assert costs.largest_batch(costs.training_bytes(64)) in (63, 64)


def test_sizes_follow_the_data_and_names_are_stable() -> None:
    text = "layers: [conv: {out: 4, name: first}, global_avg_pool, linear: classes]"
    one, other = network_from_text(text, (1, 8, 8), 3), network_from_text(text, (3, 20, 12), 7)
    assert list(one.named_tensors()) == list(other.named_tensors())
    assert one.named_tensors()["layers.first.weight"].shape == (4, 1, 3, 3)
    assert other.named_tensors()["layers.2.weight"].shape == (7, 4)


def test_every_layer_can_be_written_with_its_defaults() -> None:
    shapes = {"Sequence": (6, 8), "Linear": (8,)}
    given = {
        "conv1d": (2, 8), "max_pool1d": (2, 8), "avg_pool1d": (2, 8), "conv3d": (2, 4, 4, 4), "tokens": (8, 4, 4), "embedding": (6,), "reshape": (8,),
        "permute": (2, 3), "threshold": (8,),
    }  # fmt: skip
    values = {
        "permute": "[0, 2, 1]", "reshape": "[2, -1]", "shortcut": "{new: 2, stride: 1}", "threshold": "{threshold: 0, value: 1}",
        "residual": "[relu]", "branches": "[[relu], []]", "repeat": "{times: 2, layers: [relu]}", "sequence": "[relu]", "glu": "{axis: 1}",
        "attention": "2", "transformer_encoder": "2", "transformer_block": "2", "learned_positions": "8", "pixel_shuffle": "2", "maxout": "2", "group_norm": "2", "linear": "8",
    }  # fmt: skip
    for name, spec in layer_specs().items():
        if spec.merges:
            text = f"layers: [{name}: [input, previous]]"
        else:
            needs = any(one.is_required for one in spec.arguments.values())
            value = values.get(name, "1" if needs else "")
            text = f"layers: [{name}: {value}]" if value else f"layers: [{name}]"
        shape = given.get(name) or shapes.get(spec.group, (8, 6, 6))
        plan = plan_network(parse_network(text), shape, 8)
        assert plan.layers[0].output, name


@pytest.mark.parametrize(
    ("text", "line", "said", "repaired"),
    [
        ("layers:\n  - conv: 8\n  - relo\n", 3, "Unknown layer “relo”", "  - relu\n"),
        ("layers:\n  - conv: {out: 8, kernal: 3}\n", 2, "argument of conv", "kernel: 3"),
        ("layers:\n  - conv: {filters: 8}\n", 2, "Did you mean out?", "{out: 8}"),
        ("layers:\n  - conv: {out: 8.0}\n", 2, "whole number", "{out: 8}"),
        ("layers:\n  - conv: {out: -8}\n", 2, "from 1 to", None),
        ("layers:\n  - conv: {out: 99999999}\n", 2, "from 1 to", None),
        ("layers:\n  - conv\n", 2, "requires out", "conv: 32"),
        ("layers:\n  - conv: {out: dubble}\n", 2, "Unknown name", "{out: double}"),
        ("layers:\n  - conv: {out: 8, activation: rellu}\n", 2, "Unknown activation", "relu"),
        ("layers:\n  - conv: {out: 8, init: he_normale}\n", 2, "Unknown initializer", "he_normal"),
        ("layers:\n  - conv: {out: 8, bias: 1}\n", 2, "true or false", "bias: true"),
        ("layers:\n  - dropout: 20\n", 2, "from 0 to", "dropout: 0.2"),
        ("layers:\n  - relu: 3\n", 2, "takes no value", None),
        ("layers:\n  - max_pool: [1, 2, 3, 4]\n", 2, "list of 4", None),
        ("layers:\n  - conv: {out: 8, padding: saem}\n", 2, "Unknown padding", "same"),
        ("layers:\n  - conv: 3, kernel: 3\n", 2, "YAML is required", None),
        ("layers:\n  - {conv: 3, kernel: 3}\n", 2, "stand in braces", "{conv: {out: 3, kernel: 3}}"),
        ("layers:\n\t- relu\n", 2, "YAML is required", None),
        ("layers: []\n", 1, "At least one layer", None),
        ("layer:\n  - relu\n", 1, "Unknown setting", "layers:"),
        ("- relu\n- - relu\n", 2, "A layer is required", None),
        ("input: 3 x 4\nlayers: [relu]\n", 1, "whole number", None),
        ("layers:\n  - concat: [lwo, previous]\n", 2, "Unknown earlier layer", None),
        ("layers:\n  - concat\n", 2, "needs the layers", None),
        ("layers:\n  - relu: {from: [input, previous]}\n", 2, "reads one layer", None),
        ("layers:\n  - relu: {name: 3x}\n", 2, "A name of letters", None),
        ("layers:\n  - linear: 10\n", 2, "linear reads vectors", "- flatten\n  - linear: 10"),
        ("layers: [linear: 10]\n", 1, "linear reads vectors", "[flatten, linear: 10]"),
        ("classes: 3\nlayers:\n  - flatten\n  - linear: 10\n", 4, "there are 3 classes", "linear: classes"),
        ("layers:\n  - residual: [conv: double]\n", 2, "one shape is required", None),
        ("layers:\n  - branches: {paths: [[conv: 4], [conv: 8]], merge: add}\n", 2, "Branches of one shape", None),
        ("layers:\n  - conv: {out: 8, kernel: 99, padding: 0}\n", 2, "", None),
        ("layers:\n  - conv: {out: 8, groups: 2}\n", 2, "", None),
        ("layers:\n  - conv: {out: half}\n", 2, "Unknown name “half”", None),
        ("layers:\n  - conv: {out: same / 2}\n", 2, "does not divide", None),
        ("layers:\n  - flatten: {start: 0}\n", 2, "which is the batch", None),
        ("blocks:\n  relu: [conv: 3]\nlayers: [relu]\n", 2, "is a layer already", None),
        ("blocks:\n  qqq: [qqq]\nlayers: [qqq]\n", 2, "Unknown layer “qqq”", None),
        ("blocks:\n  a: {arguments: {w: 2}, layers: [conv: v]}\nlayers: [a]\n", 2, "Unknown name “v”", None),
        ("", 1, "The text is empty", None),
        ("hello", 1, "begins with `layers:`", None),
        ("a: 1\n---\nb: 2\n", 2, "second document", None),
        ("layers: [relu]\nlayers: [relu]\n", 2, "required once", None),
    ],
)  # fmt: skip
def test_errors_have_their_line_and_a_fix(text: str, line: int, said: str, repaired: str | None) -> None:
    found = problem(text, (3, 8, 8))
    assert found.place.line == line
    assert said in str(found)
    assert (found.fix is not None) == (repaired is not None), found
    if repaired is not None and found.fix is not None:
        assert repaired in fixed(text, found.fix)


def test_all_problems_of_a_text_are_reported_together() -> None:
    with pytest.raises(DefinitionError) as raised:
        parse_network("layers:\n  - relo\n  - conv: {out: x1}\n  - linaer: 3\n")
    assert [one.place.line for one in raised.value.problems] == [2, 3, 4]
    assert str(raised.value.problems[2].fix and raised.value.problems[2].fix.text) == "linear"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [1]\nlayers: [*a]", "anchors and aliases"),
        ("a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]", "anchors and aliases"),
        ("layers: !!python/object/apply:os.system [echo]", "tags"),
        ("layers: [!!int 3]", "tags"),
        ("[" * 100 + "]" * 100, "nested"),
        ("layers: [" + "relu, " * 50_000 + "]", "at most"),
        ("x" * 300_000, "characters"),
        ('layers: ["\\UFFFFFFFF"]', "YAML"),
        ("layers: [repeat: {times: 1000, layers: [repeat: {times: 1000, layers: [repeat: {times: 1000, layers: []}]}]}]", "layers is accepted"),
        ("blocks:\n  a: [relu]\n" + "".join(f"  a{i}: [{', '.join([f'a{i - 1}' if i else 'a'] * 9)}]\n" for i in range(12)) + "layers: [a11]\n", "layers is accepted"),
        ("layers: [flatten, repeat: {times: 50, layers: [linear: 1000000]}]", "parameters"),
        ("layers: [conv: {out: 1000000, kernel: 1}]", "numbers are accepted"),
        ("layers: [repeat: {times: 20, layers: [upsample: 16]}]", "numbers are accepted"),
        ("layers: [lstm: {hidden: 8, layers: 1000000}]", "from 1 to 32"),
        ("input: [16384, 256]\nlayers: [repeat: {times: 30, layers: [attention: {heads: 2, rotary: true}]}]", "Tables of positions"),
        ("layers: [conv: {out: " + "2 * " * 40 + "2}]", "whole number"),
    ],
)  # fmt: skip
def test_texts_that_would_cost_too_much_are_refused(text: str, said: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        plan_network(parse_network(text))
    assert said in str(raised.value)


def _problems_of(text: str, shape: tuple[int, ...] | None) -> list[TextProblem]:
    try:
        plan_network(parse_network(text), shape)
    except DefinitionError as error:
        return [one for one in error.problems if one.place.line >= 1 and one.message]
    return []


def test_mutated_texts_raise_nothing_but_the_definition_error() -> None:
    generator = random.Random(3)
    texts = [SMALL, zoo_network_as_text("resnet20").text[:600], zoo_network_as_text("char_lstm").text]
    alphabet = "abz019 \n\t:-{}[],\"'#&*!|>%@`\\?~.é\x00\ufeff"
    valid = 0
    for number in range(150):
        text = list(texts[number % len(texts)])
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(text))
            kind = generator.randrange(3)
            if kind == 0:
                text[at] = generator.choice(alphabet)
            elif kind == 1:
                del text[at : at + generator.randint(1, 12)]
            else:
                other = generator.randrange(len(text))
                text[at:at] = text[other : other + generator.randint(1, 30)]
        valid += not _problems_of("".join(text), None if number % 3 else (3, 16, 16))
    assert 3 < valid < 147


NOT_EXPRESSIBLE = {
    "gpt": "shares the weights",
    "gpt2": "shares the weights",
    "whitened_cnn": "no layer for WhitenedCNN",
}


@pytest.mark.sweep(share=0.2)
@pytest.mark.parametrize("name", [name for name in zoo.names() if name not in NOT_EXPRESSIBLE])
def test_networks_of_the_zoo_are_written_with_the_same_parameters(name: str) -> None:
    found = zoo_network_as_text(name)
    facts = zoo.catalogue.FACTS[name]
    plan = plan_network(parse_network(found.text))
    with without_values():
        tensors = plan.build().named_parameters()
    counted = sum(int(np.prod(t.shape)) for t in tensors.values())
    assert counted == facts.parameters
    assert set(tensors) <= set(found.names)
    assert len(set(found.names.values())) == len(found.names)


@pytest.mark.parametrize(
    ("name", "shape"), [("lenet5", (1, 28, 28)), ("resnet20", (3, 16, 16)), ("squeezenet1_1", (3, 33, 33)), ("char_lstm", (5,))]
)  # fmt: skip
def test_a_network_and_its_text_compute_the_same(name: str, shape: tuple[int, ...]) -> None:
    found = zoo_network_as_text(name)
    model = zoo.find(name)(65) if name == "char_lstm" else zoo.find(name)(classes=65, channels=shape[0])
    copy = network_from_text(found.text, shape, 65)
    values = model.named_tensors()
    copy.load({mine: values[theirs].numpy() for mine, theirs in found.names.items()})
    generator = np.random.default_rng(0)
    x = (
        generator.normal(size=(2, *shape)).astype(np.float32)
        if len(shape) == 3
        else generator.integers(0, 65, (2, *shape))
    )
    wanted = model.eval()(x)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    np.testing.assert_allclose(copy.eval()(x).numpy(), wanted.numpy(), rtol=1e-5, atol=1e-5)


def test_copies_keep_the_names_and_the_initialization_of_their_network() -> None:
    found = zoo_network_as_text("resnet18")
    assert all(mine == theirs for mine, theirs in found.names.items())  # so weights of runs fit by name
    assert "linear: {out: classes, init: fan_in_uniform}" in found.text
    assert "init: zeros" in zoo_network_as_text("vit_tiny").text


@pytest.mark.parametrize(("name", "reason"), NOT_EXPRESSIBLE.items())
def test_what_the_language_cannot_express_is_said(name: str, reason: str) -> None:
    with pytest.raises(NotExpressible, match=reason):
        zoo_network_as_text(name)


def test_the_parameters_of_a_batch_norm_are_written() -> None:
    norms = [nn.BatchNorm2d(4), nn.BatchNorm2d(4, scaled=False), nn.BatchNorm2d(4, affine=False)]
    for norm in norms:
        model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
        found = network_as_text(model, (3, 8, 8), 2)
        copy = network_from_text(found.text, (3, 8, 8), 2)
        assert {found.names[name] for name in copy.named_parameters()} == set(model.named_parameters())


def test_the_sizes_of_attention_are_written() -> None:
    layers = [
        nn.MultiHeadAttention(8, 2), nn.MultiHeadAttention(8, 4, key_heads=2, head_size=6, value_size=3, bias=False),
        nn.TransformerBlock(8, 2, window=3, rotary=True),
    ]  # fmt: skip
    found = network_as_text(nn.Sequential(*layers, nn.Flatten(), nn.Linear(40, 2)), (5, 8), 2)
    assert "- attention: 2\n" in found.text
    assert "- attention: {heads: 4, key_heads: 2, head_size: 6, value_size: 3, bias: false}" in found.text
    assert "- transformer_block: {heads: 2, rotary: true, window: 3}" in found.text
    copy = network_from_text(found.text, (5, 8), 2)
    assert copy.named_tensors()["layers.1.output.weight"].shape == (8, 12)


def test_a_run_keeps_the_text_of_its_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "input: [1, 8, 8]\nlayers:\n  - flatten\n  - linear: {out: 16, activation: relu}\n  - linear: classes\n"
    Path("net.yaml").write_text(text)
    assert main(["networks", "save", "net.yaml", "name=mine"]) == 0
    assert main(["train", "digits", "model=net.yaml", "epochs=1", "name=one", "overfit=0"]) == 0
    Path("net.yaml").unlink()
    run = Path("runs/classify/one")
    kept = kept_definition(run)
    assert kept is not None
    assert kept.read_text() == text
    assert settings_of("eval", run)["model"] == str(kept)
    assert find_predictor("predict", str(run)).shape == (1, 8, 8)
    assert main(["resume", str(run), "epochs=2"]) == 0
    assert main(["export", str(run), "out=one.weft"]) == 0
    assert definition_file("mine", "runs") == Path("runs/.networks/mine.yaml")
    assert main(["networks", "import", "one.weft", "name=program"]) == 0
    assert NetworkStore("runs").imported()[0].is_runnable
    assert main(["networks", "import", str(run / "weights" / "best.safetensors"), "name=weights"]) == 0
    assert main(["train", "digits", "model=mine", "weights=weights", "fast_dev_run=1"]) == 0
    assert main(["train", "digits", "model=other.yaml"]) == 2


def test_the_command_line_shows_checks_and_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["networks", "show", "lenet"]) == 0
    Path("lenet.yaml").write_text(capsys.readouterr().out)
    assert main(["networks", "check", "lenet.yaml"]) == 0
    assert "431,080" in capsys.readouterr().out
    assert main(["summary", "lenet.yaml", "size=32"]) == 0
    assert "Conv2d" in capsys.readouterr().out
    Path("bad.yaml").write_text("layers:\n  - relo\n")
    assert main(["summary", "bad.yaml"]) == 2
    assert "line 2, column 5" in capsys.readouterr().err


def test_the_store_keeps_versions_and_refuses_names(tmp_path: Path) -> None:
    store = NetworkStore(tmp_path)
    assert store.save("mine", "layers: [relu]") == 1
    assert store.save("mine", "layers: [tanh]") == 2
    assert store.save("mine", "layers: [tanh]") == 2
    assert (store.versions("mine"), store.text("mine", 1), store.text("mine")) == (
        [1, 2],
        "layers: [relu]",
        "layers: [tanh]",
    )
    for name in ("resnet18", "../up", "a/b", "", "x" * 80, "9lives"):
        with pytest.raises(UserError):
            store.save(name, "layers: [relu]")
    with pytest.raises(DefinitionError):
        store.save("other", "layers: [relo]")
    store.delete("mine")
    assert store.names() == []
    assert store.versions("mine") == []
    with pytest.raises(UserError, match="there is no network"):
        store.text("mine")


def test_weights_are_recognized(tmp_path: Path) -> None:
    save(tmp_path / "net.safetensors", {n: t.numpy() for n, t in zoo.lenet5(classes=4).named_tensors().items()})
    store = NetworkStore(tmp_path / "runs")
    found = store.import_file(tmp_path / "net.safetensors", "mine")
    assert (found.kind, found.network, found.is_runnable) == ("weights", "lenet5", False)
    with pytest.raises(UserError, match="not taken"):
        store.import_file(tmp_path / "net.safetensors", "mine")
    (tmp_path / "net.py").write_text("raise SystemExit")
    with pytest.raises(UserError, match="is required"):
        store.import_file(tmp_path / "net.py")
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(weft.errors.WeftError):
        store.import_file(tmp_path / "bad.onnx")
    assert [one.name for one in store.imported()] == ["mine"]


def test_limits_are_checked_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MOST_LAYERS", 4)
    plan_network(parse_network("layers: [relu, relu, relu, relu]"))
    with pytest.raises(DefinitionError, match="at most 4 layers"):
        plan_network(parse_network("layers: [relu, relu, relu, relu, relu]"))
