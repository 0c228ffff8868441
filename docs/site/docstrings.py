"""Three things that griffe, which reads the sources for mkdocstrings, needs for the docstrings of weft.

They become Markdown: it would take `>>>` for nested quotations and `x**2` for bold text. And functions that exist only when
weft is imported (elementwise ops are made from a table, `weft.random.uniform` is a bound method, a package may load names
lazily), and constructors that a decorator makes, are added as they are then. A function whose file has its name begins with the docstring of that file, which introduces it
and shows how it is called.
"""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import griffe

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
EXAMPLE = re.compile(r"^(?P<indent>[ ]*)>>> .*(?:\n(?P=indent)\S.*)*", re.MULTILINE)
CODE_SPAN = re.compile(r"(?P<code>`[^`]*`)|\*")
KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


class Docstrings(griffe.Extension):
    """Completes the package for the reference, puts each example into a fenced block of its own, and joins introductions."""

    def on_package(self, *, pkg, loader, **kwargs):
        for page in REFERENCE.glob("*.md"):
            for name in re.findall(r"^::: weft\.([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
                if not has_docstring(pkg, name):
                    add(pkg, name)
                add_constructor(pkg, name)

    def on_instance(self, *, obj, **kwargs):
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
            if obj.is_function and obj.parent.is_module and obj.parent.name == obj.name and obj.parent.docstring:
                obj.docstring.value = f"{obj.parent.docstring.value}\n\n{obj.docstring.value}"


def has_docstring(package, name):
    """Whether the sources alone say what this name is."""
    try:
        found = package[name]
        return (found.final_target if found.is_alias else found).docstring is not None
    except (KeyError, griffe.AliasResolutionError):
        return False


def add(package, name):
    """Add what this name is when weft is imported: an alias of what the sources define, or else the function as it is then."""
    where, _, last = f"weft.{name}".rpartition(".")
    value = getattr(importlib.import_module(where), last)
    parent = package if where == "weft" else package[where.removeprefix("weft.")]
    home = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}".removeprefix("weft.")
    if home != name and has_docstring(package, home):
        parent.set_member(last, griffe.Alias(last, package[home]))
    elif inspect.isroutine(value) and value.__doc__ is not None:
        docstring = griffe.Docstring(as_markdown(inspect.getdoc(value)))
        parent.set_member(last, griffe.Function(last, parameters=parameters(value), docstring=docstring))


def add_constructor(package, name):
    """Add the constructor of a dataclass, which the decorator of weft makes, and of a named tuple."""
    where, _, last = f"weft.{name}".rpartition(".")
    value = getattr(importlib.import_module(where), last)
    if inspect.isclass(value) and (dataclasses.is_dataclass(value) or issubclass(value, tuple)):
        found = package[f"{value.__module__}.{value.__qualname__}".removeprefix("weft.")]
        if found.is_class and "__init__" not in found.members:
            found.set_member("__init__", griffe.Function("__init__", parameters=parameters(value)))


def parameters(value):
    found = inspect.signature(value).parameters.values()
    return griffe.Parameters(
        *(griffe.Parameter(p.name, kind=KINDS[p.kind], annotation=annotation(p), default=default(p)) for p in found)
    )


def annotation(parameter):
    return parameter.annotation if isinstance(parameter.annotation, str) else None


def default(parameter):
    if parameter.default is inspect.Parameter.empty:
        return None
    return "..." if repr(parameter.default).startswith("<") else repr(parameter.default)


def as_markdown(docstring):
    """The docstring with its formulas as they are (no `*` begins emphasis) and its examples as blocks."""
    lines, in_example = [], False
    for line in docstring.split("\n"):
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>> "))
        is_code = in_example or line.startswith("    ")
        lines.append(line if is_code else CODE_SPAN.sub(lambda part: part["code"] or "\\*", line))
    return EXAMPLE.sub(as_block, "\n".join(lines))


def as_block(found):
    indent = found["indent"]
    code = "\n".join(line.removeprefix(indent) for line in found[0].splitlines())
    return f"\n```pycon\n{code}\n```\n"
