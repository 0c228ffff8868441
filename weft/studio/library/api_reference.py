"""The API as its page describes it, made of its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...records import dataclass

_HIDDEN = ("401", "403", "500")  # answers that every route has


@dataclass(frozen=True)
class ApiField:
    """A parameter, or a field of a body or an answer."""

    name: str
    type: str
    place: str = ""  # path, query, header or body
    required: bool = False
    help: str = ""
    default: str = ""


@dataclass(frozen=True)
class ApiOperation:
    """One route with one method."""

    id: str
    method: str
    path: str
    summary: str
    text: str
    fields: list[ApiField]
    answer: str
    answer_fields: list[ApiField]
    errors: list[tuple[str, str]]
    example: str


def reference(document: Mapping[str, Any]) -> dict[str, list[ApiOperation]]:
    """The operations below /api by their tag."""
    found: dict[str, list[ApiOperation]] = {}
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            if path.startswith("/api/"):
                tag = (one.get("tags") or ["other"])[0]
                found.setdefault(tag, []).append(_operation(document, path, method.upper(), one))
    return found


def _operation(document: Mapping[str, Any], path: str, method: str, one: Mapping[str, Any]) -> ApiOperation:
    summary = str(one.get("summary", ""))
    text = str(one.get("description", ""))
    first, _, rest = text.partition("\n")
    fields = [_parameter(document, given) for given in one.get("parameters", ())]
    body = _content(one.get("requestBody", {}))
    fields += [
        _field(document, name, schema, "body", required) for name, schema, required in _properties(document, body)
    ]
    good: Mapping[str, Any] = next(
        (one["responses"][code] for code in ("200", "201", "202") if code in one["responses"]), {}
    )
    answer = _content(good)
    errors = [
        (code, str(found.get("description", "")))
        for code, found in one["responses"].items()
        if code >= "400" and code not in _HIDDEN
    ]
    return ApiOperation(
        f"{method.lower()}{path}".replace("/", "-").replace("{", "").replace("}", ""), method, path, first or summary, rest.strip(), fields,
        _type(document, answer), [_field(document, *field[:2]) for field in _properties(document, answer)], errors,
        _example(document, path, method, body, one),
    )  # fmt: skip


def _parameter(document: Mapping[str, Any], given: Mapping[str, Any]) -> ApiField:
    schema = given.get("schema", {})
    default = json.dumps(schema["default"]) if schema.get("default") not in (None, "") else ""
    return ApiField(
        given["name"], _type(document, schema), given["in"], bool(given.get("required")), given.get("description", ""), default
    )  # fmt: skip


def _field(
    document: Mapping[str, Any], name: str, schema: Mapping[str, Any], place: str = "", required: bool = False
) -> ApiField:
    return ApiField(name, _type(document, schema), place, required, str(schema.get("description", "")))


def _content(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a body or an answer: JSON if it can be."""
    content = found.get("content", {})
    chosen: Mapping[str, Any] = content.get("application/json") or next(iter(content.values()), {})
    schema: Mapping[str, Any] = chosen.get("schema", {})
    return schema


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _properties(document: Mapping[str, Any], schema: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], bool]]:
    """Name, schema and whether it is required, of the fields of an object or of the objects in a list."""
    known = _resolved(document, schema)
    if known.get("type") == "array":
        known = _resolved(document, known.get("items", {}))
    required = known.get("required", ())
    return [(name, {**_resolved(document, one), **{k: one[k] for k in ("description",) if k in one}}, name in required) for name, one in known.get("properties", {}).items()]  # fmt: skip


def _type(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(_type(document, one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_type(document, schema.get('items', {}))}"
    if schema.get("format") == "binary":
        return "file"
    return str(schema.get("title", "object") if schema.get("properties") else schema.get("type", ""))


def _example(
    document: Mapping[str, Any], path: str, method: str, body: Mapping[str, Any], one: Mapping[str, Any]
) -> str:
    words = ["curl"] + ([f"-X {method}"] if method not in ("GET", "POST") or (method == "POST" and not body) else [])
    words.append('-H "Authorization: Bearer $WEFT_STUDIO_TOKEN"')
    if body:
        content = {name: _value(schema) for name, schema, _ in _properties(document, body)}
        words += ['-H "Content-Type: application/json"', f"-d '{json.dumps(content)}'"]
    required = [p for p in one.get("parameters", ()) if p["in"] == "query" and p.get("required")]
    query = "&".join(f"{p['name']}=..." for p in required)
    return f'{" ".join(words)} "HERE{path}{"?" + query if query else ""}"'


def _value(schema: Mapping[str, Any]) -> Any:
    if schema.get("default") is not None:
        return schema["default"]
    return {"string": "...", "integer": 1, "number": 0.1, "boolean": True, "array": []}.get(schema.get("type", ""), {})
