"""`weft profile`: what the report holds, what is rejected, and what is only noted."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import weft
from cli_tools import told
from weft import nn
from weft.cli import main
from weft.errors import RunError, UserError
from weft.insight import machine
from weft.insight.machines_text import machine_figures
from weft.insight.side_by_side import MachineRow
from weft.insight.throughput_table import ThroughputRow, ThroughputTable
from weft.jobs.prediction.predictor import Predictor
from weft.jobs.profiles import report as module
from weft.jobs.profiles.report import ProfileOptions, ProfileReport, profile_report
from weft.jobs.profiles.subject import find_subject
from weft.runtime import device as find_device

SMALL = ["mlp", "size=8", "classes=3", "seconds=0"]  # little to compile


def test_everything_as_text_with_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"trace={tmp_path / 'trace.json'}", f"plot={tmp_path / 'plot.svg'}"]
    assert main(["profile", *SMALL, "batch=1,2", "machine=titan-x,here", "rows=2", *files]) == 0
    said = capsys.readouterr().out
    for part in ("mlp for 1x8x8 images, 3 classes, infer, batch 2", "a call on", "inferences/s", "p99"):
        assert part in said
    for part in ("titan-x", "projected", "here", "measured", "layers with less time are not shown", "modelled"):
        assert part in said
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for name in ("plot.svg", "plot-throughput.svg"):
        ElementTree.parse(tmp_path / name)
        assert name in said


def test_a_training_step_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "profile", *SMALL, "batch=2", "what=train", "examples=600", "machine=tegra-x1:float16")
    assert found.keys() == {"subject", "what", "batch", "profiles", "throughput", "machines", "published", "notes"}
    [(name, measured)] = found["profiles"].items()
    assert name == "cpu"
    assert {phase for layer in measured["layers"] for phase in layer["phases"]} == {"forward", "backward", "update"}
    [row] = found["throughput"]["rows"]
    assert (row["what"], row["batch"], row["device"]) == ("train", 2, "cpu")
    assert found["throughput"]["examples"] == 600
    [projected] = found["machines"]
    assert (projected["machine"], projected["how"], projected["format"]) == ("tegra-x1", "projected", "float16")


def test_a_program_that_takes_one_batch_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "net.weft")
    weft.save(path, nn.Sequential(nn.Linear(4, 3)).eval(), weft.ones((5, 4)), dynamic=False)
    assert told(capsys, "profile", path, "seconds=0")["batch"] == 5
    assert main(["profile", path, "seconds=0", "batch=2"]) == 2
    assert "net.weft takes a batch of 5 only, got 2." in capsys.readouterr().err
    assert main(["profile", path, "seconds=0", "what=train"]) == 2
    assert "net.weft has no training step. Use what=infer." in capsys.readouterr().err


@pytest.mark.parametrize("shape", [("batch", 6), ("n", 6), ("n", 3, 6), ("rows", "n", 6)], ids=str)
def test_the_leading_open_dimension_is_the_batch(tmp_path: Path, shape: tuple[Any, ...]) -> None:
    """Whatever it is called when the network is saved."""
    weft.save(tmp_path / "net.weft", nn.Linear(6, 2).eval(), weft.TensorSpec(shape))
    subject = find_subject(str(tmp_path / "net.weft"))
    assert subject.only_batch is None
    assert [subject.inputs(batch)[0].shape[0] for batch in (1, 5)] == [1, 5]


def test_a_device_that_is_missing_is_noted_beside_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(module.DEVICES, "both", ("cpu", "cuda:99"))
    found = told(capsys, "profile", *SMALL, "batch=1", "device=both")
    assert list(found["profiles"]) == ["cpu"]
    [note] = found["notes"]
    assert note.startswith("cuda:99: ")
    assert main(["profile", *SMALL, "device=cuda:99"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_device_that_is_lost_while_it_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.DEVICES, "both", ("cpu", "reference"))
    monkeypatch.setattr(find_device("reference"), "has_kernels", True)
    plain = module.profile

    def lost(*args: Any, **kwargs: Any) -> Any:
        if module.knobs.device == "reference":
            raise RunError("cuda", "the GPU is lost.")
        return plain(*args, **kwargs)

    monkeypatch.setattr(module, "profile", lost)
    monkeypatch.setattr(module, "throughput", lambda *_, **__: module.ThroughputTable(()))
    report = profile_report(find_subject("perceptron"), ProfileOptions((1,), device="both"))
    assert list(report.profiles) == ["cpu"]
    assert report.notes == ("reference: the GPU is lost.",)
    assert "note: reference: the GPU is lost." in str(report)
    options = ProfileOptions((1,), device="reference", machines=(("titan-x", None),))
    with pytest.raises(RunError, match="the GPU is lost"):
        profile_report(find_subject("perceptron"), options)
    row = ThroughputRow("reference", "infer", 1, 9, 0.1, 0.1, 0.1, 10.0)
    monkeypatch.setattr(module, "throughput", lambda *_, **__: module.ThroughputTable((row,)))
    report = profile_report(find_subject("perceptron"), options)
    assert (report.profiles, report.machines, len(report.throughput.rows)) == ({}, (), 1)
    assert "100 ms" in str(report), "what was measured before is shown"


@pytest.mark.parametrize("device", ["null", "reference"])
@pytest.mark.parametrize("words", [SMALL, [*SMALL, "against=mlp"], ["data=digits"]], ids=" ".join)
def test_a_device_without_kernels_is_not_profiled(
    device: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its times would be those of the CPU's kernels, beside calls that take another time."""
    assert main(["profile", *words, f"device={device}"]) == 2
    assert (
        f"[profile] a device that runs kernels is required, got {device}. Use cpu or cuda." in capsys.readouterr().err
    )


def test_one_layer_against_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "both.svg"
    assert main(["profile", *SMALL, "batch=1", "rounds=3", "--against", "mlp", f"plot={plot}"]) == 0
    drawn = plot.read_text()
    assert {'data-series="A: ', 'data-series="B: '} <= {drawn[at : at + 16] for at in range(len(drawn))}
    said = capsys.readouterr().out
    assert "beyond noise (3 rounds, interleaved" in said
    assert "only it has" not in said
    found = told(capsys, "profile", *SMALL, "batch=1", "rounds=3", "against=perceptron")
    assert found["names"][1].startswith("perceptron for")
    assert found["only"][0]  # names of layers that a perceptron does not have
    assert found["rounds"] == 3


def test_machines_with_every_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "machines"]) == 0
    assert {"titan-x", "tpu-v1", "h200"} <= set(capsys.readouterr().out.split())
    assert main(["profile", "machines", "titan-x,xeon-e5-2698-v3"]) == 0
    titan, core = capsys.readouterr().out.split("\n\n")
    assert "power: 250 W\n    NVIDIA GeForce GTX TITAN X specifications (2015)" in titan
    assert titan.count("checked: ") + titan.count("quoted, not compared again") == len(list(machine_figures(machine("titan-x"))))  # fmt: skip
    assert "modelled: as measured on a V100" in titan
    assert "quoted, not compared again" in core
    assert "checked: " not in core
    found = told(capsys, "profile", "machines", "h200")
    assert found["h200"]["power"]["value"] == 700
    assert found["h200"]["power"]["checked"].startswith("memory, bandwidth, power")


WRONG = {
    "nothing": ([], "a network, a file or a run is required, got none"),
    "a slip": (["lenett"], "'lenett' is neither a network, a file nor a run. Did you mean lenet"),
    "a machine": (["lenet", "machine=titan-y"], "there is no machine 'titan-y'. Did you mean titan-x"),
    "no machine": (["machines", "titan-y"], "there is no machine 'titan-y'. Did you mean titan-x"),
    "a format": (["lenet", "machine=titan-x:int9"], "a format is one of"),
    "a machine that computes in int8": (["lenet", "machine=tpu-v1"], "tpu-v1 computes in int8, got float32."),
    "a table": (["lenet", "machine=titan-x", "machines=gone.yaml"], "the file gone.yaml cannot be read"),
    "a folder": (["lenet", "trace=gone/trace.json"], "trace=gone/trace.json needs a folder that exists, got gone."),
    "no batch": (["lenet", "batch=0"], "batch=0 cannot be used"),
    "what": (["lenet", "what=learn"], "it must be infer or train"),
    "trace of a comparison": (["lenet", "against=lenet", "trace=t.json"], "trace= does not go with --against"),
    "machine of energies": (["lenet", "energy=true", "machine=titan-x"], "machine= does not go with energy=true"),
    "rounds": (["lenet", "against=lenet", "rounds=2"], "it must be 3 or more"),
    "two devices": (["lenet", "against=lenet", "device=both"], "a comparison is measured on one device"),
    "a folder as a file": (["lenet", "plot=."], "plot=. must be a file, got a folder."),
    "a length of images": (["lenet", "length=9"], "lenet takes images, got length=. Leave it out."),
    "a size of text": (["char_lstm", "size=32", "classes=3"], "char_lstm takes text, got size=, classes=."),
    "no classes": (["linear_regression", "what=train"], "has no training step. Use what=infer."),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, message = WRONG[name]
    assert main(["profile", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


def test_a_file_keeps_its_sizes(tmp_path: Path) -> None:
    path = tmp_path / "net.weft"
    weft.save(path, nn.Linear(4, 3).eval(), weft.ones((2, 4)))
    for settings in ({"size": (8, 8)}, {"classes": 5}, {"length": 9}):
        with pytest.raises(
            UserError, match=f"has the sizes that it was made with, got {next(iter(settings))}=. Leave it out"
        ):
            find_subject(str(path), **settings)


def test_a_run_is_profiled_with_images_of_the_size_that_its_network_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored images are resized before they reach the network."""

    class Enlarge(nn.Module):
        def forward(self, x: weft.Tensor) -> weft.Tensor:
            return weft.concat([x, x], axis=2)

    model = nn.Sequential(nn.Flatten(), nn.Linear(2 * 4 * 4, 2))
    found = Predictor("classify", (1, 4, 4), "squash", ("a", "b"), model, model, prepare=Enlarge())
    monkeypatch.setattr("weft.jobs.profiles.subject.find_run", lambda name: tmp_path)
    monkeypatch.setattr("weft.jobs.profiles.subject.predictor_of_run", lambda *_: found)
    subject = find_subject("some-run")
    assert [array.shape for array in subject.inputs(3)] == [(3, 1, 8, 4)]
    step, args = subject.step(3, "train")
    assert step(*args).shape == ()


def test_published_ratios_stand_beside_inference_at_the_size_that_was_published() -> None:
    rows = [
        MachineRow(name, name, "projected", "float32", 128, 1.0, "compute", 100.0, "limit")
        for name in ("titan-x", "xeon-e5-2698-v3")
    ]
    report = ProfileReport(
        "alexnet", "infer", 128, {}, ThroughputTable(()), tuple(rows), network=find_subject("alexnet").network
    )
    assert len(report.published) == 1
    assert replace(report, what="train").published == ()
    assert replace(report, network=find_subject("alexnet", size=(64, 64)).network).published == ()
