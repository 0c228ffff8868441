"""Compiled code inside saved programs: nothing is compiled where it fits, and nothing of it runs where it is not trusted."""

import gc
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections import OrderedDict
from hashlib import sha256

import numpy as np
import pytest

import weft
from weft import nn
from weft.compiler import store
from weft.compiler.cpu import engine, library
from weft.knobs import knobs

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def compiled_here(monkeypatch):
    """The number of modules that were compiled. Nothing is loaded yet."""
    monkeypatch.setattr(library, "_loaded", {})
    calls = []
    emitted = engine._emitted
    monkeypatch.setattr(engine, "_emitted", lambda *given: calls.append(1) or emitted(*given))
    return calls


def new_net():
    weft.random.seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.fixture
def net():
    return new_net()


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory):
    """A folder with a program with compiled code, and the cache of the user who saved it."""
    folder = tmp_path_factory.mktemp("compiled")
    with knobs.set(cache=str(folder / "here")):
        weft.save(folder / "net.weft", new_net(), X, compiled="host")
    return folder


@pytest.fixture
def file(tmp_path, compiled_once):
    """A program with compiled code, saved by this user."""
    shutil.copytree(compiled_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "net.weft"


def at_home(tmp_path):
    """The cache of this user on a machine that has compiled nothing yet."""
    (tmp_path / "home").mkdir()
    shutil.copy(tmp_path / "here" / "signing.key", tmp_path / "home")
    return knobs.set(cache=str(tmp_path / "home"))


def rewritten(path, **changes):
    """The file with other contents of entries whose names begin so."""
    with zipfile.ZipFile(path) as old:
        entries = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in entries.items():
            found = [change for start, change in changes.items() if name.startswith(f"compiled/{start}")]
            new.writestr(zipfile.ZipInfo(name), found[0] if found else content)


def names_of_objects(path):
    with zipfile.ZipFile(path) as archive:
        return [name.rpartition("/")[2] for name in archive.namelist() if name.startswith("compiled/host/")]


def test_a_program_with_compiled_code_compiles_nothing(tmp_path, file, net, compiled_here):
    with at_home(tmp_path):
        program = weft.load(file).eval()
        assert program.compiled_targets == ["host"]
        assert np.array_equal(weft.jit(program)(X).numpy(), weft.jit(net)(X).numpy())
        assert not compiled_here
        assert [path.name for path in (tmp_path / "home").iterdir()] == ["signing.key"]
        weft.jit(program)(X[:1])  # another size
    assert compiled_here


def test_no_code_generator_is_imported(tmp_path, file):
    with at_home(tmp_path):
        code = f"""
import sys, numpy, weft
program = weft.load({str(file)!r}).eval()
program(numpy.ones((2, 4), numpy.float32)).numpy()
assert "llvmlite" not in sys.modules
weft.jit(program)(numpy.ones((2, 4), numpy.float32))
assert "weft.compiler.cpu.backend" not in sys.modules
"""
        environment = {**os.environ, "WEFT_CACHE": str(tmp_path / "home")}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_large_programs_compile_nothing_without_jit_either(tmp_path, compiled_here, monkeypatch):
    net, x = nn.Linear(1024, 4096).eval(), np.zeros((8, 1024), np.float32)
    with knobs.set(cache=str(tmp_path / "here")):
        expected = net(x).numpy()  # now the device knows the program: it must be recorded all the same
        weft.save(tmp_path / "net.weft", net, x, compiled="host", train=False)
    assert compiled_here
    compiled_here.clear()
    with at_home(tmp_path):
        monkeypatch.setattr(weft.device("cpu"), "_compiled", OrderedDict())  # as in a new process
        assert np.array_equal(weft.load(tmp_path / "net.weft")(x).numpy(), expected)
    assert not compiled_here


def test_code_of_others_does_not_run(tmp_path, file, net, monkeypatch):
    bad = b"{}\nthis would crash"
    objects = dict.fromkeys(names_of_objects(file), sha256(bad).hexdigest())
    rewritten(file, host=bad, index=json.dumps({"version": 1, "targets": {"host": objects}}))
    loaded = []
    load = engine.Loaded.__init__
    monkeypatch.setattr(
        engine.Loaded, "__init__", lambda self, code, *given: loaded.append(code) or load(self, code, *given)
    )
    monkeypatch.setattr(library, "_loaded", {})
    for cache in ("here", "elsewhere"):  # its signature is wrong here, and there is no key elsewhere
        with knobs.set(cache=str(tmp_path / cache)):
            program = weft.load(file).eval()
            assert program.compiled_targets == []
            assert np.array_equal(weft.jit(program)(X).numpy(), weft.jit(net)(X).numpy())
    assert loaded
    assert not any(b"crash" in code for code in loaded)
    assert weft.load(file, trust_compiled=True).compiled_targets == ["host"]


def test_trust_is_said(tmp_path, file, compiled_here):
    with knobs.set(cache="off"):
        assert weft.load(file).compiled_targets == []
        program = weft.load(file, trust_compiled=True).eval()
        weft.jit(program)(X)
        assert not compiled_here
        del program
        gc.collect()
        assert not list(store._bundles)  # the code goes with its program
        weft.jit(weft.load(file).eval())(X)
        assert compiled_here
    with knobs.set(cache=str(tmp_path / "here")):
        assert weft.load(file, trust_compiled=False).compiled_targets == []


def test_code_of_another_compiler_or_cpu_is_not_used(tmp_path, file, monkeypatch, compiled_here):
    monkeypatch.setattr(store, "compiler_version", lambda: "another")
    with at_home(tmp_path):
        weft.jit(weft.load(file).eval())(X)
    assert compiled_here


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host": b"other code"}, "is not the code that compiled/index.json names"),
        ({"index": b"{"}, "compiled/index.json is wrong"),
        ({"index": b'{"targets": {"host": {"0000": "00"}}}'}, "compiled/host/0000 is missing"),
        ({"index": b'{"targets": [1]}'}, "compiled/index.json is wrong"),
    ],
)
def test_damaged_code_is_refused(file, changes, message):
    rewritten(file, **changes)
    with pytest.raises(weft.RunError, match=message):
        weft.load(file, trust_compiled=True)
    assert weft.load(file).compiled_targets == []  # it is not even read


def test_a_flipped_bit_of_code_is_noticed(tmp_path, file):
    with zipfile.ZipFile(file) as archive:
        info = next(info for info in archive.infolist() if info.filename.startswith("compiled/host/"))
    content = bytearray(file.read_bytes())
    content[content.index(info.filename.encode()) + 300] ^= 1
    file.write_bytes(content)
    with knobs.set(cache=str(tmp_path / "here")), pytest.raises(weft.RunError, match="checksum of compiled/host/"):
        weft.load(file)


def test_the_key_is_private_and_without_a_folder_nothing_is_signed(tmp_path, file, net):
    assert stat.S_IMODE((tmp_path / "here" / "signing.key").stat().st_mode) == 0o600
    with knobs.set(cache="off"):
        weft.save(tmp_path / "unsigned.weft", net, X, compiled=["host"])
        assert weft.load(tmp_path / "unsigned.weft").compiled_targets == []
    assert "compiled/signature" not in zipfile.ZipFile(tmp_path / "unsigned.weft").namelist()


def test_code_from_elsewhere_is_not_signed_again(tmp_path, file, net):
    bundle = store.CodeBundle(dict.fromkeys(names_of_objects(file), b"of others"))
    with knobs.set(cache=str(tmp_path / "here")):
        weft.save(tmp_path / "again.weft", net, X, compiled="host")
    assert bundle.contents
    with zipfile.ZipFile(tmp_path / "again.weft") as archive:
        assert all(b"of others" not in archive.read(name) for name in archive.namelist())
    assert names_of_objects(tmp_path / "again.weft") == names_of_objects(file)


def test_unknown_targets_are_refused(tmp_path, net):
    with pytest.raises(weft.UserError, match="targets of host, cuda, got 'z80'"):
        weft.save(tmp_path / "net.weft", net, X, compiled="host,z80")


def test_a_training_step_is_compiled_without_running_it(tmp_path, compiled_here):
    state = weft.zeros(3)

    def step(x):
        state.assign(state + x)
        return state.sum()

    with knobs.set(cache=str(tmp_path / "here")):
        weft.save(tmp_path / "step.weft", step, np.ones(3, np.float32), compiled="host", dynamic=False)
    assert compiled_here
    compiled_here.clear()
    with at_home(tmp_path):
        again = weft.jit(weft.load(tmp_path / "step.weft"))
        assert [again(weft.ones(3)).item() for _ in range(2)] == [3.0, 6.0]
    assert not compiled_here
