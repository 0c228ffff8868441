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

LONGEST, DEEPEST = 200_000, 20
NULL = "tag:yaml.org,2002:null"


def read_settings(where: str, path: str | Path, known: Mapping[str, Setting]) -> dict[str, Any]:
    """The settings in a file; errors name the line."""
    found: dict[str, Any] = {}
    for key, value in _pairs(where, path):
        name, line = key.value, f"{path}, line {key.start_mark.line + 1}"
        if not isinstance(name, str):
            raise UserError(where, f"{line}: the name of a setting is required, got a {_kind(key)}.")
        if name not in known:
            raise UserError(where, f"{line}: there is no setting {name!r}. {nearest(str(name), list(known))}")
        text = _text(value)
        if text is None:
            given = "a mapping" if isinstance(value, yaml.MappingNode) else "a list of more than values"
            raise UserError(where, f"{line}: {name} requires one value or a list of them, got {given}.")
        try:
            found[name] = known[name].parse(text)
        except ValueError as error:
            raise UserError(where, f"{line}: {name}={text} cannot be used: {error}.") from None
    return found


def _pairs(where: str, path: str | Path) -> list[tuple[yaml.Node, yaml.Node]]:
    """The entries of the mapping in a file; an empty file has none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        _check_size(where, path, text)
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if isinstance(root, yaml.MappingNode):
            _check_repeats(where, path, root)
            loader.flatten_mapping(
                root
            )  # merges `<<: *base`: what is merged comes first, and its settings may be given again
            return list({str(key.value): (key, value) for key, value in root.value}.values())
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
            f"{path}: lines such as `epochs: 5` are required, got a {_kind(root)}.",
        )
    return []


def _check_size(where: str, path: str | Path, text: str) -> None:
    """Reject texts that PyYAML needs minutes or a deep stack for. Events are made one after the other: the first that is too deep ends it."""
    if len(text) > LONGEST:
        raise UserError(where, f"{path}: a text of at most {LONGEST:,} characters is required, got {len(text):,}.")
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            line = f"{path}, line {event.start_mark.line + 1}" if event.start_mark else f"{path}"
            raise UserError(where, f"{line}: lists and mappings are nested more than {DEEPEST} deep.")


def _check_repeats(where: str, path: str | Path, root: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in root.value:
        name = str(key.value)
        if name in seen:
            line = f"{path}, line {key.start_mark.line + 1}"
            raise UserError(where, f"{line}: each setting is required once, got {name} again. Remove one of them.")
        seen.add(name)


def _kind(node: yaml.Node) -> str:
    """scalar, sequence or mapping."""
    return type(node).__name__.removesuffix("Node").lower()


def _text(node: yaml.Node) -> str | None:
    """A value as a command writes it; None for a mapping, and for lists in a list, which may contain themselves."""
    if isinstance(node, yaml.ScalarNode):
        return "none" if node.tag == NULL else str(node.value)
    if isinstance(node, yaml.SequenceNode) and all(isinstance(part, yaml.ScalarNode) for part in node.value):
        return ",".join(str(_text(part)) for part in node.value)
    return None
