"""Checks the packages of an environment against known advisories: python scripts/audit.py PIP_AUDIT PYTHON, as make audit does.

The exit code is 0 if packages were checked and none has an advisory, else 1: also where the advisories cannot be reached.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def main(auditor: str, python: str) -> int:
    """Run pip-audit on the packages of a Python."""
    code = 'import sysconfig; print(sysconfig.get_path("purelib"))'
    packages = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    command = [auditor, "--path", packages, "--skip-editable", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines, failed = report(done.stdout)
    print("\n".join(lines), file=sys.stderr if failed else sys.stdout)
    return int(failed)


def report(text: str) -> tuple[list[str], bool]:
    """What to print of the auditor's answer, and whether the check has failed.

    >>> report('{"dependencies": [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}]}')
    (['1 package checked, no known advisory; 1 could not be checked: b'], False)
    """
    try:
        found: list[Mapping[str, Any]] = json.loads(text)["dependencies"]
    except (ValueError, KeyError, TypeError):
        found = []
    checked = [one for one in found if "vulns" in one]
    if not checked:
        return ["make audit needs a network: the advisories cannot be reached, and nothing was checked."], True
    lines = [
        f"{one['name']} {one['version']}: {advisory['id']}, fixed in {', '.join(advisory.get('fix_versions') or ['no version'])}"
        for one in checked
        for advisory in one["vulns"]
    ]
    skipped = [str(one["name"]) for one in found if "vulns" not in one]
    rest = f"; {len(skipped)} could not be checked: {', '.join(skipped)}" if skipped else ""
    count = f"{len(checked)} package{'s' if len(checked) > 1 else ''} checked"
    return [*lines, f"{count}, {f'{len(lines)} advisories' if lines else 'no known advisory'}{rest}"], bool(lines)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
