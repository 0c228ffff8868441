"""Checks writing: what was learned goes on, and each sign is drawn as the network says, with a state and with windows."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim, zoo
from weft.data import Text
from weft.errors import RunError, UserError
from weft.random import Generator
from weft.train.generate import generate

Maker = Callable[..., Any]
VOCABULARY = "abc\n"
TEXT = Text(np.arange(200, dtype=np.int32) % 4, VOCABULARY, length=6)


def lstm(dropout: float = 0.5) -> Any:
    return zoo.char_lstm(len(VOCABULARY), 12, layers=2, dropout=dropout)


def gpt(dropout: float = 0.5) -> Any:
    return zoo.gpt(len(VOCABULARY), context=6, features=12, heads=2, layers=1, dropout=dropout)


NETWORKS: dict[str, Maker] = {"state": lstm, "window": gpt}
each = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)


def made(make: Maker) -> Any:
    """A network with weights large enough to expect other signs after other signs."""
    weft.seed(3)
    model = make()
    for tensor in model.named_parameters().values():
        tensor.assign(tensor * 8.0 if tensor.ndim == 2 or make is gpt else tensor * 0.0)
    return model


def first(found: Any) -> Any:
    """The logits, with or without a state beside them."""
    return found[0] if isinstance(found, tuple) else found


def written(model: Any, prompt: str, length: int, *, temperature: float = 1.0, top: int = 4, seed: int = 0) -> str:
    """What `generate` should write, sign by sign in NumPy: the whole sequence goes through the network for each."""
    ids, stream = [VOCABULARY.index(sign) for sign in prompt], Generator(seed)
    model.eval()
    for _ in range(length):
        seen = ids[-getattr(model, "context", len(ids)) :]
        logits = first(model(weft.asarray([seen]))).numpy()[0, -1].astype(np.float64)
        order = np.argsort(-logits, kind="stable")[:top] if top < 4 else np.arange(4)
        shares = np.exp((logits[order] - logits.max()) / temperature)
        sums = np.cumsum(shares / shares.sum())
        ids.append(int(order[np.searchsorted(sums, stream.uniform().item(), side="right")]))
    model.train()
    return "".join(VOCABULARY[i] for i in ids)


# --- what it writes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "rate"), [(lstm, 0.03), (gpt, 0.01)], ids=NETWORKS)
def test_what_was_learned_goes_on(make: Maker, rate: float) -> None:
    """After an "a" comes a "b" or a "c": only who remembers more than one sign can tell."""
    weft.seed(0)
    model, line = make(dropout=0.0), "abac\n"
    text = Text(np.array([VOCABULARY.index(sign) for sign in line * 20], np.int32), VOCABULARY, length=6)
    x, y = weft.asarray(text.inputs(np.arange(len(text)))), weft.asarray(text.labels)
    optimizer, measure = optim.adam(model, rate=rate), nn.losses.loss("cross_entropy")

    @weft.jit
    def step() -> weft.Tensor:
        loss = measure(first(model(x)), y)
        optimizer.minimize(loss)
        return loss

    before = generate(model, text, line, 60, temperature=0)
    for _ in range(150):
        step()
    assert before != line * 13
    assert generate(model, text, line, 60, temperature=0) == line * 13


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "colder": {"temperature": 0.5},
    "hotter among two": {"temperature": 3.0, "top": 2},
    "among three": {"top": 3, "seed": 7},
}


@pytest.mark.sweep("name", share=0.3)
@each
@pytest.mark.parametrize("name", SETTINGS)
def test_signs_are_drawn_as_the_network_says(make: Maker, name: str) -> None:
    """A state carried on is the same as the whole sequence given at once, and windows are the last signs."""
    model, settings = made(make), SETTINGS[name]
    assert generate(model, TEXT, "ab\n", 40, **settings) == written(model, "ab\n", 40, **settings)


@each
def test_a_prompt_longer_than_a_window(make: Maker) -> None:
    model, prompt = made(make), "abcc\nbacab\n"
    assert generate(model, TEXT, prompt, 12) == written(model, prompt, 12)


@each
def test_temperature_0_takes_the_most_likely(make: Maker) -> None:
    """So does drawing from one sign, and a temperature that is almost 0 even where single precision has no such number."""
    model = made(make)
    likely = generate(model, TEXT, "a", 20, temperature=0)
    assert likely == generate(model, TEXT, "a", 20, top=1, seed=5) == generate(model, TEXT, "a", 20, temperature=1e-60)
    assert likely != generate(model, TEXT, "a", 20)


@each
def test_the_compiled_step_is_the_plain_one(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(make)
    compiled = generate(model, TEXT, "cab", 25, top=3)
    monkeypatch.setattr(importlib.import_module("weft.train.generate"), "jit", lambda function: function)
    assert generate(model, TEXT, "cab", 25, top=3) == compiled


@each
def test_a_step_is_traced_once(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that are not full yet are no reason to compile again. The network is called once to see what it gives."""
    model, calls = made(make), []
    forward = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *given: (calls.append(1), forward(*given))[1])
    generate(model, TEXT, "ab", 20)
    assert len(calls) == {lstm: 3, gpt: 2}[make]  # a state begins with a call of its own: the prompt


# --- what it leaves alone -------------------------------------------------------------------------------------------------


@each
def test_the_same_seed_writes_the_same_text(make: Maker) -> None:
    """Whatever happened to the global stream, which stays where it was."""
    model = made(make)
    text = generate(model, TEXT, "a", 30, seed=4)
    weft.seed(11)
    assert generate(model, TEXT, "a", 30, seed=4) == text != generate(model, TEXT, "a", 30, seed=5)
    drawn = weft.random.uniform((3,)).tolist()
    weft.seed(11)
    assert weft.random.uniform((3,)).tolist() == drawn


@each
def test_every_part_keeps_its_mode(make: Maker) -> None:
    """Dropout is off while it writes, so the text is that of a network in use; then each part is as it was."""
    model = made(make)
    parts = model.modules()
    parts[1].training = False
    before = [part.training for part in parts]
    in_training = generate(model, TEXT, "a", 20)
    assert [part.training for part in parts] == before
    assert generate(model.eval(), TEXT, "a", 20) == in_training
    assert not any(part.training for part in parts)


def test_the_mode_comes_back_after_an_error() -> None:
    model = made(lstm)
    model.top.bias.assign(model.top.bias * np.nan)
    with pytest.raises(RunError, match=r"\[generate\] the network returns nan. Check its training"):
        generate(model, TEXT, "a", 3)
    assert all(part.training for part in model.modules())


@each
def test_length_0_is_the_prompt(make: Maker) -> None:
    assert generate(made(make), TEXT, "abc", 0) == "abc"


# --- errors -----------------------------------------------------------------------------------------------------------------


class Forgetful(nn.Module):
    """Gives logits, but neither a state nor how much it can see."""

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return weft.zeros((*x.shape, len(VOCABULARY)))


WRONG: dict[str, tuple[Maker, str, dict[str, Any], str]] = {
    "no prompt": (lstm, "", {}, r"\[generate\] the prompt is empty. Give at least one character"),
    "unknown signs": (lstm, "abx?", {}, r"\[encode\] characters must be in the vocabulary, got '\?', 'x'\."),
    "length": (lstm, "a", {"length": -1}, r"\[generate\] the length must be an int of 0 or more, got -1\."),
    "temperature": (lstm, "a", {"temperature": -0.5}, r"\[generate\] temperature must be 0 or more, got -0.5\."),
    "no temperature": (lstm, "a", {"temperature": float("nan")}, r"temperature must be 0 or more, got nan\."),
    "top": (lstm, "a", {"top": 0}, r"the number of characters to sample from must be an int of 1 or more, got 0\."),
    "seed": (lstm, "a", {"seed": -1}, r"the seed must be an int from 0 to 2\*\*64 - 1, got -1"),
    "another text": (lambda: zoo.char_lstm(9, 4), "a", {}, r"logits \(batch, time, 4\).* got shape \(1, 1, 9\)\."),
    "no context": (Forgetful, "a", {}, r"Forgetful returns no state, so it requires an attribute `context`\."),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    make, prompt, settings, message = WRONG[name]
    with pytest.raises(UserError, match=message):
        generate(make(), TEXT, prompt, **{"length": 2, **settings})
