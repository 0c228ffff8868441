"""`weft generate`: texts as they are written, several at once, as JSON; what is rejected. The network is a made-up GPT-2."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from test_pretrained_gpt import CONFIG, folder, made_up
from weft import text
from weft.cli import main
from weft.cli.generate import stop_words
from weft.jobs import of_texts
from weft.jobs.writers import Writer, find_writer

SIZES = {"vocab_size": 300, "n_positions": 32}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = folder(tmp_path_factory.mktemp("models") / "gpt2", made_up({**CONFIG, **SIZES}), **SIZES)
    text.SubwordTokenizer.train("the quick brown fox jumps over the lazy dog; " * 4 + "sphinx of black quartz, judge my vow; " * 4, 300).save(path / "tokenizer.json")  # fmt: skip
    return path


@pytest.fixture(scope="module")
def writer(network: Path) -> Writer:
    return find_writer("generate", str(network))


@pytest.fixture(autouse=True)
def _found_once(writer: Writer, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs stay with a network, so that they are compiled once for all tests."""

    def find(verb: str, name: str, **more: Any) -> Writer:
        return writer if name == str(network) and more["precision"] is None else find_writer(verb, name, **more)

    monkeypatch.setattr(of_texts, "find_writer", find)
    monkeypatch.chdir(tmp_path)


def test_a_text_is_printed_as_it_is_written(writer: Writer, network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(network), "the quick", "length=12", "temperature=0.7", "top_k=20", "seed=5"]) == 0
    settings = {"max_new_tokens": 12, "temperature": 0.7, "top_k": 20, "seed": 5}
    assert capsys.readouterr().out == text.generate(writer.model, "the quick", writer.tokenizer, **settings) + "\n"


def test_several_texts_and_json(writer: Writer, network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["the quick", "the lazy dog jumps"]
    words = ["length=9", "temperature=0", "repetition_penalty=1.5", "--json"]
    assert main(["generate", str(network), *prompts, *words]) == 0
    found = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    settings = {"max_new_tokens": 9, "temperature": 0, "repetition_penalty": 1.5}
    assert found == text.generate(writer.model, prompts, writer.tokenizer, **settings)


def test_stop_words(writer: Writer, network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"max_new_tokens": 12, "temperature": 0.7, "top_k": 20, "seed": 5}
    whole = text.generate(writer.model, "the quick", writer.tokenizer, **settings)
    stop = whole[len("the quick") + 4 :][:2]
    assert main(["generate", str(network), "the quick", "length=12", "temperature=0.7", "top_k=20", "seed=5", f"stop={stop}"]) == 0  # fmt: skip
    assert capsys.readouterr().out == whole[: whole.index(stop, len("the quick"))] + "\n"


@pytest.mark.parametrize(
    ("text_", "words"),
    [
        ("a", ("a",)), ("a,b c,d", ("a", "b c", "d")), (r"a\,b", ("a,b",)), (r"\,", (",",)), (r"\n\n,\t", ("\n\n", "\t")), ("\n", ("\n",)),
        (r"\\n,\\", (r"\n", "\\")), (r"\d", (r"\d",)), ("a\\", ("a\\",)),
    ],
)  # fmt: skip
def test_how_stop_words_are_written(text_: str, words: tuple[str, ...]) -> None:
    assert stop_words(text_) == words


@pytest.mark.parametrize("text_", ["", ",", "a,", ",a", "a,,b"])
def test_no_stop_word_is_empty(text_: str, network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(network), "the", f"stop={text_}"]) == 2
    assert r"it must be words with commas between them; \, is a comma in a word." in capsys.readouterr().err


@pytest.mark.parametrize("prompts", [["the quick"], ["the quick", "fox"]], ids=["streamed", "together"])
def test_several_stop_words(
    prompts: list[str], writer: Writer, network: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each text ends at the first of them that it contains, wherever tokens begin and end; nothing of a stop word is printed."""
    settings = {"max_new_tokens": 40, "temperature": 0.7, "top_k": 20, "seed": 5}
    given = prompts if len(prompts) > 1 else prompts[0]
    whole = text.generate(writer.model, given, writer.tokenizer, **settings)
    texts = [whole] if isinstance(whole, str) else whole
    new = [one[len(prompt) :] for one, prompt in zip(texts, prompts, strict=True)]
    for length in (1, 2, 5, 9):  # of words: 9 characters are several tokens
        words = [one[start : start + length] for one in new for start in (13, 11, 17)]
        written = ",".join(word.replace("\\", "\\\\").replace(",", "\\,") for word in words)
        command = [
            "generate",
            str(network),
            *prompts,
            "length=40",
            "temperature=0.7",
            "top_k=20",
            "seed=5",
            f"stop={written}",
        ]
        assert main(command) == 0
        expected = []
        for one, prompt in zip(new, prompts, strict=True):
            start = min((one.find(w) + len(w), one.find(w)) for w in words if w in one)[1]
            expected.append(prompt + one[:start])
        assert capsys.readouterr().out == "".join(f"{one}\n" for one in expected)


@pytest.fixture(scope="module")
def smaller(network: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another network with the same tokenizer."""
    sizes = {**SIZES, "n_layer": 1}
    path = folder(tmp_path_factory.mktemp("models") / "small", made_up({**CONFIG, **sizes}), **sizes)
    (path / "tokenizer.json").write_text((network / "tokenizer.json").read_text())
    return path


def test_a_draft(writer: Writer, network: Path, smaller: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same text, and how many drafted tokens were accepted."""
    for prompts in (["the quick"], ["the quick", "judge"]):
        assert main(["generate", str(network), *prompts, "length=12", "temperature=0"]) == 0
        plain = capsys.readouterr().out
        words = [f"draft={smaller}", "draft_tokens=2"]
        assert main(["generate", str(network), *prompts, "length=12", "temperature=0", *words]) == 0
        said = capsys.readouterr()
        assert said.out == plain
        assert re.fullmatch(r"\d\.\d\d of 2 drafted tokens were accepted per step \(\d+ steps\)\n", said.err)
    assert main(["generate", str(network), "the quick", "length=12", "temperature=0", f"draft={network}"]) == 0
    assert "4.00 of 4 drafted tokens were accepted per step" in capsys.readouterr().err


def test_errors_of_a_draft(network: Path, smaller: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text.SubwordTokenizer.train("something else entirely " * 9, 280).save(smaller / "tokenizer.json")
    for words, message in (
        (["draft_tokens=2"], "draft_tokens= requires draft=."),
        ([f"draft={smaller}"], f"a draft with the vocabulary of {network} is required, got {smaller}: "),
        ([f"draft={network}", "draft_tokens=0"], "draft_tokens=0 cannot be used: it must be 1 or more."),
        ([f"draft={network}", "repetition_penalty=2"], "repetition_penalty and draft cannot be combined."),
        (["draft=nothing-like-it"], "nothing-like-it"),
    ):
        assert main(["generate", str(network), "the", *words]) == 2
        assert message in capsys.readouterr().err


def test_precision(network: Path) -> None:
    found = find_writer("generate", str(network), precision="bfloat16").model.named_tensors().values()
    assert {tensor.dtype.name for tensor in found} == {"bfloat16"}


def test_errors(network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ([], 'a run and a text are required: weft generate RUN "Once upon a time".'),
        ([str(network)], "a run and a text are required"),
        ([str(network), ""], "the prompt is empty"),
        ([str(network), "the", "top_p=2"], "top_p must be above 0 and at most 1, got 2.0."),
        ([str(network), "the", "temprature=1"], "there is no setting 'temprature'. Did you mean temperature?"),
        (["nothing-like-it", "the"], "nothing-like-it"),
    ):
        assert main(["generate", *words]) == 2
        assert message in capsys.readouterr().err


def test_a_network_for_images_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from weft.jobs import writers
    from weft.jobs.prediction.predictor import Predictor

    images: Any = Predictor("classify", (1, 4, 4), "squash", ("a",), lambda x: x, None)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(writers, "find_predictor", lambda *given, **more: images)
    assert main(["generate", "photos-lenet5-1", "the"]) == 2
    assert "a network that was trained on text is required, got photos-lenet5-1." in capsys.readouterr().err
