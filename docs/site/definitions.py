"""Where the names of the reference are defined.

`weft.vmap` is a function, and also the package that defines it. mkdocstrings, which reads the sources without importing them, would
show the package. So a line `::: weft.vmap` of the reference becomes `::: weft.vmap.functions.vmap`, behind an anchor `weft.vmap`.
"""

import importlib
import inspect
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFERENCE_LINE = re.compile(r"^::: (?P<name>weft\.[\w.]+)$", re.MULTILINE)


def with_definitions(markdown):
    """The text of a page, in which names that modules have too are replaced by those of their definitions."""
    return REFERENCE_LINE.sub(lambda line: defined(line["name"]), markdown)


def defined(name):
    where, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(where), last)
    if inspect.ismodule(value) or not is_module(name):
        return f"::: {name}"
    return f'<a id="{name}"></a>\n\n::: {value.__module__}.{value.__qualname__}'


def is_module(name):
    """Whether a file or a folder of the sources has this name."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()
