"""Settings in YAML files, through PyYAML's safe loader: a mapping from names to values.

Scalars keep the text that was written, and each setting reads its own: `name: 007` stays 007, `rate: 1e-3` is a number (PyYAML by
itself takes it for text), and `flip: no` is false.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError
from ..hints import nearest
from .schema import Setting

NULL = "tag:yaml.org,2002:null"


def read_settings(where: str, path: str | Path, known: Mapping[str, Setting]) -> dict[str, Any]:
    """The settings in a file; errors name the line."""
    found: dict[str, Any] = {}
    for key, value in _pairs(where, path):
        name, line = key.value, f"{path}, line {key.start_mark.line + 1}"
        if name not in known:
            raise UserError(where, f"{line}: there is no setting {name!r}. {nearest(str(name), list(known))}")
        if name in found:
            raise UserError(where, f"{line}: each setting is required once, got {name} again. Remove one of them.")
        text = _text(value)
        if text is None:
            raise UserError(where, f"{line}: {name} requires one value or a list of them, got a mapping.")
        try:
            found[name] = known[name].parse(text)
        except ValueError as error:
            raise UserError(where, f"{line}: {name}={text} cannot be used: {error}.") from None
    return found


def _pairs(where: str, path: str | Path) -> list[tuple[yaml.Node, yaml.Node]]:
    """The entries of the mapping in a file; an empty file has none."""
    try:
        loader = yaml.SafeLoader(Path(path).read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if isinstance(root, yaml.MappingNode):
            loader.flatten_mapping(root)  # merges `<<: *base`
            return list(root.value)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(where, f"the file {path} cannot be read: {error}.") from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise UserError(where, f"{path}{line}: YAML is required: {error.problem or error}.") from None
    except yaml.YAMLError as error:
        raise UserError(where, f"{path}: YAML is required: {' '.join(str(error).split())}.") from None
    if root is not None:
        raise UserError(
            where,
            f"{path}: lines such as `epochs: 5` are required, got a {type(root).__name__.removesuffix('Node').lower()}.",
        )
    return []


def _text(node: yaml.Node) -> str | None:
    """A value as a command writes it; None for a mapping."""
    if isinstance(node, yaml.ScalarNode):
        return "none" if node.tag == NULL else str(node.value)
    if isinstance(node, yaml.SequenceNode):
        parts = [_text(part) for part in node.value]
        return None if None in parts else ",".join(part for part in parts if part is not None)
    return None
