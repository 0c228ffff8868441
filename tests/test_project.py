"""The files of a public project agree with each other: versions, checks, extras, the pages of the site."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import weft

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGES_FROM_THE_ROOT = {"contributing.md", "changelog.md", "security.md"}


EXAMPLE_FILES = {"train.py", "eval.py", "net.py", "script.py"}  # of users, in examples and in saved programs


def text(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def test_one_version_everywhere() -> None:
    cited = re.search(r"^version: (.*)$", text("CITATION.cff"), re.MULTILINE)
    assert cited is not None
    assert cited[1] == PROJECT["version"] == weft.__version__
    assert f"## [{weft.__version__}]" in text("CHANGELOG.md")


def test_pre_commit_runs_the_checks_of_make_check() -> None:
    recipes = re.findall(r"^(?:lint|check):.*\n((?:\t.*\n)+)", text("Makefile"), re.MULTILINE)
    checks = [line.strip().replace("$(VENV_PYTHON)", ".venv/bin/python") for line in "".join(recipes).splitlines()]
    hooks = re.findall(r"^\s+entry: (.*)$", text(".pre-commit-config.yaml"), re.MULTILINE)
    assert hooks == checks


def test_sources_name_files_that_exist() -> None:
    files = {path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob("[!.]*/**/*.py")}
    names = {f"/{file}" for file in files if file.startswith(("weft/", "tests/", "benchmarks/", "scripts/"))}
    missing = [
        f"{path.relative_to(REPOSITORY)}: {named}"
        for path in (REPOSITORY / "weft").glob("**/*.py")
        for named in files_named_in(path)
        if named not in EXAMPLE_FILES and not any(name.endswith(f"/{named}") for name in names)
    ]
    assert missing == []


def documented(module: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    """The module, its classes and functions. Expressions, most of the tree, are not looked at."""
    todo: list[Any] = [module]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield node
        todo += [
            one
            for field in ("body", "orelse", "finalbody", "handlers")
            for one in getattr(node, field, ())
            if hasattr(one, "body")
        ]


def files_named_in(path: Path) -> Iterator[str]:
    """The files that docstrings and comments of a file refer to."""
    source = path.read_text(encoding="utf-8")
    docstrings = [ast.get_docstring(node) or "" for node in documented(ast.parse(source))]
    comments = re.findall(r"#.*$", source, re.MULTILINE)
    for written in [*docstrings, *comments]:
        yield from re.findall(r"(?<![\w*/.-])(?:[a-z_]+/)*[a-z_0-9]+\.py\b", written)


def test_every_extra_is_described() -> None:
    page = text("docs/get-started/install.md")
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(PROJECT["optional-dependencies"])


def test_the_navigation_holds_every_page_once() -> None:
    nav = text("mkdocs.yml").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/.-]+\.md)$", nav, re.MULTILINE)
    pages = {path.relative_to(REPOSITORY / "docs").as_posix() for path in REPOSITORY.glob("docs/**/*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages | PAGES_FROM_THE_ROOT, "list every page of docs/ in the nav of mkdocs.yml"


def test_the_site_is_built_strictly() -> None:
    # With --quiet MkDocs drops its warnings before --strict counts them: dead links would pass.
    (command,) = re.findall(r"^\t.*-m mkdocs build.*$", text("Makefile"), re.MULTILINE)
    assert "--strict" in command
    assert "--quiet" not in command
