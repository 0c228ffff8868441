"""Everything weft needs on a GPU machine that has no network, as one folder to carry there.

    python scripts/gpu_wheels.py FOLDER                                 for this machine's Python on Linux x86-64
    python scripts/gpu_wheels.py FOLDER --python-version 3.12           for another Python
    python scripts/gpu_wheels.py FOLDER --platform manylinux_2_28_aarch64
    python scripts/gpu_wheels.py FOLDER --without triton numpy nvidia-cublas   leaves out what is there already

It asks pip which wheels weft's own requirements and its extras `cuda` and `test` come to on that platform, downloads those
wheels (kept in FOLDER/wheels, so that a second time is quick) and unpacks them into FOLDER/site. On the GPU machine:

    make gpu-test GPU_PYTHON=python3 GPU_SITE=FOLDER/site
    make gpu-bench GPU_PYTHON=python3 GPU_SITE=FOLDER/site

which puts the folder on PYTHONPATH; nothing is installed. The libraries of NVIDIA are large (cuBLAS and cuDNN about 1 GB): a
machine with PyTorch has them, and --without leaves them out. What stands in the folder hides what the machine has: leave out
triton and numpy where a library of the machine must keep its own. Programs that wheels bring along (bin/) are not unpacked
as commands: use python -m.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What no test on a GPU asks for: tools and browsers of the others, and kernels written in Python that cuDNN's front end can also bring.
NOT_NEEDED = (
    "ruff", "mypy", "tensorboard", "scipy", "array-api-strict", "apache-tvm-ffi", "nvidia-cutlass-dsl",
    "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-core", "nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13",
    "playwright", "axe-playwright-python", "wasmtime",
)  # fmt: skip


def main() -> None:
    options = _options()
    left_out = {normal(name) for name in (*options.without, *NOT_NEEDED)}
    target = target_words(options.platform, options.python_version)
    found = resolved(requirements(options.extras, left_out), target)
    chosen = {name: version for name, version in found.items() if name not in left_out}
    folder: Path = options.folder
    download(chosen, target, folder / "wheels")
    unpack(chosen, folder / "wheels", folder / "site")
    print(f"\n{len(chosen)} packages in {folder / 'site'}: {', '.join(f'{n} {v}' for n, v in sorted(chosen.items()))}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where wheels and packages go")
    parser.add_argument("--python-version", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    parser.add_argument(
        "--platform", default="manylinux_2_28_x86_64", help="the newest kind of wheels the machine takes"
    )
    parser.add_argument("--without", nargs="+", default=[], help="packages that the machine has")
    parser.add_argument("--extras", nargs="+", default=["cuda", "test"], help="of weft")
    return parser.parse_args()


def normal(name: str) -> str:
    """The name of a package in its one form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(extras: Sequence[str], without: set[str]) -> list[str]:
    """What weft and its extras require, as pyproject.toml says, without weft's other extras, which `test` names as `weft[studio]`:
    weft is not installed, so pip would take whatever has that name on the package index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    left_out = without | {normal(project["name"])}
    return [line for line in lines if normal(re.split(r"[^A-Za-z0-9._-]", line)[0]) not in left_out]


def target_words(platform: str, python_version: str) -> list[str]:
    """How pip is told to look for another machine: wheels of older systems do as well."""
    kind = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", platform)
    platforms = [platform]
    if kind:
        newest, machine = int(kind[1]), kind[2]
        platforms = [f"manylinux_2_{n}_{machine}" for n in range(newest, 16, -1)] + [f"manylinux2014_{machine}"]
    words = [word for name in platforms for word in ("--platform", name)]
    return [*words, "--python-version", python_version, "--implementation", "cp", "--only-binary", ":all:"]


def pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"pip could not do it: {' '.join(words)}")
    return done.stdout


def resolved(wanted: Sequence[str], target: Sequence[str]) -> dict[str, str]:
    """Every package that is needed, by name, and its version."""
    words = ["install", "--quiet", "--dry-run", "--ignore-installed", "--target", "unused", "--report", "-"]
    report = json.loads(pip(*words, *target, *wanted))
    return {normal(p["metadata"]["name"]): p["metadata"]["version"] for p in report["install"]}


def download(chosen: dict[str, str], target: Sequence[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{name}=={version}" for name, version in chosen.items()]
    pip("download", "--quiet", "--no-deps", "--dest", str(folder), *target, *names)


def unpack(chosen: dict[str, str], wheels: Path, site: Path) -> None:
    """The chosen wheels as a folder of packages. What an earlier run left there goes."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    for wheel in sorted(wheels.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        if chosen.get(normal(name)) == version:
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(site)
            _take_out(site)


def _take_out(site: Path) -> None:
    """Some wheels keep packages in NAME.data/purelib or platlib: they belong beside the others."""
    for data in site.glob("*.data"):
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, site, dirs_exist_ok=True)
        shutil.rmtree(data)


if __name__ == "__main__":
    main()
