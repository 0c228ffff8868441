"""The search for garbage rests while something is compiled, and is afterwards as it was before."""

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest

import weft
from weft.compiler.gc_pause import gc_paused
from weft.compiler.planning import build as program


@pytest.fixture(autouse=True)
def _as_usual() -> Any:
    gc.enable()
    yield
    gc.enable()


def test_it_rests_while_a_function_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    fused = program._fused
    monkeypatch.setattr(program, "_fused", lambda *a: (seen.append(gc.isenabled()), fused(*a))[1])
    with weft.knobs.set(cache="off"):
        weft.jit(lambda x: weft.tanh(x) + 1.0)(np.ones(3, np.float32))
    assert seen
    assert not any(seen)
    assert gc.isenabled()


@pytest.mark.parametrize("before", [True, False])
def test_it_is_as_it_was_before(before: bool) -> None:
    if not before:
        gc.disable()
    with pytest.raises(ZeroDivisionError), gc_paused, gc_paused:
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled() is before


def test_the_last_thread_wakes_it() -> None:
    inside, leave, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with gc_paused:
            inside.set()
            leave.wait(10)
        seen.append(gc.isenabled())

    thread = threading.Thread(target=other)
    with gc_paused:
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()  # the other thread still compiles
    leave.set()
    thread.join()
    assert seen == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_new_process_searches() -> None:
    with gc_paused:
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert not gc.isenabled()
    assert gc.isenabled()
