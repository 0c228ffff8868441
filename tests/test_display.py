"""Checks what a terminal shows while work goes on: bars, a spinner when nothing moves, and that it never disturbs."""

import io
import re

import pytest
from rich.console import Console

from weft.cli import display, epochs
from weft.cli import table as cli_table
from weft.cli.display import Display
from weft.cli.progress import ProgressDisplay
from weft.jobs.events import Event

STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """What looks like a terminal, and keeps what was written."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        return STYLES.sub("", self.getvalue())


class Clock:
    """A clock that goes when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(display, "clock", found)
    return found


@pytest.fixture(autouse=True)
def _of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)


def drawn(shown: Display, columns: int = 80) -> list[str]:
    """The lines that the next drawing shows."""
    page = io.StringIO()
    Console(file=page, width=columns, color_system=None).print(shown._progress.get_renderable())
    return page.getvalue().splitlines()


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_a_bar_fits_the_terminal(columns: int) -> None:
    with Display(Terminal()) as shown:
        shown.bar("epoch 12/100", 30, 120, "loss 0.1234  accuracy 98.7 %  12,345/s")
        [line] = drawn(shown, columns)
    assert len(line) <= columns
    if columns >= 80:
        assert "epoch 12/100" in line
        assert "25 %" in line
        assert "loss 0.1234  accuracy 98.7 %  12,345/s" in line


def test_another_piece_of_work_begins_another_bar() -> None:
    with Display(Terminal()) as shown:
        for label, done, total in (("a", 3, 4), ("a", 4, 4), ("a", 1, 4), ("b", 2, 8), ("b", 5, None)):
            shown.bar(label, done, total)
            [line] = drawn(shown)
    assert " b " in line
    assert "25 %" in line


def test_a_spinner_says_what_is_going_on_when_nothing_moves(clock: Clock) -> None:
    with Display(Terminal()) as shown:
        shown.activity("compiling the training step")
        assert not any("compiling" in line for line in drawn(shown))
        clock.now += 0.6
        assert any("compiling the training step ..." in line for line in drawn(shown))
        shown.bar("epoch 1/2", 1, 10)
        assert not any("compiling" in line for line in drawn(shown)), "something moves again"
        shown.activity("validating epoch 1")
        clock.now += 0.6
        assert any("validating epoch 1 ..." in line for line in drawn(shown))
        assert not any("compiling" in line for line in drawn(shown))


def test_the_spinner_moves_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr(display, "SPINNER_SECONDS", 0.0)
    screen = Terminal()
    with Display(screen) as shown:
        shown.activity("compiling")
        time.sleep(0.4)
    assert len(set(re.findall(r"(.) compiling", screen.text()))) > 1


def test_a_file_gets_lines_only() -> None:
    file = io.StringIO()
    with Display(file) as shown:
        shown.activity("compiling")
        shown.bar("x", 1, 2)
        shown.line("a line", "bold")
        shown.bar("x", 2, 2)
    assert file.getvalue() == "a line\n"


def test_lines_stand_above_the_bar_and_the_bar_is_taken_away() -> None:
    screen = Terminal()
    with pytest.raises(KeyboardInterrupt), Display(screen) as shown:
        shown.bar("x", 1, 2)
        shown.line("x" * 100 + " [red]as it is[/red]")
        raise KeyboardInterrupt
    assert "x" * 100 + " [red]as it is[/red]" in screen.text()
    assert screen.getvalue().rstrip().endswith("\x1b[2K\x1b[?25h"), "the line is empty, and the cursor is back"


def test_colours_are_left_out_if_nobody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
    with_colour, without = Terminal(), Terminal()
    with Display(with_colour) as shown:
        shown.line("a line", "red")
    monkeypatch.setenv("NO_COLOR", "1")
    with Display(without) as shown:
        shown.line("a line", "red")
    assert colour.search(with_colour.getvalue())
    assert not colour.search(without.getvalue())


def test_a_terminal_that_goes_away_does_not_stop_the_work() -> None:
    screen = Terminal()
    with Display(screen) as shown:
        shown.bar("x", 1, 2)
        screen.close()
        shown.bar("x", 2, 2)
        shown.line("a line")
    with Display(screen) as shown:  # closed from the beginning
        shown.bar("x", 1, 2)


def test_a_text_that_cannot_be_written_is_written_as_well_as_can_be() -> None:
    class Narrow(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    bytes_ = io.BytesIO()
    screen = Narrow(bytes_, encoding="ascii")
    with Display(screen) as shown:
        shown.bar("x", 1, 2, "Käse")
        shown.line("Käse")
    assert b"K?se" in bytes_.getvalue()


# --- epochs -------------------------------------------------------------------------------------------------------------------------

ROW = {
    "epoch": 9, "steps": 100, "train_loss": 0.12345, "train_accuracy": 0.98765, "rate": 1e-3, "examples_per_second": 123_456.0,
    "validation_loss": 0.2345, "validation_accuracy": 0.9512, "seconds": 3725.0, "epochs": 100, "is_best": True,
}  # fmt: skip


def test_the_table_of_epochs_fits_80_columns_and_marks_the_best() -> None:
    head, line = epochs.header(ROW, 100), epochs.line(ROW, 100)
    assert max(len(head), len(line)) <= 80
    assert line.endswith("1:02:05  best")
    assert not epochs.line({**ROW, "is_best": False}, 100).endswith("best")
    for title, number in (("val acc", "95.12 %"), ("    loss", "0.1235")):
        assert head.index(title) + len(title) == line.index(number) + len(number)


def test_events_become_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay() as progress:
        for kind, facts in (
            ("log", {"text": "hello", "level": "info"}), ("progress", {"what": "x", "done": 1, "total": 2}), ("epoch", ROW),
            ("epoch", {**ROW, "epoch": 10, "is_best": False}), ("log", {"text": "careful", "level": "warning"}),
            ("unknown", {}), ("stopped", {"why": "stopped", "folder": "runs/a b"}),
        ):  # fmt: skip
            progress(Event(kind, facts))
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "hello"
    assert [line.endswith("best") for line in said.out.splitlines()[2:4]] == [True, False]
    assert said.out.splitlines()[-1] == "stopped; continue with: weft resume 'runs/a b'"
    assert said.err == "weft: careful\n"


def test_a_narrow_terminal_leaves_out_optional_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    titles, rows = ["run", "loss", "status"], [["classify/digits-lenet5-1", "0.5", "done"]]
    for width, expected in ((40, titles), (34, ["run", "status"])):
        screen = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
        monkeypatch.setattr("weft.cli.table.console", lambda screen=screen: screen)
        first, _, *body = cli_table.table(titles, rows, ["run", "status"], optional=["loss"]).splitlines()
        assert first.split() == expected
        assert body[0].split() == [rows[0][titles.index(title)] for title in expected]
