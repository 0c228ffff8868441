"""Checks `weft cfg`, and that every verb says what it does and what can be set."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from cli_tools import told
from weft.cli import SUMMARIES, VERBS, VERBS_BY_GROUP, main
from weft.cli.arguments import HELP_WIDTH, Help, first_line, read
from weft.cli.training import FOLDS, OF_RESUME, TRACE
from weft.jobs.schema import Setting, as_text, sizes
from weft.jobs.settings import GROUPS as SETTING_GROUPS
from weft.jobs.settings import SETTINGS
from weft.knobs import KNOBS

OF_A_RUN = {name: setting for name, setting in SETTINGS.items() if name != "json"}


def test_the_file_holds_all_settings_and_what_they_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cfg"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, setting in OF_A_RUN.items():
        (place,) = [i for i, line in enumerate(lines) if line.startswith(f"{name}:")]
        assert lines[place - 1] == f"# {setting.help}"


def test_the_file_is_read_back_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cfg"]) == 0
    (tmp_path / "all.yaml").write_text(capsys.readouterr().out)
    words = read("train", [f"cfg={tmp_path / 'all.yaml'}"], SETTINGS, 0)
    assert dict(words.settings) == {name: setting.default for name, setting in SETTINGS.items()}
    assert words.given == set(OF_A_RUN)


def test_values_survive_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["data=a: b # c", "epochs=3", "rate=1e-05", "size=8x9", "name=7", "model=lenet5"]
    assert main(["cfg", *given]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    words = read("train", [f"cfg={tmp_path / 'mine.yaml'}"], SETTINGS, 0)
    assert dict(words.settings) == dict(read("train", given, SETTINGS, 0).settings)
    assert (words["data"], words["size"], words["rate"], words["name"]) == ("a: b # c", (8, 9), 1e-5, "7")


def test_a_network_is_trained_from_the_file_and_its_run_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["cfg", "data=digits", "model=lenet5_classic", "epochs=1", "batch=256"]) == 0
    Path("mine.yaml").write_text(capsys.readouterr().out)
    assert main(["train", "cfg=mine.yaml"]) == 0
    capsys.readouterr()
    found = told(capsys, "cfg", "lenet5_classic-1")
    assert (found["data"], found["epochs"], found["batch"], found["rate"]) == ("digits", 1, 256, None)
    assert main(["cfg", "lenet5_classic-1"]) == 0
    Path("again.yaml").write_text(capsys.readouterr().out)
    again = read("train", ["cfg=again.yaml"], SETTINGS, 0)
    assert (again["model"], again["epochs"], again["batch"]) == ("lenet5_classic", 1, 256)


def test_a_size_of_a_run_is_written_as_a_command_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "args.yaml").write_text('size: [8, 9]\nown: "text"\n')
    assert main(["cfg", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ['size: "8,9"', 'own: "text"']


def test_several_values_are_read_from_the_settings_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text("size: [8, 9]\n")
    assert read("train", [f"cfg={tmp_path / 'args.yaml'}"], SETTINGS, 0)["size"] == (8, 9)


def test_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WEFT_SEED", "0")
    found = told(capsys, "cfg", "env")
    assert list(found) == list(KNOBS)
    assert found["seed"]["variable"] == "WEFT_SEED"
    assert found["seed"]["set"] is True
    assert found["threads"]["meaning"] == KNOBS["threads"].help
    assert main(["cfg", "env"]) == 0
    said = capsys.readouterr().out
    assert all(f"WEFT_{name.upper()}" in said for name in KNOBS)


WRONG = {
    "no such setting": (["epoch=3"], "there is no setting 'epoch'. Did you mean epochs?"),
    "a run with other values": (["env", "epochs=3"], "env has its own settings. Use weft cfg env without others."),
    "no such run": (["nowhere"], "nowhere is no folder of a run"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, message = WRONG[name]
    assert main(["cfg", *words]) == 2
    assert message in capsys.readouterr().err


# --- help -----------------------------------------------------------------------------------------------------------------------


def test_the_first_page_names_every_verb_once(capsys: pytest.CaptureFixture[str]) -> None:
    verbs = [verb for verbs in VERBS_BY_GROUP.values() for verb in verbs]
    assert len(verbs) == len(set(verbs)) == len(VERBS)
    pages = []
    for words in ([], ["help"], ["-h"], ["--help"]):
        assert main(words) == 0
        pages.append(capsys.readouterr().out)
    assert len(set(pages)) == 1
    for verb in VERBS:
        assert f"\n  {verb} " in pages[0]


def test_a_verb_is_described_as_it_describes_itself() -> None:
    for name, verb in VERBS.items():
        assert SUMMARIES[name] == first_line(verb)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_it_does(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for words in (["help", verb], [verb, "--help"], [verb, "help"], [verb, "-h"]):
        assert main(words) == 0
        pages.append(capsys.readouterr().out)
    assert len(set(pages)) == 1
    assert pages[0].startswith(f"weft {verb}\n\n")
    assert len(pages[0].splitlines()) > 2


def test_the_settings_of_a_verb_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "epochs=3", "--help-all"]) == 0
    page = capsys.readouterr().out
    said = " ".join(page.split())
    for name, setting in SETTINGS.items():
        default = "" if setting.default is None else f"{as_text(setting.default)} "
        assert f" {name} {default}{setting.help}" in said, name
    assert [line for line in page.splitlines() if line in SETTING_GROUPS] == list(SETTING_GROUPS)
    assert "schedule one_cycle schedule: one_cycle, cosine, linear, constant, step, exponential, polynomial, inverse, sigmoid or restarts" in said  # fmt: skip
    assert max(map(len, page.splitlines())) <= HELP_WIDTH


@pytest.mark.parametrize("verb", ["train", "resume"])
def test_the_help_of_a_training_fits_on_a_screen(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda self: True))
    monkeypatch.setenv("COLUMNS", "80")
    assert main([verb, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines) <= 80
    own = FOLDS if verb == "train" else OF_RESUME
    assert f"weft {verb} --help-all shows all {len(SETTINGS | TRACE | own)} settings." in lines


def test_groups_of_settings_and_long_defaults_in_help() -> None:
    known = {
        "a": Setting(str, "x" * 40, "the first", "one"),
        "b": Setting(str, None, "the second", "two"),
        "c": Setting(str, "y", "the third", "one"),
    }
    text = Help("verb", "", known).text("What it does, over\n    two lines.\n\n      an example")
    assert text.splitlines()[2:5] == ["What it does, over two lines.", "", "  an example"]
    lines = text.splitlines()
    settings = [" ".join(line.split()) for line in lines[lines.index("one") : lines.index("two") + 2]]
    assert settings == ["one", f"a the first; default: {'x' * 40}", "c y the third", "two", "b the second"]


def test_the_parts_of_a_verb_have_help_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("weft runs list\n\nAll runs in a folder")
    assert "order: new, best, time or name" in said
    assert main(["help", "runs", "list"]) == 0
    assert capsys.readouterr().out == said


def test_help_for_a_verb_that_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "tran"]) == 2
    assert "there is no verb 'tran'. Did you mean train?" in capsys.readouterr().err


def test_values_are_written_as_they_are_read() -> None:
    assert [as_text(v) for v in (None, True, 0.5, (8, 9), "word")] == ["none", "true", "0.5", "8,9", "word"]
    assert read("x", [f"size={as_text((8, 9))}"], {"size": Setting(sizes, None, "")}, 0)["size"] == (8, 9)


def test_the_first_page_needs_no_compiler() -> None:
    """With `weft` itself as a package that imports nothing, so that only the command line is looked at."""
    code = (
        "import sys, types; weft = types.ModuleType('weft'); weft.__path__ = [sys.argv[1]]; sys.modules['weft'] = weft; "
        "from weft.cli import main; assert main(['--help']) == 0; "
        "print([name for name in sys.modules if name.startswith(('weft.compiler', 'weft.nn', 'llvmlite', 'numpy'))])"
    )
    package = str(Path(weft.__file__).parent)
    done = subprocess.run([sys.executable, "-c", code, package], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
