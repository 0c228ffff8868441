"""What is imported when: `import weft` and the light verbs of the command line load nothing that they do not need."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import weft
from weft.cli import SUMMARIES, VERBS
from weft.cli.arguments import first_line
from weft.lazy import LazyModule, Origin, read_stub

HEAVY = {
    "llvmlite",
    "triton",
    "PIL",
    "lmdb",
    "safetensors",
    "ssl",
    "urllib.request",
    "multiprocessing",
    "concurrent.futures",
}
LAYERS = {"weft.tensor", "weft.ops", "weft.runtime", "weft.nn", "weft.data", "weft.train"}


def modules_after(code: str, cwd: Path) -> set[str]:
    """What a new process has imported once it has run the code."""
    script = f"import sys\n{code}\nimport json\nprint('\\n' + json.dumps(list(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(weft.__file__).parent.parent)}
    run = subprocess.run([sys.executable, "-c", script], cwd=cwd, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_import_weft_loads_nothing_heavy(tmp_path: Path) -> None:
    found = modules_after("import weft", tmp_path)
    assert "weft.lazy" in found
    assert not found & (HEAVY | LAYERS | {"numpy", "weft.compiler"})


@pytest.mark.parametrize(
    "line",
    ["--help", "--version", "runs list", "models", "job list", "help job", "help runs", "train --help", "help resume"],
)
def test_light_verbs_load_no_compiler(line: str, tmp_path: Path) -> None:
    found = modules_after(f"from weft.cli import main\nassert main({line.split()!r}) == 0", tmp_path)
    assert "weft.cli.verbs" in found
    assert not found & (HEAVY | LAYERS - {"weft.train"} | {"weft.compiler"})


def test_a_worker_that_compiles_kernels_loads_no_layer_above_the_compiler(tmp_path: Path) -> None:
    found = modules_after("from weft.compiler.gpu.compile_pool import serve", tmp_path)
    assert "weft.compiler.gpu.compile" in found
    assert not found & LAYERS


@pytest.mark.parametrize(
    "module", [weft, weft.train, weft.report, weft.io, weft.data, weft.zoo, weft.jobs], ids=lambda m: m.__name__
)
def test_every_listed_name_is_there(module: ModuleType) -> None:
    assert isinstance(module, LazyModule)
    starred: dict[str, object] = {}
    exec(f"from {module.__name__} import *", starred)
    names = set(module._origins)
    assert len(names) >= 3
    assert len(module.__all__) == len(set(module.__all__))
    assert names <= set(dir(module)) & set(module.__all__)
    for name in names - {"__array_namespace_info__"}:
        assert starred[name] is getattr(module, name)


def test_a_function_stays_when_the_module_of_its_name_is_imported(tmp_path: Path) -> None:
    code = "import weft.algorithms, weft.vmap.functions, weft.train.fit\nfor f in (weft.algorithms, weft.vmap, weft.train.fit): assert callable(f), f"
    assert "weft.algorithms" in modules_after(code, tmp_path)
    assert callable(weft.jit)
    assert callable(weft.algorithms)


def test_a_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert weft.einsum is vars(weft)["einsum"]
    monkeypatch.setattr(weft, "einsum", None)
    assert weft.einsum is None


def test_modules_that_no_list_names_and_names_that_do_not_exist() -> None:
    assert weft.tensor.Tensor is weft.Tensor
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'einsun'"):
        _ = weft.einsun
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from weft.train import nothing")


def test_a_module_that_needs_what_is_missing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lazy_needs.py").write_text("import not_installed_anywhere\n")
    monkeypatch.setattr(weft, "__path__", [*weft.__path__, str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        _ = weft.lazy_needs


def test_ops_are_registered_before_they_are_looked_up(tmp_path: Path) -> None:
    text = weft.make_graph(weft.sin, weft.ones(3)).text()
    assert "sin" in text
    modules_after(f"from weft.graph import parse\nassert len(parse({text!r}).nodes) == 2", tmp_path)
    modules_after("from weft.primitives import *\nassert callable(scan) and callable(sin)", tmp_path)
    modules_after("from weft.primitives import sin", tmp_path)


def test_a_stub_as_a_table() -> None:
    text = "from . import nn as nn\nfrom .ops.reduce import sum as sum\nfrom ..x import y\ntotal = sum\npi: float\n"
    assert read_stub(text, "a.b") == {
        "nn": Origin("a.b.nn", None),
        "sum": Origin("a.b.ops.reduce", "sum"),
        "y": Origin("a.x", "y"),
        "total": Origin("a.b.ops.reduce", "sum"),
    }


@pytest.mark.parametrize("verb", SUMMARIES)
def test_the_summary_of_a_verb_is_the_first_line_of_its_docstring(verb: str) -> None:
    assert SUMMARIES[verb] == first_line(VERBS[verb])


def test_a_cached_convolution_is_found_without_the_code_generators(tmp_path: Path) -> None:
    """The key of cached code holds the measured times of convolutions; what generates their code is not imported for it."""
    found = modules_after("import weft.compiler.cpu.conv.choice", tmp_path)
    generators = {"weft.compiler.cpu.ir_builder", "weft.compiler.cpu.conv.direct", "weft.compiler.cpu.fft.plan"}
    assert "weft.compiler.ir.fft_tiling" in found
    assert not found & generators


def test_predictions_for_images_import_nothing_for_texts(tmp_path: Path) -> None:
    found = modules_after("import weft.cli.predict", tmp_path)
    assert "weft.jobs.of_texts" in found
    generators = {"weft.jobs.writers", "weft.text.generate", "weft.text.pretrained", "weft.zoo", "weft.io.torch_file"}
    assert not found & generators
