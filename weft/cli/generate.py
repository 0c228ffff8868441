"""The verb `generate`: a network that was trained on text continues prompts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError
from ..jobs import of_texts
from ..jobs.device import on
from ..jobs.schema import Setting, count, flag, number, positive, seed, whole
from ..jobs.settings import DEVICE
from .arguments import Words, read

ESCAPED = {r"\n": "\n", r"\t": "\t", r"\,": ",", r"\\": "\\"}


def stop_words(text: str) -> tuple[str, ...]:
    r"""Words with commas between them.

    >>> stop_words(r"\n\n,a\, b")
    ('\n\n', 'a, b')
    """
    parts = re.findall(r"\\[nt,\\]|,|[^,]", text, re.DOTALL)
    words = [""]
    for part in parts:
        if part == ",":
            words.append("")
        else:
            words[-1] += ESCAPED.get(part, part)
    if "" in words:
        raise ValueError(r"it must be words with commas between them; \, is a comma in a word")
    return tuple(words)


SAMPLING_SETTINGS = {
    "length": Setting(whole, 500, "number of tokens (characters, of a network that was trained on them) to generate"),
    "temperature": Setting(number, 0.8, "sampling temperature of a text; 0: always the most likely token"),
    "top_k": Setting(count, None, "sample from this number of most likely tokens"),
    "top_p": Setting(positive, None, "sample a text from the most likely tokens that together have this probability"),
    "seed": Setting(seed, 0, "of the text"),
}
GENERATE_SETTINGS = {
    **SAMPLING_SETTINGS,
    "repetition_penalty": Setting(positive, 1.0, "above 1: tokens that there were before are less likely"),
    "stop": Setting(
        stop_words, None, r"end before any of these words: stop=\n\n,THE END; \n is a line break, \, a comma in a word"
    ),
    "draft": Setting(
        str, None, "smaller network of the same vocabulary that drafts tokens, which RUN checks several at once"
    ),
    "draft_tokens": Setting(count, None, "tokens that are drafted for each step; default: 4"),
    "checkpoint": Setting(str, "best", "weights of a run", choices=("best", "last")),
    "precision": Setting(str, None, "16-bit weights, which are faster to read", choices=("float16", "bfloat16")),
    "device": DEVICE,
    "trust_compiled": Setting(flag, None, "use compiled code in net.weft, see weft predict"),
    "json": Setting(flag, False, "print JSON, an object for each text"),
}
MOST_PROMPTS = 1024


def generate(words: Sequence[str]) -> None:
    """Generate text with a language model: weft generate RUN "Once upon a time".

    RUN is a run, a program that weft export wrote (net.weft), or a folder with a GPT-2 of Hugging Face: config.json, model.safetensors and
    tokenizer.json. The text is printed as it is written. Several texts are continued together, and printed when all are complete. With a
    draft, several tokens are written in a step (speculative decoding), and how many of the drafted ones were accepted is printed last.
    """
    given = read("generate", words, GENERATE_SETTINGS, 1 + MOST_PROMPTS)
    if len(given.plain) < 2:
        raise UserError("weft generate", 'a run and a text are required: weft generate RUN "Once upon a time".')
    name, *prompts = given.plain
    if given["draft_tokens"] is not None and given["draft"] is None:
        raise UserError("weft generate", "draft_tokens= requires draft=.")
    with on(given["device"]):
        writer = _writer(name, given, trust_compiled=given["trust_compiled"])
        settings = sampling(given.settings) | {"repetition_penalty": given["repetition_penalty"]}
        if given["stop"] is not None:
            settings["stop"] = given["stop"]
        settings["draft"] = draft = None if given["draft"] is None else _draft(name, writer, given)
        write(writer, prompts, settings, given["json"])
    if draft is not None:
        told = f"{draft.accepted_per_step:.2f} of {draft.tokens} drafted tokens were accepted per step ({draft.steps} steps)"
        print(told, file=sys.stderr)


def _writer(name: str, given: Words, **more: Any) -> of_texts.Writer:
    found: of_texts.Writer = of_texts.find_writer(
        "generate", name, checkpoint=given["checkpoint"], precision=given["precision"], **more
    )
    return found


def _draft(name: str, writer: of_texts.Writer, given: Words) -> of_texts.DraftModel:
    """The network that drafts, which must know the same tokens."""
    smaller = _writer(given["draft"], given)
    own, theirs = (list(one.tokenizer.vocabulary) for one in (writer, smaller))
    if own != theirs:
        differs = f"{len(own)} and {len(theirs)} tokens" if len(own) != len(theirs) else "different tokens"
        raise UserError(
            "weft generate", f"a draft with the vocabulary of {name} is required, got {given['draft']}: {differs}."
        )
    draft: of_texts.DraftModel = of_texts.DraftModel(smaller.model, given["draft_tokens"] or 4)
    return draft


def sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the command line as `weft.text.generate` takes them."""
    found = {name: given[name] for name in ("temperature", "top_k", "top_p", "seed")}
    return found | {"max_new_tokens": given["length"]}


def write(writer: of_texts.Writer, prompts: Sequence[str], settings: Mapping[str, Any], as_json: bool) -> None:
    """Print one text as it is written; several, or as JSON, when they are complete."""
    if len(prompts) > 1 or as_json:
        texts = of_texts.generate(writer.model, list(prompts), writer.tokenizer, **settings)
        for text in texts:
            print(json.dumps({"text": text}) if as_json else text)
        return
    pieces = of_texts.stream(writer.model, prompts[0], writer.tokenizer, **settings)
    print(prompts[0], end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
