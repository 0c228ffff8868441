"""The names of weft.jobs.of_texts (see weft/lazy.py)."""

from ..text.generate import generate as generate
from ..text.generate import stream as stream
from ..text.speculative import DraftModel as DraftModel
from .writers import Writer as Writer
from .writers import find_writer as find_writer
from .writers import writer_of as writer_of
