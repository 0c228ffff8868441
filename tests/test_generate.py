"""Text generation: every token is drawn as the network says, with a key-value cache, a state or a window, for one prompt and for many."""

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim, text, zoo
from weft.data import Text
from weft.errors import RunError, UserError
from weft.random import Generator
from weft.text import CharTokenizer

Maker = Callable[..., Any]
VOCABULARY = "abc\n"
LETTERS = CharTokenizer(VOCABULARY)
CONTEXT = 6


def lstm(dropout: float = 0.5) -> Any:
    return zoo.char_lstm(len(VOCABULARY), 12, layers=1, dropout=dropout)


def gpt(dropout: float = 0.5) -> Any:
    return zoo.gpt(len(VOCABULARY), context=CONTEXT, features=12, heads=2, layers=1, dropout=dropout)


class Window(nn.Module):
    """A causal network without a cache."""

    context = CONTEXT

    def __init__(self, dropout: float = 0.5) -> None:
        self.network = gpt(dropout)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        y: weft.Tensor = self.network(x)
        return y


NETWORKS: dict[str, Maker] = {"state": lstm, "cache": gpt, "window": Window}
each = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)


def made(make: Maker) -> Any:
    """A network with weights large enough to expect other tokens after other tokens."""
    weft.seed(3)
    model = make()
    for tensor in model.named_parameters().values():
        tensor.assign(tensor * 8.0 if tensor.ndim == 2 or make is not lstm else tensor * 0.0)
    return model


def first(found: Any) -> Any:
    """The logits, with or without a state beside them."""
    return found[0] if isinstance(found, tuple) else found


def written(
    model: Any, prompt: str, length: int, *, temperature: float = 1.0, top_k: int = 4, seed: int = 0, drop: int = 3,
    repetition_penalty: float = 1.0,
) -> str:  # fmt: skip
    """What `generate` should write, token by token in NumPy: the whole sequence goes through the network for each, without compiling."""
    ids, stream = LETTERS.encode(prompt).tolist(), Generator(seed)
    model.eval()
    for _ in range(length):
        over = max(0, len(ids) - CONTEXT) if hasattr(model, "context") else 0
        with weft.knobs.set(compile_after=1000):
            logits = first(model(weft.asarray([ids[-(-over // drop) * drop :]]))).numpy()[0, -1].astype(np.float64)
        for one in set(ids):
            logits[one] *= repetition_penalty if logits[one] < 0 else 1 / repetition_penalty
        if temperature == 0:
            ids.append(int(np.argmax(logits)))
            continue
        order = np.argsort(-logits, kind="stable")[:top_k] if top_k < 4 else np.arange(4)
        shares = np.exp((logits[order] - logits.max()) / temperature)
        sums = np.cumsum(shares / shares.sum())
        ids.append(int(order[np.searchsorted(sums, stream.uniform().item(), side="right")]))
    model.train()
    return LETTERS.decode(ids)


def generate(model: Any, prompt: Any, length: int, **settings: Any) -> Any:
    return text.generate(model, prompt, LETTERS, max_new_tokens=length, **settings)


# --- what it writes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "rate"), [(lstm, 0.03), (gpt, 0.01)], ids=["state", "cache"])
def test_what_was_learned_goes_on(make: Maker, rate: float) -> None:
    """After an "a" comes a "b" or a "c": only who remembers more than one token can tell."""
    weft.seed(0)
    model, line = make(dropout=0.0), "abac\n"
    data = Text(LETTERS.encode(line * 20), VOCABULARY, length=6)
    x, y = weft.asarray(data.inputs(np.arange(len(data)))), weft.asarray(data.labels)
    optimizer, measure = optim.adam(model, rate=rate), nn.losses.loss("cross_entropy")

    @weft.jit
    def step() -> weft.Tensor:
        loss = measure(first(model(x)), y)
        optimizer.minimize(loss)
        return loss

    before = generate(model, line, 60, temperature=0)
    for _ in range(150):
        step()
    assert before != line * 13
    assert generate(model, line, 60, temperature=0, drop=1) == line * 13


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "exactly the last tokens": {"drop": 1},
    "colder": {"temperature": 0.5},
    "hotter among two": {"temperature": 3.0, "top_k": 2},
    "among three": {"top_k": 3, "seed": 7},
    "greedy": {"temperature": 0},
    "without repetition": {"repetition_penalty": 1.8},
}


@pytest.mark.sweep("name", share=0.2)
@each
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_drawn_as_the_network_says(make: Maker, name: str) -> None:
    """A state or a cache carried on is the same as the whole sequence given at once, and windows are the last tokens."""
    model, settings = made(make), SETTINGS[name]
    assert generate(model, "ab\n", 40, **settings) == written(model, "ab\n", 40, **settings)


@each
def test_a_prompt_longer_than_a_window(make: Maker) -> None:
    model, prompt = made(make), "abcc\nbacab\n"
    assert generate(model, prompt, 12) == written(model, prompt, 12)


@each
def test_prompts_of_different_lengths_are_continued_together(make: Maker) -> None:
    model, prompts = made(make), ["ab\n", "c", "abca\nbaab", "bb\n"]
    found = generate(model, prompts, 20, temperature=0)
    assert found == [written(model, prompt, 20, temperature=0) for prompt in prompts]
    assert len(set(generate(model, ["ab"] * 3, 12))) == 3  # each draws numbers of its own


@each
def test_temperature_0_takes_the_most_likely(make: Maker) -> None:
    """So does drawing from one token, and a temperature that is almost 0 even where single precision has no such number."""
    model = made(make)
    likely = generate(model, "a", 20, temperature=0)
    assert likely == generate(model, "a", 20, top_k=1, seed=5) == generate(model, "a", 20, temperature=1e-60)
    assert likely != generate(model, "a", 20)


def test_tokens_instead_of_text() -> None:
    model = made(gpt)
    wanted = LETTERS.encode(generate(model, "ab", 9, seed=2)).tolist()
    for prompt in ([0, 1], np.array([0, 1]), weft.asarray([0, 1])):
        assert text.generate(model, prompt, max_new_tokens=9, seed=2) == wanted
    assert text.generate(model, [[0, 1]], LETTERS, max_new_tokens=9, seed=2) == [wanted]
    assert list(text.stream(model, [0, 1], max_new_tokens=9, seed=2)) == wanted[2:]


def test_a_step_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is called once to see what it returns, then once for each program, of which there are two; later texts add none."""
    model, calls = made(gpt), []
    forward = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *given, **more: (calls.append(1), forward(*given, **more))[1])
    generate(model, "ab", 20)
    assert len(calls) == 3
    generate(model, "cab", 20, temperature=0.3, seed=8)
    assert len(calls) == 4  # to see what it returns
    assert copy.deepcopy(model)._decoders == []


# --- what it leaves alone -------------------------------------------------------------------------------------------------


@each
def test_the_same_seed_writes_the_same_text(make: Maker) -> None:
    """Whatever happened to the global stream, which stays where it was."""
    model = made(make)
    found = generate(model, "a", 30, seed=4)
    weft.seed(11)
    assert generate(model, "a", 30, seed=4) == found != generate(model, "a", 30, seed=5)
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
    in_training = generate(model, "a", 20)
    assert [part.training for part in parts] == before
    assert generate(model.eval(), "a", 20) == in_training
    assert not any(part.training for part in parts)


def test_new_weights_are_used() -> None:
    model = made(gpt)
    before = generate(model, "ab", 20, temperature=0)
    model.tokens.weight.assign(model.tokens.weight * -1.0)
    assert generate(model, "ab", 20, temperature=0) == written(model, "ab", 20, temperature=0) != before
    kept = model._decoders[-1][1]
    assert kept.is_of(model)
    assert not kept.is_of(model.astype("bfloat16"))  # whose cache is another one


def test_the_mode_comes_back_after_an_error() -> None:
    model = made(lstm)
    model.top.bias.assign(model.top.bias * np.nan)
    for settings in ({}, {"temperature": 0}, {"top_p": 0.5}):
        with pytest.raises(RunError, match=r"\[generate\] the network returns nan. Check its training"):
            generate(model, "a", 3, **settings)
    assert all(part.training for part in model.modules())


@each
def test_length_0_is_the_prompt(make: Maker) -> None:
    assert generate(made(make), "abc", 0) == "abc"


def test_two_streams_of_one_network_do_not_disturb_each_other() -> None:
    model = made(gpt)
    wanted = [generate(model, prompt, 15, seed=1) for prompt in ("ab", "cb")]
    streams = [text.stream(model, prompt, LETTERS, max_new_tokens=15, seed=1) for prompt in ("ab", "cb")]
    pieces = [["ab"], ["cb"]]
    for _ in range(15):
        for found, stream in zip(pieces, streams, strict=True):
            found.append(next(stream))
    assert ["".join(found) for found in pieces] == wanted


# --- sampling from a known distribution -----------------------------------------------------------------------------------------

SHARES = np.array([0.1, 0.5, 0.15, 0.25])


class Fixed(nn.Module):
    """Always expects the same tokens."""

    context = 4

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return weft.asarray(np.log(SHARES).astype(np.float32)) + weft.zeros((*x.shape, 4))


def expected(top_p: float, count: int, top_k: int = 4, seed: int = 3) -> str:
    """The same in NumPy."""
    order = np.argsort(-SHARES)[:top_k]
    shares = SHARES[order] / SHARES[order].sum()
    kept = order[: 1 + int(np.searchsorted(np.cumsum(shares), top_p - 1e-7))]
    sums, stream = np.cumsum(SHARES[kept] / SHARES[kept].sum()), Generator(seed)
    return LETTERS.decode([kept[np.searchsorted(sums, stream.uniform().item(), side="right")] for _ in range(count)])


@pytest.mark.parametrize(
    ("top_p", "top_k", "drawn"), [(0.3, 4, "b"), (0.6, 4, "b\n"), (0.6, 2, "b"), (0.9, 4, "bc\n"), (1.0, 4, "abc\n")]
)
def test_the_nucleus_is_sampled(top_p: float, top_k: int, drawn: str) -> None:
    found = generate(Fixed(), "a", 60, top_k=top_k, top_p=top_p, seed=3)[1:]
    assert found == expected(top_p, 60, top_k)
    assert set(found) == set(drawn)


# --- streams and stop words -------------------------------------------------------------------------------------------------------


class Script(nn.Module):
    """Continues a fixed text, whatever it is given: the next token follows from how many there are."""

    def __init__(self, written: str) -> None:
        self.context = len(written)
        self.table = weft.asarray(np.eye(4, dtype=np.float32)[LETTERS.encode(written)])

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return weft.zeros((x.shape[0], 1, 1)) + self.table[: x.shape[1]]


def pieces(stop: Any, script: str = "abcab\nabc\n\nab") -> Iterator[str]:
    return text.stream(Script(script), "a", LETTERS, max_new_tokens=len(script), temperature=0, stop=stop)


STOPS: dict[str, tuple[Any, str]] = {
    "none": ((), "abcab\nabc\n\nab"),
    "a word": ("c\n", "abcab\nab"),
    "the first of two": (["\n\n", "\na"], "abcab"),
    "one in another": (["ab\nab", "b\n"], "abca"),
    "at once": ("a", ""),
    "never": ("cc", "abcab\nabc\n\nab"),
    "a token": (3, "abcab"),
    "a token and a word": ([3, "ca"], "ab"),
}


@pytest.mark.parametrize("name", STOPS)
def test_a_text_ends_before_a_stop_word(name: str) -> None:
    stop, wanted = STOPS[name]
    found = list(pieces(stop))
    assert "".join(found) == wanted
    assert all(found)
    script = Script("abcab\nabc\n\nab")
    assert text.generate(script, "a", LETTERS, max_new_tokens=13, temperature=0, stop=stop) == "a" + wanted


class Syllables(CharTokenizer):
    """The same letters, but a token is what comes next in a list, so that words begin and end anywhere in tokens."""

    def __init__(self, parts: list[str]) -> None:
        super().__init__(VOCABULARY)
        self.parts = parts

    def pieces(self) -> Callable[[int], str]:
        rest = iter(["", *self.parts])  # of the prompt, nothing
        return lambda token: next(rest)


def test_the_end_does_not_depend_on_tokens() -> None:
    """Whatever the tokens of a text are, it ends before the stop word that is complete first, and nothing of it is given away before."""
    whole, rng = "abcab\nabc\n\nabcb", np.random.default_rng(0)
    ends = set()
    for cut in [2, 8] * 30:
        words = [whole[i : i + n] for i, n in zip(rng.integers(0, 12, 3), rng.integers(1, 6, 3), strict=True)]
        wanted = next(
            whole[: n - len(w)] for n in range(1, 17) for w in sorted(words, key=len)[::-1] if whole[:n].endswith(w)
        )
        cuts = [0, *sorted(rng.choice(np.arange(1, len(whole)), cut, replace=False).tolist()), len(whole)]
        tokens = [whole[a:b] for a, b in itertools.pairwise(cuts)]
        script = Script("a" * 16)
        found = text.stream(script, "a", Syllables(tokens), max_new_tokens=len(tokens), temperature=0, stop=words)
        assert "".join(found) == wanted, (words, tokens)
        ends.add(wanted)
    assert len(ends) > 5


def test_what_may_begin_a_stop_word_is_held_back() -> None:
    assert list(pieces("bcb")) == ["a", "bca", "b\n", "a", "bc\n", "\n", "a", "b"]


def test_pieces_come_one_by_one_and_are_those_of_generate() -> None:
    model = made(gpt)
    found = text.stream(model, "ab", LETTERS, max_new_tokens=9, seed=5)
    assert model.training
    start = next(found)
    assert not model.training
    assert "ab" + start + "".join(found) == generate(model, "ab", 9, seed=5)
    assert model.training


def test_who_stops_early_leaves_the_network_as_it_was() -> None:
    model = made(gpt)
    found = text.stream(model, "ab", LETTERS, max_new_tokens=9)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert model.training
    assert len(model._decoders) == 1


# --- errors -----------------------------------------------------------------------------------------------------------------


class Forgetful(nn.Module):
    """Gives logits, but neither a state nor how much it can see."""

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return weft.zeros((*x.shape, len(VOCABULARY)))


WRONG: dict[str, tuple[Maker, Any, dict[str, Any], str]] = {
    "no prompt": (lstm, "", {}, r"\[generate\] the prompt is empty. Give at least one token"),
    "no prompts": (lstm, [], {}, r"\[generate\] the prompt is empty. Give at least one token"),
    "neither text nor tokens": (lstm, 3.5, {}, r"\[generate\] a text or token ids are required, got float\."),
    "unknown characters": (lstm, "abx?", {}, r"\[encode\] characters must be in the vocabulary, got '\?', 'x'\."),
    "unknown tokens": (gpt, [0, 4], {}, r"\[generate\] token ids from 0 to 3 are required, got 4\."),
    "length": (lstm, "a", {"max_new_tokens": -1}, r"\[generate\] the max_new_tokens must be an int of 0 or more"),
    "temperature": (lstm, "a", {"temperature": -0.5}, r"\[generate\] temperature must be 0 or more, got -0.5\."),
    "no temperature": (lstm, "a", {"temperature": float("nan")}, r"temperature must be 0 or more, got nan\."),
    "temperature as text": (lstm, "a", {"temperature": "hot"}, r"temperature must be a number, got 'hot'\."),
    "temperature None": (lstm, "a", {"temperature": None}, r"temperature must be a number, got None\."),
    "stop None": (lstm, "a", {"stop": None}, r"stop must be words or token ids, got None\."),
    "stop number": (lstm, "a", {"stop": 1.5}, r"stop must be words or token ids, got 1\.5\."),
    "top_k": (lstm, "a", {"top_k": 0}, r"the top_k must be an int of 1 or more, got 0\."),
    "top_p": (lstm, "a", {"top_p": 0.0}, r"top_p must be above 0 and at most 1, got 0.0\."),
    "no top_p": (lstm, "a", {"top_p": float("nan")}, r"top_p must be above 0 and at most 1, got nan\."),
    "penalty": (lstm, "a", {"repetition_penalty": 0.0}, r"repetition_penalty must be above 0, got 0.0\."),
    "seed": (lstm, "a", {"seed": -1}, r"the seed must be an int from 0 to 2\*\*64 - 1, got -1"),
    "stop": (lstm, "a", {"stop": ["a", ""]}, r"stop must be words or token ids, got \['a', ''\]\."),
    "drop": (gpt, "a", {"drop": 7}, r"drop must be at most the context of 6 tokens, got 7\."),
    "another text": (lambda: zoo.char_lstm(9, 4), "a", {}, r"logits \(batch, time, 4\).* got shape \(1, 1, 9\)\."),
    "no context": (Forgetful, "a", {}, r"Forgetful returns no state, so it requires an attribute `context`\."),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    make, prompt, settings, message = WRONG[name]
    with pytest.raises(UserError, match=message):
        text.generate(make(), prompt, LETTERS, **{"max_new_tokens": 2, **settings})


def test_errors_of_sampling_are_at_the_line_of_the_user() -> None:
    """Not in the generated `__init__` of the settings."""
    with pytest.raises(UserError) as caught:
        text.generate(Fixed(), "a", LETTERS, top_p=0)
    assert caught.value.source is not None
    assert caught.value.source.file == __file__


def test_what_is_wrong_is_said_before_the_first_piece() -> None:
    with pytest.raises(UserError, match=r"top_p must be above 0"):
        text.stream(Fixed(), "a", LETTERS, top_p=2.0)
    with pytest.raises(UserError, match=r"one prompt is required, got a list of 2"):
        text.stream(Fixed(), ["a", "b"], LETTERS)
    with pytest.raises(UserError, match="a prompt that is a text requires a tokenizer"):
        text.stream(Fixed(), "a")
    with pytest.raises(UserError, match="stop words are for prompts that are texts, got \\['b'\\] for token ids"):
        text.stream(Fixed(), [0], LETTERS, stop="b")
    with pytest.raises(UserError, match="a prompt that is a text requires all others to be texts, too"):
        text.generate(Fixed(), ["a", [0]], LETTERS)
