"""Networks that continue text, found by name: a run, a saved program, or a folder with a model of Hugging Face."""

from __future__ import annotations

from pathlib import Path

from ..errors import UserError
from ..nn.module import Module
from ..records import dataclass
from ..text.pretrained import load_pretrained
from ..text.tokenizer import Tokenizer, load_tokenizer
from .prediction.find import find_predictor
from .prediction.predictor import Predictor, TextProgram

PRETRAINED = "config.json"  # in a folder of Hugging Face


@dataclass(frozen=True)
class Writer:
    """A network for text and its tokenizer."""

    model: Module
    tokenizer: Tokenizer


def find_writer(
    verb: str,
    name: str,
    *,
    trust_compiled: bool | None = None,
    checkpoint: str = "best",
    precision: str | None = None,
) -> Writer:
    """The network for text that a name stands for. In 16 bits its weights take half the memory, and half the time to read."""
    if (Path(name) / PRETRAINED).is_file():
        writer = Writer(load_pretrained(name), load_tokenizer(name))
    else:
        predictor = find_predictor(verb, name, trust_compiled=trust_compiled, checkpoint=checkpoint)
        writer = writer_of(verb, name, predictor)
    if precision is None:
        return writer
    if isinstance(writer.model, TextProgram):
        raise UserError(f"weft {verb}", f"a saved program keeps its precision, got precision={precision} for {name}.")
    return Writer(writer.model.astype(precision), writer.tokenizer)


def writer_of(verb: str, name: str, predictor: Predictor) -> Writer:
    if predictor.text is None:
        raise UserError(f"weft {verb}", f"a network that was trained on text is required, got {name}.")
    return Writer(predictor.model, predictor.text.tokenizer)
