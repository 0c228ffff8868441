"""Files that people write or pass on besides data and weights, to damage: tokenizers, descriptions of networks, tables, settings, reports."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import weft
from caffe_writer import blob, caffemodel_of
from mutate_weights import Case
from weft import io, nn
from weft.data.changes import DatasetChanges
from weft.data.doctor.decisions import FILE as DECISIONS
from weft.data.doctor.decisions import load_decisions
from weft.data.doctor.report import FILE as REPORT
from weft.data.doctor.report import CheckResult, DoctorFinding, DoctorReport, load_report
from weft.errors import UserError
from weft.insight.machines import machines
from weft.jobs.definitions import definition_facts, read_definition
from weft.jobs.profiles.store import stored_profile
from weft.jobs.settings import SETTINGS
from weft.jobs.weights_store import ABOUT, find_stored
from weft.jobs.yaml_files import read_settings
from weft.plan import calibration
from weft.plan.clusters import clusters
from weft.plan.rank_measures import RankMeasures
from weft.text import load_pretrained, load_tokenizer
from weft.text.tokenizer import SubwordTokenizer
from weft.tree import flatten

DIGEST = "0123"


def _written(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).write_text(content), None][1]


# --- text ----------------------------------------------------------------------------------------------------------------------


def _make_tokenizers(folder: Path) -> None:
    SubwordTokenizer.train("the quick brown fox jumps over the lazy dog " * 4, 280).save(folder / "tokenizer.json")
    (folder / "data.json").write_text(json.dumps({"vocabulary": "abcdefgh é"}))


def _read_tokenizer(folder: Path) -> Any:
    return load_tokenizer(folder / "tokenizer.json").encode("the quick fox é").tolist()


def _read_characters(folder: Path) -> Any:
    return load_tokenizer(folder / "data.json").vocabulary


def _make_gpt(folder: Path) -> None:
    """A tiny GPT-2 in the form of Hugging Face."""
    config = {"model_type": "gpt2", "vocab_size": 11, "n_positions": 8, "n_embd": 4, "n_head": 2, "n_layer": 1}
    (folder / "config.json").write_text(json.dumps(config))
    sizes = {"ln_1": (4,), "attn.c_attn": (4, 12), "attn.c_proj": (4, 4), "ln_2": (4,), "mlp.c_fc": (4, 16), "mlp.c_proj": (16, 4)}  # fmt: skip
    shapes = {"wte.weight": (11, 4), "wpe.weight": (8, 4), "ln_f.weight": (4,), "ln_f.bias": (4,)}
    for name, shape in sizes.items():
        shapes |= {f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[-1:]}
    io.save(folder / "model.safetensors", {n: np.linspace(-1, 1, int(np.prod(s)), dtype=np.float32).reshape(s) for n, s in shapes.items()})  # fmt: skip


def _read_gpt(folder: Path) -> Any:
    return load_pretrained(folder)(weft.asarray([[1, 2, 3]])).tolist()


# --- networks --------------------------------------------------------------------------------------------------------------------

NETWORK = """
name: small
input: [1, 12, 12]
classes: 4
blocks:
  unit: {parameters: {wide: 6}, layers: [conv: {out: wide, kernel: 3, padding: 1}, batch_norm, relu]}
layers:
  - unit: {wide: 8}
  - max_pool: 2
  - flatten
  - linear: {out: 10, activation: relu}
  - linear: classes
"""


def _read_definition(folder: Path) -> Any:
    try:
        return definition_facts(read_definition(folder / "net.yaml")).parameters
    except UserError as error:  # problems of layers name the line; who planned the network knows the file
        return error.message


def _make_caffe(folder: Path) -> None:
    rng = np.random.default_rng(1)
    filters, product = rng.normal(size=(4, 3, 3, 3)), rng.normal(size=(2, 36))
    (folder / "net.caffemodel").write_bytes(caffemodel_of({"c": [filters, np.ones(4)], "fc": [product, np.ones(2)]}))
    (folder / "deploy.prototxt").write_text(
        'input: "data" input_dim: 1 input_dim: 3 input_dim: 5 input_dim: 5\n'
        'layer { name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: 4 kernel_size: 3 } }\n'
        'layer { name: "r" type: "ReLU" bottom: "c" top: "c" }\n'
        'layer { name: "fc" type: "InnerProduct" bottom: "c" top: "fc" inner_product_param { num_output: 2 } }\n'
    )
    (folder / "mean.binaryproto").write_bytes(blob(np.arange(75.0).reshape(1, 3, 5, 5), old=True))


def _read_caffe(folder: Path) -> Any:
    network = io.load_caffe_network(folder / "deploy.prototxt", folder / "net.caffemodel")
    try:
        return network(weft.ones((1, 3, 5, 5))).tolist()
    except UserError as error:  # a network of other sizes
        return error.message


def _read_mean(folder: Path) -> Any:
    found = io.load_caffe_mean(folder / "mean.binaryproto")
    return found.shape, found.tobytes()


def _make_external(folder: Path) -> None:
    weft.seed(5)
    weft.onnx.save(folder / "inside.onnx", nn.Linear(4, 3).eval(), weft.ones((2, 4)))
    model = onnx.load(folder / "inside.onnx")
    onnx.save(model, folder / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)


def _read_external(folder: Path) -> Any:
    try:
        return [tensor.tolist() for tensor in flatten(weft.load(folder / "net.onnx").eval()(weft.ones((3, 4))))[0]]
    except (
        UserError
    ) as error:  # a damaged model may have other inputs and results, and what is said of a tensor follows its name
        return error.message


# --- tables and settings ----------------------------------------------------------------------------------------------------------

PACKAGE = Path(weft.__file__).parent


def _make_tables(folder: Path) -> None:
    for name in ("insight/machines.yaml", "plan/clusters.yaml"):
        (folder / Path(name).name).write_bytes((PACKAGE / name).read_bytes())


def _make_measured(folder: Path) -> None:
    measures = RankMeasures(((1e3, 1e-5), (1e6, 1e-3)), 1.1, 1.2, ((1e5, 1.0), (1e7, 1.4)))
    calibration.MeasuredCluster({1: measures, 2: measures}, "a CPU", 2, 8e9).save(folder / "measured.json")


SETTINGS_TEXT = "data: digits\nmodel: lenet5_classic\nepochs: 3\nrate: 1e-3\nbetas: [0.9, 0.99]\nflip: no\n"


def _make_report(folder: Path) -> None:
    finding = DoctorFinding(
        "copies", "warning", (("train", 1), ("train", 2)), "two", 0.9, DatasetChanges(remove={"train": (2,)})
    )
    result = CheckResult("copies", "Copies", "warning", "one pair", (finding,), 0.1)
    DoctorReport("photos", DIGEST, {"seed": 0}, (result,), True, 1.0, 0.2).save(folder)
    (folder / DECISIONS).write_text(json.dumps({"digest": DIGEST, "decisions": {finding.id: "remove"}}))
    (folder / "changes.json").write_text(json.dumps({"remove": {"train": [2, 3]}, "rename": {"cat": "cats"}}))


def _read_decided(folder: Path) -> Any:
    report = load_report(folder, DIGEST)
    made = load_decisions(folder, DIGEST)
    return report, made, report and made.changes(report)


PROFILE = "20260101-000000-cpu-b3-forward"


def _make_profile(folder: Path) -> None:
    found = weft.profile(nn.Linear(4, 2), weft.ones((3, 4)), repeats=1)
    (folder / f"{PROFILE}.json").write_text(found.to_json())


def _make_stored(folder: Path) -> None:
    (folder / "weights" / "lenet5").mkdir(parents=True)
    entry = {"name": "lenet5", "network": "lenet5", "library": "caffe", "sha256": "0" * 64, "bytes": 3, "licence": "MIT", "origin": "here"}  # fmt: skip
    (folder / "weights" / "lenet5" / ABOUT).write_text(json.dumps(entry))


def _read_stored(folder: Path) -> Any:
    with weft.knobs.set(data=os.fspath(folder)):
        return find_stored("lenet5")


TEXTS: dict[str, Case] = {
    "tokenizer": Case(("tokenizer.json",), _make_tokenizers, _read_tokenizer, False),
    "characters": Case(("data.json",), _make_tokenizers, _read_characters, False),
    "gpt2": Case(("config.json",), _make_gpt, _read_gpt, False),
    "network": Case(("net.yaml",), _written("net.yaml", NETWORK), _read_definition, False),
    "caffe network": Case(("deploy.prototxt", "net.caffemodel"), _make_caffe, _read_caffe, False),
    "caffe mean": Case(("mean.binaryproto",), _make_caffe, _read_mean, False),
    "onnx data": Case(("net.onnx", "net.data"), _make_external, _read_external, False),
    "machines": Case(("machines.yaml",), _make_tables, lambda f: machines(f / "machines.yaml"), False),
    "clusters": Case(("clusters.yaml",), _make_tables, lambda f: clusters(f / "clusters.yaml"), False),
    "measured cluster": Case(("measured.json",), _make_measured, lambda f: calibration.here(f / "measured.json"), False),
    "settings": Case(("args.yaml",), _written("args.yaml", SETTINGS_TEXT), lambda f: read_settings("train", f / "args.yaml", SETTINGS), False),
    "doctor": Case((REPORT, DECISIONS), _make_report, _read_decided, False),
    "changes": Case(("changes.json",), _make_report, lambda f: DatasetChanges.read(f / "changes.json"), False),
    "profile": Case((f"{PROFILE}.json",), _make_profile, lambda f: stored_profile(f, PROFILE), False),
    "stored weights": Case((f"weights/lenet5/{ABOUT}",), _make_stored, _read_stored, False),
}  # fmt: skip
