"""The verb `cfg`: settings as a file, settings of a run, and settings of the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError
from ..jobs.find import find_run
from ..jobs.recipes import with_recipe
from ..jobs.schema import Setting, as_text, flag
from ..jobs.settings import SETTINGS
from ..knobs import KNOBS, knobs
from ..report.compare import settings as settings_of
from ..report.run_record import read_run
from .arguments import read
from .table import as_json, table

_JSON = Setting(flag, False, "print JSON, for programs")


def cfg(words: Sequence[str]) -> None:
    """Print settings as a YAML file: weft cfg data=digits epochs=5 > mine.yaml, then weft train cfg=mine.yaml.

    weft cfg               all settings of weft train, with their defaults and help
    weft cfg key=value     the same with these values
    weft cfg RUN           the settings of a run
    weft cfg env           the settings of the environment, and the variables that set them
    """
    known = {name: setting for name, setting in SETTINGS.items() if name != "json"}  # which concerns one command only
    given = read("cfg", words, {**known, "json": _JSON}, 1)
    if given.plain and given.given - {"json"}:
        raise UserError(
            "weft cfg", f"{given.plain[0]} has its own settings. Use weft cfg {given.plain[0]} without others."
        )
    if given.plain == ("env",):
        _print_environment(given["json"])
        return
    if given.plain:
        values = settings_of(read_run(find_run(given.plain[0])))
    else:
        settings = with_recipe("weft cfg", {name: given[name] for name in given.given if name in known})
        values = {name: settings[name] for name in known}
    print(as_json(values) if given["json"] else _file(values, known))


def _file(values: Mapping[str, Any], known: Mapping[str, Setting]) -> str:
    """Lines `name: value`, each below its help."""
    lines = []
    for name, value in values.items():
        meaning = known[name].help if name in known else ""
        lines += [*([f"# {meaning}"] if meaning else []), f"{name}: {_yaml(value)}"]
    return "\n".join(lines)


def _yaml(value: Any) -> str:
    """As JSON, which is YAML; several values as one text, as a command has them."""
    return json.dumps(as_text(value) if isinstance(value, tuple | list) else value)


def _print_environment(as_data: bool) -> None:
    rows = {
        name: {
            "value": getattr(knobs, name), "default": knob.default, "variable": f"WEFT_{name.upper()}",
            "set": f"WEFT_{name.upper()}" in os.environ, "meaning": knob.help,
        }
        for name, knob in KNOBS.items()
    }  # fmt: skip
    if as_data:
        print(as_json(rows))
        return
    titles = ["setting", "value", "default", "variable", "meaning"]
    cells = [[name, *(as_text(row[title]) for title in titles[1:])] for name, row in rows.items()]
    print(table(titles, cells, left=titles))
