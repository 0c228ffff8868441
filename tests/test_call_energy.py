"""The energy of calls as a counter shows it, in profiles that are kept; the counter is made up."""

import json

import pytest

from benchmarks import energy as benchmark
from weft.insight import call_times, energy_counters
from weft.insight.call_times import FEWEST, calls_in_a_row, measured_joules
from weft.insight.counter_error import CounterError
from weft.insight.report_page import report_page
from weft.jobs import JobQueue, submit_profile
from weft.jobs.profiles.job import measure
from weft.jobs.profiles.store import stored_profiles
from weft.runtime import device as find_device


class FakeCounter:
    """Shows a joule more at each reading; the first `fine` readings answer."""

    source = "a made-up counter"

    def __init__(self, fine: int = 100) -> None:
        self.shown, self.fine = 0, fine

    def read(self) -> tuple[int, ...]:
        self.shown += 1
        if self.shown > self.fine:
            raise CounterError("the counter is gone")
        return (self.shown,)

    def joules(self, before: tuple[int, ...], after: tuple[int, ...]) -> float:
        return float(after[0] - before[0])

    def close(self) -> None:
        pass


@pytest.fixture
def counter(monkeypatch):
    found = FakeCounter()
    for module in (call_times, energy_counters, benchmark):
        monkeypatch.setattr(module, "counter_of", lambda device: found)
    monkeypatch.setattr(call_times, "ENERGY_SECONDS", 0.0)
    return found


@pytest.fixture
def no_counter(monkeypatch):
    def none(device):
        raise CounterError("there is no counter")

    for module in (call_times, energy_counters, benchmark):
        monkeypatch.setattr(module, "counter_of", none)


def test_the_energy_of_a_call_is_that_of_many_divided(counter):
    calls = []
    assert measured_joules(calls.append, (1,), find_device("cpu"), 1.0) == (1 / FEWEST, "a made-up counter")
    assert len(calls) == FEWEST
    seconds, used = calls_in_a_row(calls.append, (1,), 3, find_device("cpu"), idle_watts=0.0)
    assert seconds > 0
    assert used.joules == 1.0
    assert len(calls) == FEWEST + 3


def test_a_counter_that_goes_away_or_is_not_there(counter, no_counter, monkeypatch):
    calls = []
    assert measured_joules(calls.append, (1,), find_device("cpu"), 1.0) == (None, "there is no counter")
    assert not calls  # nothing is run in vain
    gone = FakeCounter(fine=1)
    for module in (call_times, energy_counters, benchmark):
        monkeypatch.setattr(module, "counter_of", lambda device: gone)
    assert measured_joules(calls.append, (1,), find_device("cpu"), 1.0) == (None, "the counter is gone")


def kept(tmp_path):
    job = submit_profile(JobQueue(tmp_path), {"network": "mlp"}, {"batch": 1, "repeats": 3, "device": "cpu"})
    measure(job.settings)
    [found] = stored_profiles(tmp_path / ".profiles" / "mlp")
    assert found.record is not None
    return found.record


def test_a_kept_profile_has_measured_energy_where_there_is_a_counter(tmp_path, counter):
    record = kept(tmp_path)
    assert record.energy_measured
    assert record.joules == 1 / FEWEST
    assert record.per_joule == FEWEST
    assert record.program is not None
    assert sum(layer.joules for layer in record.layers) == pytest.approx(record.program.total.joules)  # modelled
    page = report_page({"mlp": record})
    assert "inferences/J, measured" in page
    assert "that of layers is modelled" in page


def test_without_a_counter_it_is_modelled(tmp_path, no_counter):
    record = kept(tmp_path)
    assert not record.energy_measured
    assert record.program is not None
    assert record.joules == record.program.total.joules


# --- the benchmark of the energy model --------------------------------------------------------------------------------------------


def test_the_benchmark_fits_one_constant(tmp_path, counter, capsys):
    file = tmp_path / "energy.json"
    assert benchmark.main(["networks=mlp,lenet5", "batch=1", "seconds=0", f"save={file}"]) == 0
    text = capsys.readouterr().out
    assert "constant: " in text
    known = json.loads(file.read_text())
    assert [row["measured"] for row in known["rows"]] == [1 / 3, 1 / 3]  # a joule in three calls
    first, second = known["factors"].values()
    assert first * second == pytest.approx(1)
    assert known["within"] == pytest.approx(max(first, second))
    for row in known["rows"]:
        assert row["measured"] == pytest.approx(row["modelled"] * known["constant"] * known["factors"][row["network"]])


def test_the_benchmark_says_that_there_is_no_counter(no_counter, capsys):
    assert benchmark.main(["networks=mlp"]) == 1
    assert (
        "energy cannot be measured here, so the model cannot be checked: there is no counter" in capsys.readouterr().out
    )


def test_the_benchmark_says_that_a_counter_stopped(counter, capsys):
    counter.fine = 3
    assert benchmark.main(["networks=mlp", "batch=1", "seconds=0"]) == 1
    assert "the counter is gone" in capsys.readouterr().out
