"""Proves that imports inside weft run one way: a layer imports only the layers below it.

Every file is parsed, never run. Each import of a weft module counts, wherever it stands and also under
`if TYPE_CHECKING:`. The stub of a module whose names are imported when they are first used (see weft/lazy.py)
counts as part of it. Imports of other packages are none of this test's business.
"""

import ast
import functools
import itertools
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# The layers of weft, lowest first. A layer is a list of packages; a package is a module or a package right
# under weft/. Packages on one layer must not import each other. weft/__init__.py is the top: it may import
# every package, and no package may import it.
LAYERS = [
    ["version"],
    ["records"],
    ["lazy"],
    ["errors"],
    ["hints"],
    ["locks"],
    ["signals"],
    ["timeline"],
    ["nvml"],
    ["device_names"],
    ["knobs"],
    ["dtypes"],
    ["options"],
    ["tree"],
    ["graph"],
    ["compiler"],
    ["mesh"],
    ["runtime"],
    ["tensor"],
    ["ops"],
    ["derivatives"],
    ["random"],
    ["explain"],
    ["tracing"],
    ["control"],
    ["step_loops"],
    ["vmap"],
    ["precision"],
    ["algorithms"],
    ["primitives"],
    ["extend"],
    ["nn"],
    ["optim"],
    ["metrics"],
    ["parallel"],
    ["zoo"],
    ["io"],
    ["text"],
    ["packing"],
    ["saved"],
    ["onnx"],
    ["loading"],
    ["compress"],
    ["tpu"],
    ["aot"],
    ["web"],
    ["report"],
    ["data"],
    ["insight"],
    ["plan"],
    ["train"],
    ["interpret"],
    ["formats"],
    ["jobs"],
    ["studio"],
    ["cli"],
    ["__main__"],
    ["testing"],
]

TOP = "weft"
TOP_HEIGHT = len(LAYERS)
HEIGHT_OF_PACKAGE = {package: height for height, packages in enumerate(LAYERS) for package in packages}


@dataclass(frozen=True)
class Import:
    """One import of a weft module by another, and where it stands."""

    place: str  # file:line
    source: str
    target: str
    inside_function: bool


@dataclass(frozen=True)
class ImportGraph:
    """All modules under one weft/ folder, and all imports between them."""

    files: dict[str, str]  # dotted module name -> path below the repository
    imports: list[Import]
    classes: dict[str, list[str]]  # defined in each module


@functools.cache  # the repository is asked about several times; made-up trees are built once each
def read_imports(root: Path) -> ImportGraph:
    """Parse all files under root/weft."""
    paths = {module_name(path, root): path for path in sorted((root / TOP).rglob("*.py"))}
    files = {module: path.relative_to(root).as_posix() for module, path in paths.items()}
    imports: list[Import] = []
    classes: dict[str, list[str]] = {}
    for module, path in paths.items():
        for part in (path, path.with_suffix(".pyi")):
            if part.exists():
                reader = ImportReader(module, part, root, files)
                reader.read(part)
                imports += reader.found
                if part == path:
                    classes[module] = reader.classes
    return ImportGraph(files, imports, classes)


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """The package a module lies in; the top for weft itself."""
    return module.split(".")[1] if "." in module else TOP


def height_of(module: str) -> int | None:
    package = package_of(module)
    return TOP_HEIGHT if package == TOP else HEIGHT_OF_PACKAGE.get(package)


CALLS = ("import_module", "__import__", "registered_by")


class ImportReader(ast.NodeVisitor):
    """Collects the imports of weft modules in one file."""

    def __init__(self, module: str, path: Path, root: Path, files: dict[str, str]) -> None:
        self.module, self.file = module, path.relative_to(root).as_posix()
        self.package = module if path.stem == "__init__" else module.rpartition(".")[0]
        self.files = files
        self.function_depth = 0
        self.found: list[Import] = []
        self.classes: list[str] = []
        self.looks_at_calls = True

    def read(self, path: Path) -> None:
        """Expressions, which are most of a file, are visited only if one of them could import a module by its name."""
        text = path.read_text(encoding="utf-8")
        self.looks_at_calls = any(name in text for name in CALLS)
        self.visit(ast.parse(text, filename=str(path)))

    def generic_visit(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if self.looks_at_calls or isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.function_depth += 1
        self.generic_visit(node)
        self.function_depth -= 1

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.note(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        start = self.absolute("." * node.level + (node.module or ""))
        for alias in node.names:
            # `from a import b` means the module a.b where there is one, else a name in a.
            submodule = f"{start}.{alias.name}"
            self.note(node, submodule if submodule in self.files else start)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes.append(node.name)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Count `import_module("weft.x")`, `__import__("weft.x")` and `registered_by("weft.x")` as imports."""
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        several = called.lstrip("_") == "registered_by"
        for name in node.args if several else node.args[: called in ("import_module", "__import__")]:
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                self.note(node, self.absolute(name.value))
        self.generic_visit(node)

    def absolute(self, name: str) -> str:
        """Turn `..x` into the full name, seen from this file."""
        level = len(name) - len(name.lstrip("."))
        if level == 0:
            return name
        parts = self.package.split(".")
        parts = parts[: max(len(parts) - (level - 1), 0)]
        return ".".join([*parts, *filter(None, [name[level:]])])

    def note(self, node: ast.stmt | ast.expr, target: str) -> None:
        if target == TOP or target.startswith(TOP + "."):
            place = f"{self.file}:{node.lineno}"
            new = Import(place, self.module, target, self.function_depth > 0)
            if new not in self.found:
                self.found.append(new)


def layers_without_package(graph_of_imports: ImportGraph) -> list[str]:
    found = {package_of(module) for module in graph_of_imports.files}
    return [package for package in HEIGHT_OF_PACKAGE if package not in found]


def packages_without_layer(graph_of_imports: ImportGraph) -> list[str]:
    return [
        f"{file}: add the package {package_of(module)!r} to LAYERS in tests/test_imports.py"
        for module, file in graph_of_imports.files.items()
        if height_of(module) is None
    ]


def wrong_way_imports(graph_of_imports: ImportGraph) -> list[str]:
    return [
        f"{found.place}: {found.source} imports {found.target}, which is not on a lower layer"
        for found in graph_of_imports.imports
        if points_wrong_way(found.source, found.target)
    ]


def points_wrong_way(source: str, target: str) -> bool:
    """Whether an import leaves its package in any direction but down."""
    if package_of(source) == package_of(target):
        return False
    from_height, to_height = height_of(source), height_of(target)
    # A package without a layer is reported once, by name, not again at each import.
    if from_height is None or to_height is None:
        return False
    return to_height >= from_height


def hidden_imports(graph_of_imports: ImportGraph) -> list[str]:
    return [
        f"{found.place}: {found.source} imports {found.target} inside a function"
        for found in graph_of_imports.imports
        if found.inside_function
    ]


def import_cycles(graph_of_imports: ImportGraph) -> list[str]:
    """Name the cycles between the modules of one package; wrong-way imports cover those between packages."""
    steps: dict[str, dict[str, str]] = {module: {} for module in graph_of_imports.files}
    for found in graph_of_imports.imports:
        if found.target in steps and package_of(found.source) == package_of(found.target):
            steps[found.source].setdefault(found.target, found.place)
    return [describe_cycle(cycle, steps) for cycle in find_cycles(steps)]


def find_cycles(steps: dict[str, dict[str, str]]) -> Iterator[list[str]]:
    """Yield a closed path for each step that leads back onto the path walked so far."""
    finished: set[str] = set()

    def walk(path: list[str]) -> Iterator[list[str]]:
        for target in steps[path[-1]]:
            if target in path:
                yield [*path[path.index(target) :], target]
            elif target not in finished:
                yield from walk([*path, target])
        finished.add(path[-1])

    for module in steps:
        if module not in finished:
            yield from walk([module])


def describe_cycle(cycle: list[str], steps: dict[str, dict[str, str]]) -> str:
    places = [steps[source][target] for source, target in itertools.pairwise(cycle)]
    return f"{places[0]}: cycle {' -> '.join(cycle)} (imports at {', '.join(places)})"


RULES = [packages_without_layer, wrong_way_imports, hidden_imports, import_cycles]


def complaints_about(root: Path) -> list[str]:
    return complaints_about_graph_of_imports(read_imports(root))


def complaints_about_graph_of_imports(graph_of_imports: ImportGraph) -> list[str]:
    return [complaint for rule in RULES for complaint in rule(graph_of_imports)]


def test_imports_run_one_way() -> None:
    graph_of_imports = read_imports(REPOSITORY)
    assert TOP in graph_of_imports.files, "found no weft/__init__.py: this test looked at nothing"
    complaints = complaints_about_graph_of_imports(graph_of_imports)
    assert not complaints, "\n" + "\n".join(complaints)


# From here on: the test of the test, on small made-up trees.


def build_tree(root: Path, files: dict[str, str]) -> Path:
    for name, source in {"__init__.py": "", **files}.items():
        path = root / TOP / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root


GOOD_TREE = {
    "__init__.py": "from weft import errors\nfrom .tensor import Tensor\nfrom . import graph\n",
    "errors.py": "import os\n",
    "graph/__init__.py": "from .node import Node\nfrom . import walk\n",
    "graph/node.py": "from ..errors import WeftError\nimport weft.errors as errors\n",
    "graph/walk.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .node import Node\n",
    "tensor.py": "from weft.graph.node import Node\ndef load():\n    import json\n    return json\n",
}


def test_good_tree_passes(tmp_path: Path) -> None:
    assert complaints_about(build_tree(tmp_path, GOOD_TREE)) == []


def complaints_with(root: Path, changed_files: dict[str, str]) -> list[str]:
    return complaints_about(build_tree(root, {**GOOD_TREE, **changed_files}))


@pytest.mark.parametrize(
    ("line", "source"),
    [
        (1, "import weft.tensor"),
        (1, "import weft.tensor as t"),
        (1, "import weft"),
        (1, "from weft import tensor"),
        (1, "from weft import Tensor"),
        (1, "from weft.tensor import *"),
        (1, "from .. import tensor"),
        (1, "from .. import Tensor"),
        (1, "from ..tensor import Tensor"),
        (2, "if True:\n    from weft.tensor import Tensor"),
        (2, "if TYPE_CHECKING:\n    from ..tensor import Tensor"),
        (2, "try:\n    import weft.tensor\nexcept ImportError:\n    pass"),
        (2, "class Holder:\n    from weft.tensor import Tensor"),
        (2, "import importlib\ntensor = importlib.import_module('weft.tensor')"),
        (1, "tensor = __import__('weft.tensor')"),
    ],
)
def test_upward_import_is_caught(tmp_path: Path, line: int, source: str) -> None:
    (complaint,) = complaints_with(tmp_path, {"graph/node.py": source})
    assert complaint.startswith(f"weft/graph/node.py:{line}: weft.graph.node imports weft")
    assert complaint.endswith("not on a lower layer")


def test_upward_import_in_a_package_init_is_caught(tmp_path: Path) -> None:
    (complaint,) = complaints_with(tmp_path, {"graph/__init__.py": "from ..tensor import Tensor\n"})
    assert complaint.startswith("weft/graph/__init__.py:1: weft.graph imports weft.tensor")


def test_import_between_packages_of_one_layer_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HEIGHT_OF_PACKAGE, "tensor", HEIGHT_OF_PACKAGE["graph"])
    (complaint,) = complaints_with(tmp_path, {})
    assert complaint.startswith("weft/tensor.py:1: weft.tensor imports weft.graph.node")


def test_cycle_inside_a_package_is_caught(tmp_path: Path) -> None:
    (complaint,) = complaints_with(tmp_path, {"graph/node.py": "import os\nfrom . import walk\n"})
    assert "weft.graph.node -> weft.graph.walk -> weft.graph.node" in complaint
    assert "weft/graph/node.py:2" in complaint
    assert "weft/graph/walk.py:3" in complaint


def test_cycle_through_a_package_init_is_caught(tmp_path: Path) -> None:
    (complaint,) = complaints_with(tmp_path, {"graph/node.py": "from . import Node\n"})
    assert "cycle weft.graph -> weft.graph.node -> weft.graph" in complaint


def test_import_in_a_stub_is_caught(tmp_path: Path) -> None:
    (complaint,) = complaints_with(
        tmp_path, {"graph/__init__.pyi": "from .node import Node\nfrom ..tensor import Tensor\n"}
    )
    assert complaint.startswith("weft/graph/__init__.pyi:2: weft.graph imports weft.tensor")


def test_named_registration_is_an_import(tmp_path: Path) -> None:
    source = "from .lazy import registered_by\nregistered_by('weft.errors', 'weft.tensor')\n"
    (complaint,) = complaints_with(tmp_path, {"lazy.py": "", "graph/node.py": source.replace(".lazy", "..lazy")})
    assert complaint.startswith("weft/graph/node.py:2: weft.graph.node imports weft.tensor")


@pytest.mark.parametrize(
    "source",
    [
        "def late():\n    from weft.graph import node\n",
        "async def late():\n    from .graph import node\n",
        "class Holder:\n    def late(self):\n        import weft.graph.node\n",
        "import importlib\ndef late():\n    return importlib.import_module('.graph.node', 'weft')\n",
    ],
)
def test_hidden_import_is_caught(tmp_path: Path, source: str) -> None:
    (complaint,) = complaints_with(tmp_path, {"tensor.py": source})
    assert complaint.startswith("weft/tensor.py:")
    assert complaint.endswith("weft.tensor imports weft.graph.node inside a function")


def test_package_without_layer_is_caught(tmp_path: Path) -> None:
    (complaint,) = complaints_with(tmp_path, {"attic/box.py": "from weft import tensor\n"})
    assert complaint == "weft/attic/box.py: add the package 'attic' to LAYERS in tests/test_imports.py"


# The layers inside weft/compiler, lowest first. The two backends stand side by side and never import each other.
COMPILER_LAYERS = [
    ["host", "thresholds", "gc_pause", "disk_cache"],
    ["store", "lowering"],
    ["ir"],
    ["passes"],
    ["planning"],
    ["cpu", "gpu"],
]


def compiler_complaints(root: Path) -> list[str]:
    """Imports between the layers of the compiler that do not run downwards, and layers that are not named."""
    height = {layer: number for number, layers in enumerate(COMPILER_LAYERS) for layer in layers}
    graph_of_imports = read_imports(root)
    inside = [m for m in graph_of_imports.files if m.startswith("weft.compiler.")]
    complaints = [
        f"{graph_of_imports.files[m]}: add {m.split('.')[2]!r} to COMPILER_LAYERS"
        for m in inside
        if m.split(".")[2] not in height
    ]
    for found in graph_of_imports.imports:
        if found.source in inside and found.target in inside:
            source, target = found.source.split(".")[2], found.target.split(".")[2]
            if source != target and height[target] >= height[source]:
                complaints.append(
                    f"{found.place}: {found.source} imports {found.target}, which is not in a lower layer"
                )
    return complaints


def test_layers_of_the_compiler() -> None:
    complaints = compiler_complaints(REPOSITORY)
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize(
    ("name", "source", "complaint"),
    [
        ("compiler/cpu/emit.py", "from ..gpu import program", "weft.compiler.cpu.emit imports weft.compiler.gpu"),
        ("compiler/ir/nest.py", "from ..planning import fuse", "weft.compiler.ir.nest imports weft.compiler.planning"),
        ("compiler/passes/fold.py", "from ..cpu import emit", "weft.compiler.passes.fold imports weft.compiler.cpu"),
    ],
)
def test_an_import_against_the_layers_is_caught(tmp_path: Path, name: str, source: str, complaint: str) -> None:
    packages = {f"compiler/{p}/__init__.py": "" for p in ("ir", "passes", "planning", "cpu", "gpu")}
    files = {"compiler/gpu/program.py": "", "compiler/planning/fuse.py": "", "compiler/cpu/emit.py": "", **packages}
    (found,) = compiler_complaints(build_tree(tmp_path, {**files, name: source + "\n"}))
    assert complaint in found


def class_names(root: Path) -> dict[str, list[str]]:
    """The files that define a class of each name."""
    graph_of_imports = read_imports(root)
    found: dict[str, list[str]] = {}
    for module, names in graph_of_imports.classes.items():
        for name in names:
            found.setdefault(name, []).append(graph_of_imports.files[module])
    return found


def test_a_class_name_has_one_meaning() -> None:
    shared = {name: files for name, files in class_names(REPOSITORY).items() if len(set(files)) > 1}
    assert not shared, "classes of one name in several files: " + str(shared)


def test_classes_of_one_name_are_found(tmp_path: Path) -> None:
    files = {f"{package}/a.py": "class Layer:\n    pass\n" for package in ("nn", "ops")}
    assert class_names(build_tree(tmp_path, files))["Layer"] == ["weft/nn/a.py", "weft/ops/a.py"]


def test_the_design_page_names_every_package() -> None:
    text = (REPOSITORY / "docs" / "design.md").read_text()
    block = text.split("## Layers")[1].split("```")[1]
    named = set(re.findall(r"\w+", block))
    packages = {package_of(module) for module in read_imports(REPOSITORY).files} - {TOP, "__main__"}
    assert packages <= named, f"missing in the layers of docs/design.md: {sorted(packages - named)}"
    assert not layers_without_package(read_imports(REPOSITORY))
    titles = [re.split(r"  ", line)[0] for line in block.splitlines() if line[:1].strip()]
    listed = [package for title in titles for package in re.findall(r"\w+", title) if package in HEIGHT_OF_PACKAGE]
    assert listed == [package for layer in LAYERS for package in layer if package != "__main__"]


def test_files_are_short() -> None:
    """The sizes that docs/design.md states."""
    lines = [len((REPOSITORY / file).read_text().splitlines()) for file in read_imports(REPOSITORY).files.values()]
    assert statistics.median(lines) <= 130
    assert max(lines) <= 600
