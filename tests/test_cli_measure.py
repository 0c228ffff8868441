"""Checks `weft explain` and `weft bench`: what is measured, not how long it takes."""

import json
from pathlib import Path

import pytest

from cli_tools import told
from weft.cli import main
from weft.cli.measure import bound
from weft.compiler.cpu.roofline import Roof
from weft.explain import Explanation, MemoryUse, Row
from weft.knobs import knobs

SMALL = ["lenet5_classic", "batch=2"]


def a_run(folder: Path, **settings: object) -> str:
    folder.mkdir(parents=True)
    (folder / "args.yaml").write_text("".join(f"{k}: {json.dumps(v)}\n" for k, v in settings.items()))
    return str(folder)


def test_explain_shows_the_longest_kernels_and_what_bounds_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *SMALL, "rows=3", "sort=time"]) == 0
    first, _, head, _, *lines = capsys.readouterr().out.splitlines()
    assert first == "lenet5_classic for 1x28x28 images, 10 classes, float32, train, batch 2"
    assert head.split()[:3] == ["what", "ms", "share"]
    shares = [float(line.split("%")[0].split()[-1]) for line in lines[:3]]
    assert shares == sorted(shares, reverse=True)
    assert "total of" in lines[3]
    assert lines[4].endswith("shorter ones are not shown")
    assert lines[-1].startswith("Kernel ")


def test_training_has_more_kernels_than_inference(capsys: pytest.CaptureFixture[str]) -> None:
    train, infer = (told(capsys, "explain", *SMALL, f"what={what}") for what in ("train", "infer"))
    assert train["kernels"] > infer["kernels"]
    assert sum(row["flops"] for row in train["rows"]) > 2 * sum(row["flops"] for row in infer["rows"])
    assert train["memory"]["state"] > 0
    assert infer["memory"]["state"] == 0
    assert any("update" in row["name"] for row in train["rows"])
    assert set(train["rows"][0]) >= {"kernel", "name", "seconds", "share", "flops", "nbytes", "roof", "gflops"}


def test_bench_measures_every_batch_of_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "bench", "lenet5_classic", "batch=1,3", "seconds=0", "size=28", "classes=4")
    assert [(row["what"], row["batch"]) for row in found["rows"]] == [
        ("train", 1), ("train", 3), ("infer", 1), ("infer", 3)
    ]  # fmt: skip
    assert (found["shape"], found["classes"]) == ([1, 28, 28], 4)
    for row in found["rows"]:
        assert row["runs"] == 3
        assert row["images_per_second"] == pytest.approx(row["batch"] / row["seconds"])
        assert row["nbytes"] > row["batch"] * 28 * 28 * 4
    work = {(row["what"], row["batch"]): row["gflops"] * row["seconds"] for row in found["rows"]}
    assert work["infer", 3] == pytest.approx(3 * work["infer", 1])
    assert work["train", 1] > 2 * work["infer", 1]


def test_bench_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *SMALL, "what=infer", "seconds=0", "threads=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lenet5_classic for 1x28x28 images, 10 classes, float32, ")
    assert lines[0].endswith(", 1 thread")
    assert lines[2].split() == ["what", "batch", "ms", "images/s", "GFLOP/s", "memory", "runs"]
    assert lines[4].split()[:2] == ["infer", "2"]
    assert len(lines) == 5


def test_threads_are_set_for_the_measurement_only(capsys: pytest.CaptureFixture[str]) -> None:
    before = knobs.threads
    assert told(capsys, "bench", *SMALL, "what=infer", "seconds=0", "threads=1")["threads"] == 1
    assert knobs.threads == before


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_precision(precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "bench", *SMALL, "what=train", "seconds=0", f"precision={precision}")
    assert found["precision"] == precision
    assert len(found["rows"]) == 1


def test_a_run_stands_for_its_network_and_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "a", model="resnet20", data="digits", size=None)
    found = told(capsys, "bench", run, "batch=1", "what=infer", "seconds=0")
    assert (found["network"], found["shape"], found["classes"]) == ("resnet20", [1, 8, 8], 10)
    run = a_run(tmp_path / "b", model="resnet20", data="digits", size=[9, 10])
    assert told(capsys, "bench", run, "batch=1", "what=infer", "seconds=0")["shape"] == [1, 9, 10]
    run = a_run(tmp_path / "c", model="lenet5_classic", data="digits", size=None)
    assert told(capsys, "bench", run, "batch=1", "what=infer", "seconds=0", "classes=7")["shape"] == [1, 28, 28]
    run = a_run(tmp_path / "d", model="lenet5_classic", data="gone")
    given = ["size=28", "channels=2", "classes=3"]
    found = told(capsys, "explain", run, "batch=1", "what=infer", *given)
    assert (found["shape"], found["classes"]) == ([2, 28, 28], 3)


def test_a_class_for_every_pixel_can_be_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "bench", "unet", "size=16", "batch=1", "what=train", "seconds=0")["network"] == "unet"


WRONG = {
    "no network": ([], "a network or a run is required, got none: weft bench lenet, or weft bench RUN."),
    "a slip": (["lenett"], "'lenett' is neither a network nor a run. Did you mean lenet?"),
    "a network of texts": (["gpt"], "gpt takes no images"),
    "a network of vectors": (["perceptron"], "perceptron takes no images"),
    "a folder that is no run": (["."], ". is no folder of a run: it has no args.yaml."),
    "no batch": (["lenet", "batch=0"], "batch=0 cannot be used: it must be 1 or more"),
    "what is not known": (["lenet", "what=learn"], "what=learn cannot be used: it must be train or infer"),
    "a precision that is not known": (["lenet", "precision=int8"], "it must be float32, float16 or bfloat16"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, message = WRONG[name]
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_says_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", a_run(tmp_path / "a", model="lenet5")]) == 2
    assert "names no data. Use weft bench NETWORK." in capsys.readouterr().err
    (tmp_path / "words.txt").write_text("many words, many words. " * 100)
    assert main(["bench", a_run(tmp_path / "b", data=str(tmp_path / "words.txt"))]) == 2
    assert "are no images" in capsys.readouterr().err
    assert main(["bench", a_run(tmp_path / "c", modle="lenet5")]) == 2
    assert "Did you mean model?" in capsys.readouterr().err


def explained(*rows: Row) -> Explanation:
    return Explanation(rows, MemoryUse(0, 0, 0, 0, 0, ()), Roof(1e9, 1e9), 1, 1)


def test_what_bounds_a_program_is_said_in_words() -> None:
    small = Row(0, "relu", "", (), 1.0, 0.25, 1, 1, 0.5)
    product = Row(1, "matmul", "", (), 3.0, 0.75, 900_000_000, 1_000, 0.3)
    copy = Row(1, "copy", "", (), 3.0, 0.75, 0, 900_000_000, 0.3)
    assert bound(explained(small, product)) == (
        "Kernel 1, matmul, is the slowest: 75% of the time. Arithmetic bounds it; "
        "it reaches 30% of what this machine's arithmetic allows."
    )
    assert "Traffic to memory bounds it; it reaches 30% of what this machine's memory allows." in bound(
        explained(small, copy)
    )
    assert bound(explained()) == "there is nothing to compute."


def test_a_table_of_some_rows() -> None:
    rows = [Row(i, f"kernel-{i}", "", (f"line-{i}",), 1.0 + (i == 2), 0.2, 1, 1, 0.5) for i in range(4)]
    found = explained(*rows)
    assert str(found) == found.text()
    assert [f"kernel-{i}" in found.text(2) for i in range(4)] == [True, False, True, False]
    assert found.text(2).index("kernel-0") < found.text(2).index("kernel-2")
    assert found.text(2, by_time=True).index("kernel-2") < found.text(2, by_time=True).index("kernel-0")
    assert "2 shorter ones are not shown" in found.text(2)
    assert "line-0" in found.text()
    assert "line-0" not in found.text(sources=False)
