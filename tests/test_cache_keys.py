"""Compiled programs are kept on disk under a key: whatever changes the program must change the key, or an old program would be run."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import weft
from weft.compiler import store
from weft.compiler.cpu import engine
from weft.compiler.thresholds import thresholds
from weft.graph import Graph
from weft.options import SETTINGS, CompileOptions
from weft.runtime import native
from weft.runtime.cuda import executable as cuda
from weft.tracing.trace import make_graph


class _Asked(Exception):
    """The cache was asked for this key."""


def _ask(key: str, make: Callable[[], bytes]) -> bytes:
    raise _Asked(key)


def graph_of(f: Callable[..., Any]) -> Graph:
    return make_graph(f, weft.zeros((1, 4, 8, 8)), weft.zeros((4, 4, 3, 3)))


CONV = graph_of(lambda x, w: (weft.conv(x, w, padding=1), x + 1.0))
SAME = {"graph": CONV, "updates": {1: 0}, "precision": None, "constants": frozenset({1})}
# One fact is another in each: of the call, or among the settings.
OTHERS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "another graph": {"graph": graph_of(lambda x, w: (weft.conv(x, w, padding=1), x + 2.0))},
    "another update": {"updates": {0: 0}},
    "no update": {"updates": {}},
    "bfloat16": {"precision": "bfloat16"},
    "float16": {"precision": "float16"},
    "another constant": {"constants": frozenset({0})},
    "no constants": {"constants": frozenset()},
}
# Two values of every setting that shapes code.
CHOICES: dict[str, tuple[Any, Any]] = {
    "threads": (1, 2), "conv_algorithm": ("fastest", "GEMM"), "matmul_algorithm": ("fastest", "no_workspace"),
    "winograd": (0, 1), "fast_math": (0, 1), "optimize": (0, 1), "tf32": (0, 1), "memory": (0, 1 << 20),
}  # fmt: skip


def native_key(**given: Any) -> str:
    call = {**SAME, **given}
    options = CompileOptions.current("cpu", precision=call["precision"])
    with pytest.raises(_Asked) as asked:
        native._code(call["graph"], call["updates"], options, call["constants"])
    return str(asked.value)


def cuda_key(capability: int = 90, libraries: Any = None, **given: Any) -> str:
    made = cuda.CudaExecutable.__new__(cuda.CudaExecutable)
    vars(made).update(
        {**SAME, **given},
        options=CompileOptions.current("cuda", precision=given.get("precision")),
        gpu=SimpleNamespace(capability=capability),
        context=SimpleNamespace(libraries=libraries),
    )
    with pytest.raises(_Asked) as asked:
        made._compiled()
    return str(asked.value)


def under_other_settings(key: Callable[[], str], choices: dict[str, tuple[Any, Any]]) -> dict[str, str]:
    found = {}
    for name, values in choices.items():
        for value in values:
            with weft.knobs.set(**{name: value}):
                found[f"{name}={value}"] = key()
    return found


def differ(keys: dict[str, str], choices: dict[str, tuple[Any, Any]]) -> None:
    """All keys, but that one value of every setting may be the usual one."""
    for name, (one, other) in choices.items():
        assert keys[f"{name}={one}"] != keys[f"{name}={other}"], name
    plain = {name: key for name, key in keys.items() if "=" not in name}
    names = {key: name for name, key in plain.items()}
    assert len(names) == len(plain), set(plain) - set(names.values())


def test_the_key_of_a_native_program_has_all_that_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "kept_code", _ask)
    keys = {name: native_key(**other) for name, other in OTHERS.items()}
    differ(keys | under_other_settings(native_key, CHOICES), CHOICES)


def test_the_key_of_a_gpu_program_has_all_that_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "kept", _ask)
    keys = {name: cuda_key(**other) for name, other in OTHERS.items()}
    keys["another GPU"] = cuda_key(capability=80)
    keys["libraries"] = cuda_key(libraries=SimpleNamespace(key="cublas 13"))
    differ(keys | under_other_settings(cuda_key, CHOICES), CHOICES)


def test_every_setting_that_shapes_code_is_tested_here() -> None:
    assert set(CHOICES) == set(SETTINGS)


def test_every_key_has_the_sources_that_make_code_and_changed_thresholds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = store.compiler_version()
    with thresholds.set(unrolled_taps=0):
        assert store.compiler_version() != plain
    assert store.compiler_version() == plain
    monkeypatch.setattr(store, "_WEFT", tmp_path)
    digests = set()
    for name in ("compiler/cpu/emit.py", "graph/rewrite.py", "ops/grouped.py"):
        source = tmp_path / name
        source.parent.mkdir(parents=True)
        for text in ("a = 1", "a = 2"):
            source.write_text(text)
            digests.add(store._sources_digest.__wrapped__())
    assert len(digests) == 6
