"""Checks the line that tells how far work is: when it is drawn, what it says, and that it never disturbs."""

import io
import os

import pytest

from weft.cli import bar
from weft.cli.bar import Bar, Bars

CLEAR = "\r\x1b[K"


class Terminal(io.StringIO):
    """What looks like a terminal, and keeps what was written."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What was drawn, one after another."""
        return self.getvalue().split(CLEAR)[1:]


class Clock:
    """A clock that goes when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(bar, "clock", found)
    return found


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar.shutil, "get_terminal_size", lambda: os.terminal_size((80, 24)))


def test_the_line(clock: Clock) -> None:
    screen = Terminal()
    line = Bar("making", 8, screen)
    line.show(0)
    clock.now += 75
    line.show(3, "2 failed")
    clock.now += 125
    line.show(8, "2 failed")
    empty, middle, full = screen.lines()
    assert empty == "making " + " " * 30 + "   0 %"
    assert middle == "making " + "█" * 11 + "▎" + " " * 18 + "  37 %  2 failed  2:05 left"
    assert full == "making " + "█" * 30 + " 100 %  2 failed"


def test_at_most_ten_times_a_second_but_the_end_always(clock: Clock) -> None:
    screen = Terminal()
    line = Bar("x", 1000, screen)
    for done in range(1, 1001):
        clock.now += 0.03125  # of binary fractions, so that sums are exact
        line.show(done)
    drawn = screen.lines()
    assert len(drawn) == 251, "every fourth, and the last"
    assert "100 %" in drawn[-1]
    line.show(1000)
    assert len(screen.lines()) == 252


def test_due_tells_whether_the_next_show_draws(clock: Clock) -> None:
    line = Bar("x", 10, Terminal())
    assert line.due()
    line.show(1)
    assert not line.due()
    clock.now += 0.11
    assert line.due()
    assert not Bar("x", 10, io.StringIO()).due()


def test_a_file_gets_nothing(clock: Clock) -> None:
    file = io.StringIO()
    with Bar("x", 2, file) as line:
        line.show(1)
        line.show(2)
    assert file.getvalue() == ""


def test_the_line_is_taken_away_at_the_end(clock: Clock) -> None:
    screen = Terminal()
    with pytest.raises(KeyboardInterrupt), Bar("x", 2, screen) as line:
        line.show(1)
        raise KeyboardInterrupt
    assert screen.lines()[-1] == ""
    before = screen.getvalue()
    line.clear()
    assert screen.getvalue() == before, "there is nothing more to take away"
    with Bar("x", 2, screen):
        pass
    assert screen.getvalue() == before, "nothing was drawn"


def test_it_is_plain_where_blocks_cannot_be_written(clock: Clock) -> None:
    screen = Terminal()
    screen.encoding = "ascii"
    Bar("x", 2, screen).show(1)
    assert screen.lines() == ["x " + "#" * 15 + "." * 15 + "  50 %"]


@pytest.mark.parametrize("columns", [1, 2, 8, 20, 30, 44, 80, 300])
def test_it_fits_the_terminal(clock: Clock, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(bar.shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
    screen = Terminal()
    line = Bar("epoch 3", 100, screen)
    clock.now += 10
    line.show(50, "loss 0.1234\naccuracy 98.76 %")
    [drawn] = screen.lines()
    assert len(drawn) < columns
    assert "\n" not in drawn
    assert drawn.startswith("epoch 3 "[: columns - 1])
    assert ("0:10 left" in drawn) == (columns >= 60)


@pytest.mark.parametrize(
    ("done", "total", "share"), [(-5, 10, "  0 %"), (15, 10, "100 %"), (0, 0, "100 %"), (7, -1, "100 %")]
)
def test_odd_numbers(clock: Clock, done: int, total: int, share: str) -> None:
    screen = Terminal()
    Bar("x", total, screen).show(done)
    assert screen.lines()[0].endswith(share)


def test_long_times_have_hours(clock: Clock) -> None:
    screen = Terminal()
    line = Bar("x", 2, screen)
    clock.now += 3725
    line.show(1)
    assert screen.lines()[0].endswith("1:02:05 left")


def test_a_terminal_that_goes_away_does_not_stop_the_work(clock: Clock) -> None:
    screen = Terminal()
    with Bar("x", 2, screen) as line:
        line.show(1)
        screen.close()
        line.show(2)
        assert not line.due()
    with Bar("x", 2, screen) as line:  # closed from the beginning
        line.show(1)


def test_a_broken_pipe_does_not_stop_the_work(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str) -> int:
        raise BrokenPipeError

    screen = Terminal()
    monkeypatch.setattr(screen, "write", broken)
    with Bar("x", 2, screen) as line:
        line.show(1)
    assert not line.due()


def test_a_text_that_cannot_be_written_is_written_as_well_as_can_be(clock: Clock) -> None:
    class Narrow(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    bytes_ = io.BytesIO()
    screen = Narrow(bytes_, encoding="ascii")
    with Bar("x", 2, screen) as line:
        line.show(1, "Käse")
        clock.now += 1
        line.show(2, "ham")
    assert b"50 %  K?se" in bytes_.getvalue()
    assert b"100 %  ham" in bytes_.getvalue()


def test_without_a_stream_it_is_the_one_for_errors(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    Bar("x", 2).show(2)
    assert len(screen.lines()) == 1


def test_what_was_done_before_took_no_time(clock: Clock) -> None:
    screen = Terminal()
    line = Bar("x", 100, screen, first=80)
    line.show(80)
    clock.now += 30
    line.show(90)
    first, second = screen.lines()
    assert first.endswith(" 80 %")
    assert second.endswith("90 %  0:30 left")


def test_bars_begin_anew_with_every_piece_of_work(clock: Clock) -> None:
    screen = Terminal()
    with Bars("x", screen) as told:
        told(5, None)
        for done, total in ((1, 4), (3, 4), (4, 4), (2, 8), (1, 8)):
            told(done, total, "now")
            clock.now += 10
    drawn = screen.lines()
    assert [line.partition("%")[0].split()[-1] for line in drawn[:-1]] == ["25", "75", "100", "25", "12"]
    assert "0:05 left" in drawn[1]
    assert not any("left" in line for line in drawn[2:])
    assert drawn[-1] == ""
    with Bars("x", screen):
        pass
    assert screen.lines() == drawn
