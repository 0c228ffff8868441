"""Tables of weft.insight: described machines and the energy of operations, against hand computations and published statements."""

import importlib
import math
from pathlib import Path

import pytest

import weft
from weft.compiler.cpu.roofline import Roof
from weft.errors import UserError
from weft.insight import Counts, energy, energy_table, machine, machines, published
from weft.insight.machines import TABLE, this_machine
from weft.knobs import knobs

LAB = """
machines:
  our-node:
    kind: cpu
    peak:
      float32: {value: 2e12, source: measured by us in May}
    memory_bandwidth: {value: 1e11, source: https://example.org/sheet}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "lab.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# --- machines ---------------------------------------------------------------------------------------------------------------------


def test_every_machine_is_described_with_sources() -> None:
    named = "xeon-e5-2698-v3 xeon-e5-2698-v3-core core-i7-5930k core-i7-6700k titan-x tegra-x1 k80 p40 p100 v100 tpu-v1 tpu-v2 a100 h100 h200"
    assert set(machines()) == set(named.split())
    for described in machines().values():
        figures = [value for value in vars(described).values() if isinstance(value, weft.insight.Figure)]
        for figure in [*figures, *described.peak.values()]:
            assert figure.value > 0, described.name
            assert len(figure.source) > 20, described.name
            assert figure.note or not figure.modelled, f"{described.name}: what is modelled states its rule"
        assert described.year
        assert described.process_nm
        assert described.power
        assert described.memory_bytes


def test_well_known_figures() -> None:
    titan, tegra, tpu = machine("titan-x"), machine("tegra-x1"), machine("tpu-v1")
    assert (titan.cores.value, titan.power.value) == (3072, 250)
    assert titan.peak["float32"].value == pytest.approx(6e12, rel=0.03)
    assert titan.memory_bandwidth.value == pytest.approx(336e9, rel=0.01)
    assert (tegra.peak["float16"].value, tegra.memory_bandwidth.value, tegra.power.value) == (1024e9, 25.6e9, 15)
    assert tpu.peak["int8"].value == pytest.approx(65536 * 2 * 700e6, rel=0.01)


def test_published_rows_agree_with_the_statements_about_them() -> None:
    rows = {(r.machine, r.format, r.batch): r for r in published()}
    for row in rows.values():  # the three numbers of a row belong together; printed with two digits
        assert row.images_per_second / row.watts == pytest.approx(row.images_per_second_per_watt, abs=0.5, rel=0.1)
    titan, xeon = rows["titan-x", "float32", 128], rows["xeon-e5-2698-v3", "float32", 128]
    assert 6.7 <= titan.images_per_second / xeon.images_per_second < 6.8
    assert titan.images_per_second_per_watt / xeon.images_per_second_per_watt == pytest.approx(4.4, abs=0.05)
    assert xeon.images_per_second / 16 == pytest.approx(30, rel=0.01)  # of one core
    tegra, i7 = rows["tegra-x1", "float16", 128], rows["core-i7-6700k", "float32", 128]
    assert tegra.images_per_second_per_watt / i7.images_per_second_per_watt == pytest.approx(11.5, abs=0.05)


def test_the_roofline_of_a_described_machine() -> None:
    titan = machine("titan-x")
    assert titan.seconds(6.144e12, 336.5e9 / 2) == 1.0
    assert titan.seconds(6.144e12, 336.5e9 * 2) == 2.0
    assert titan.seconds(1e12, 0, "float16") == titan.seconds(1e12, 0)  # no units for it: computed in float32
    with pytest.raises(UserError, match="tpu-v1 computes in int8, got float32"):
        machine("tpu-v1").peak_for("float32")
    with pytest.raises(UserError, match="Did you mean float16"):
        titan.peak_for("float-16")


def test_an_unknown_machine_is_met_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"there is no machine 'titanx'. Did you mean titan-x\?"):
        machine("titanx")


def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("weft.insight.machines")
    monkeypatch.setattr(module, "roof", lambda threads: Roof(2e11, 4e10))  # test_explain.py measures one
    this_machine.cache_clear()
    here = machine("here")
    this_machine.cache_clear()
    assert here.seconds(4e11, 4e10) == 2.0
    assert here.peak["float32"].value > 1e8
    assert "measured" in here.peak["float32"].source
    assert here.peak["float64"].modelled
    assert here.memory_bytes.value > 1e8


def test_a_file_adds_machines(tmp_path: Path) -> None:
    path = written(tmp_path, LAB)
    assert machine("our-node", path).peak_for("int8").value == 2e12
    assert "titan-x" in machines(path)
    with knobs.set(machines=str(path)):
        assert machine("our-node").memory_bandwidth.source == "https://example.org/sheet"
    path.write_text(LAB.replace("2e12", "3e12"), encoding="utf-8")
    assert machine("our-node", path).peak_for("float32").value == 3e12  # read again


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: cpu", "kind: dpu", r"line 4: machines.our-node.kind must be one of cpu, gpu, tpu, got dpu"),
        ("2e12", "fast", r"line 6: machines.our-node.peak.float32.value requires a number that is 0 or more, got fast"),
        ("2e12", "-1", "got -1"),
        ("2e12", "nan", "got nan"),
        ("2e12", "0", "requires a number above 0, got 0"),
        ("float32", "float33", r"line 6: there is no key machines.our-node.peak.float33. Did you mean float32\?"),
        ("memory_bandwidth", "memory_bandwith", r"line 7: there is no key .*Did you mean memory_bandwidth\?"),
        (", source: measured by us in May", "", r"line 6: machines.our-node.peak.float32.source is required, got none"),
        ("measured by us in May", "sheet", r"line 6: there is no source sheet under `sources`"),
        ("our-node", "here", r"here is the name of this machine"),
        ("    memory_bandwidth: {value: 1e11, source: https://example.org/sheet}\n", "", "memory_bandwidth is required"),
        ("{value: 2e12", "[value: 2e12", "line 6: YAML is required"),
        ("machines:", "- machines:", "line"),
    ],
)  # fmt: skip
def test_errors_name_the_line_and_the_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = written(tmp_path, LAB.replace(old, new))
    with pytest.raises(UserError, match=message):
        machines(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none.yaml cannot be read: No such file"):
        machines(tmp_path / "none.yaml")
    assert TABLE.exists()


# --- energy -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "format", "pj"),
    [
        ("add", "int8", 0.03), ("add", "int32", 0.1), ("add", "float16", 0.4), ("add", "float32", 0.9),
        ("multiply", "int8", 0.2), ("multiply", "int32", 3.1), ("multiply", "float16", 1.1), ("multiply", "float32", 3.7),
        ("mac", "float32", 4.6), ("mac", "int8", 0.23),
    ],
)  # fmt: skip
def test_published_energies(kind: str, format: str, pj: float) -> None:
    found = energy_table().operation(kind, format)
    assert found.joules * 1e12 == pytest.approx(pj)
    assert not found.modelled


def test_energies_of_memory() -> None:
    table = energy_table()
    of_32_bits = {level: 4e12 * table.joules_per_byte(level) for level in table.memory}
    assert of_32_bits == pytest.approx({"register": 5, "l1": 10, "l2": 10, "l3": 50, "dram": 640})


def test_an_estimate_is_split_by_cause_and_adds_up() -> None:
    # By hand: 2e9 x (3.7 + 0.9) pJ = 9.2 mJ; 1e9 x 0.1 pJ = 0.1 mJ; 1e8 bytes of DRAM x 160 pJ = 16 mJ; 1e9 of l1 x 2.5 pJ = 2.5 mJ.
    counts = Counts({("mac", "float32"): 2e9, ("add", "int32"): 1e9}, {"dram": 1e8, "l1": 1e9})
    found = energy(counts)
    assert found.modelled
    assert found.node_nm == 45
    assert {k: round(1e3 * v, 6) for k, v in found.by_cause.items()} == {
        "mac float32": 9.2, "add int32": 0.1, "dram": 16.0, "l1": 2.5,
    }  # fmt: skip
    assert found.joules == pytest.approx(27.8e-3)
    assert (found.arithmetic, found.movement) == (pytest.approx(9.3e-3), pytest.approx(18.5e-3))
    assert str(found).startswith("0.0278 J (modelled, 45 nm): dram 58%, mac float32 33%")
    assert energy(Counts()).joules == 0


def test_other_nodes_are_scaled_by_the_stated_rule() -> None:
    table = energy_table()
    at_7 = table.operation("multiply", "float32", 7)
    assert at_7.joules * 1e12 == pytest.approx(1.31)
    assert not at_7.modelled
    at_14 = table.operation("multiply", "float32", 14)
    exponent = math.log(3.7 / 1.31) / math.log(45 / 7)
    assert at_14.joules * 1e12 == pytest.approx(3.7 * (14 / 45) ** exponent)
    assert at_14.modelled
    # int16 was not published at 7 nm: the exponent of the geometric mean.
    assert table.operation("add", "int16", 7).joules * 1e12 == pytest.approx(0.05 * (7 / 45) ** 0.514)
    assert table.joules_per_byte("dram", 7) == table.joules_per_byte("dram")
    with pytest.raises(UserError, match="2 to 180 nm is required, got 0"):
        energy(Counts({("add", "int8"): 1}), node_nm=0)


def test_what_is_not_published_is_modelled_between_its_neighbours() -> None:
    table = energy_table()
    of = {
        f: table.operation("multiply", f).joules
        for f in ("int4", "int8", "q7.8", "int16", "int32", "float8_e5m2", "float8_e4m3")
    }
    assert of["int4"] < of["int8"] < of["q7.8"] < of["int32"]
    assert of["float8_e5m2"] < of["float8_e4m3"]
    assert of["int4"] * 1e12 == pytest.approx(0.2 * 0.5 ** (math.log(3.1 / 0.2) / math.log(4)))
    assert table.operation("multiply", "float64").joules > table.operation("multiply", "float32").joules
    assert all(
        table.operation("add", f).modelled for f in ("int4", "q7.8", "tf32", "float64", "float8_e4m3", "bfloat16")
    )


def test_unknown_formats_kinds_and_levels() -> None:
    for counts, message in [
        (Counts({("add", "float31"): 1}), r"there is no format 'float31'. Did you mean float32\?"),
        (Counts({("divide", "int8"): 1}), "a kind of operation is one of add, multiply, mac, got 'divide'"),
        (Counts({}, {"drum": 1}), r"Did you mean dram\?"),
    ]:
        with pytest.raises(UserError, match=message):
            energy(counts)


def test_an_edited_table(tmp_path: Path) -> None:
    text = weft.insight.energy_model.TABLE.read_text(encoding="utf-8")
    path = written(tmp_path, text.replace("multiply: {pj: 3.7,", "multiply: {pj: 5,"))
    assert energy(Counts({("multiply", "float32"): 1e12}), file=path).joules == pytest.approx(5)
    path = written(tmp_path, text.replace("add: {pj: 0.9,", "ad: {pj: 0.9,"))
    with pytest.raises(
        UserError, match=r"lab.yaml\] line \d+: there is no key operations.float32.ad. Did you mean add"
    ):
        energy_table(path)
