"""Starts a studio that has something to show: three networks trained on the digits, side by side. Used by `make studio`.

python scripts/studio_demo.py [FOLDER]     the runs are kept in FOLDER, and trained only if they are not there
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUNS = {
    "lenet": ["model=lenet", "epochs=8"],
    "lenet-augmented": ["model=lenet", "epochs=8", "augment=light"],
    "mlp": ["model=mlp", "epochs=8"],
}


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs")
    weft = [sys.executable, "-m", "weft"]
    for name, settings in RUNS.items():
        if not (folder / "classify" / name / "summary.json").exists():
            given = [f"runs={folder}", f"name={name}", "exist_ok=true", *settings]
            subprocess.run([*weft, "train", "data=digits", *given], check=True)
    names = ",".join(f"classify/{name}" for name in RUNS)
    print(f"\nTry first: the run lenet, then Compare (/compare?runs={names}), then Classify.\n", flush=True)
    sys.exit(subprocess.run([*weft, "studio", f"runs={folder}"], check=False).returncode)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
