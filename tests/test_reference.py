"""The reference documents every public name, and every public name has an example that is run.

A name is documented when a page of docs/reference has a line `::: weft.name`, or names it in a table as `weft.name`. It has
an example when its docstring has one (`--doctest-modules` and test_docstrings.py run those), or when a Python block of the
documentation uses it (test_docs.py runs those).
"""

import ast
import importlib
import importlib.util
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import ParamSpec

import pytest

import docs_runner

REPOSITORY = Path(__file__).resolve().parent.parent
REFERENCE = REPOSITORY / "docs" / "reference"

PACKAGES = [
    "weft",
    "weft.nn",
    "weft.optim",
    "weft.metrics",
    "weft.data",
    "weft.train",
    "weft.zoo",
    "weft.compress",
    "weft.formats",
    "weft.insight",
    "weft.plan",
    "weft.tpu",
    "weft.io",
    "weft.report",
]
PACKAGES += ["weft.graph", "weft.testing"]
# Modules of one file also hold what they import; only what they define is public.
MODULES = ["weft.nn.init", "weft.optim.schedules", "weft.random"]

# Parts of nodes that the tracer makes; to use them by hand is not an example to follow. Only ever shorten this list.
WITHOUT_EXAMPLE = {
    f"weft.graph.{name}"
    for name in ("VariableCell", "Tracker", "data", "item", "make", "placeholder", "tag", "variable")
}
WITHOUT_EXAMPLE |= {"weft.testing.check_errors", "weft.testing.counted"}


def public_names() -> Iterator[str]:
    for package in [*PACKAGES, *MODULES]:
        module = importlib.import_module(package)
        for name in dir(module):
            if not name.startswith("_") and is_public(package, getattr(module, name)):
                yield f"{package}.{name}"


def is_public(package: str, value: object) -> bool:
    """Whether a package offers this, and did not only import it for its own use."""
    if isinstance(value, types.ModuleType) or type(value).__module__ == "__future__":
        return False
    home = getattr(value, "__module__", None) if callable(value) else None
    if package in MODULES:
        return home == package and not isinstance(value, ParamSpec)
    return home is None or (home.startswith("weft") and (package == "weft" or home != "weft.errors"))


NAMES = sorted(set(public_names()))


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))
    documented = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)) | set(re.findall(r"`(weft[\w.]+)", text))
    documented |= {f"weft.{name}" for name in re.findall(r"`((?:metrics|optim|nn)\.\w+)", text)}
    missing = [name for name in NAMES if name not in documented]
    assert not missing, f"add lines `::: NAME` to a page of docs/reference: {', '.join(missing)}"


def test_the_reference_has_no_name_that_does_not_exist() -> None:
    for path in REFERENCE.glob("*.md"):
        for name in re.findall(r"^::: ([\w.]+)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert exists(name), f"{path.name}: there is no {name}"


def test_on_the_site_a_function_is_shown_and_not_the_module_of_its_name() -> None:
    spec = importlib.util.spec_from_file_location("definitions", REPOSITORY / "docs" / "site" / "definitions.py")
    assert spec is not None
    assert spec.loader is not None
    definitions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(definitions)
    page = definitions.with_definitions("::: weft.vmap\n::: weft.jit\n")
    assert page == '<a id="weft.vmap"></a>\n\n::: weft.vmap.functions.vmap\n::: weft.jit\n'
    for path in REFERENCE.glob("*.md"):
        text = definitions.with_definitions(path.read_text(encoding="utf-8"))
        names = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
        assert [name for name in names if definitions.is_module(name)] == []


def exists(name: str) -> bool:
    package, _, last = name.rpartition(".")
    return hasattr(importlib.import_module(package), last)


def test_every_public_name_has_an_example() -> None:
    used = set().union(*(names_used(path) for path in [REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md")]))
    missing = {name for name in NAMES if name not in used and not has_doctest(name)}
    assert sorted(missing - WITHOUT_EXAMPLE) == [], "give each a `>>>` example in its docstring, or use it on a page"
    assert sorted(WITHOUT_EXAMPLE - missing) == [], "these have examples now: take them off the list"


def has_doctest(name: str) -> bool:
    package, _, last = name.rpartition(".")
    return ">>>" in (inspect.getdoc(getattr(importlib.import_module(package), last)) or "")


def names_used(path: Path) -> set[str]:
    """The dotted names, such as weft.nn.Linear, that the Python blocks of a page use, whatever they imported them as."""
    document = docs_runner.read_document(path)
    trees = [ast.parse(plain_code(block.code)) for block in document.python_blocks()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {"weft": "weft"}
    used: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("weft"):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            used |= {f"{node.module}.{alias.name}" for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            used.add(f"{names.get(first, first)}.{rest}")
    return used


def plain_code(code: str) -> str:
    """The code of a block; of a doctest, what stands behind the prompts."""
    if not re.search(r"^\s*>>>", code, re.MULTILINE):
        return code
    lines = [line.strip("\n")[4:] for line in code.splitlines() if line.startswith((">>> ", "... "))]
    return "\n".join(lines)


def test_names_are_found_behind_any_import(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nfrom weft import nn as layers\nfrom weft.io import save\n```\n```python\n>>> layers.Linear(1, 1)\n```\n"
    )
    assert {"weft.nn.Linear", "weft.io.save"} <= names_used(page)


@pytest.mark.parametrize(
    "name", ["weft.nn.parameter", "weft.custom_vjp", "weft.nn.Linear", "weft.optim.schedules.cosine"]
)
def test_public_names_are_enumerated(name: str) -> None:
    assert name in NAMES
