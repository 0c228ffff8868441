"""The names of `weft.text`, each imported when it is first used (see weft/lazy.py)."""

from .generate import generate as generate
from .generate import stream as stream
from .pretrained import load_pretrained as load_pretrained
from .speculative import DraftModel as DraftModel
from .tokenizer import CharTokenizer as CharTokenizer
from .tokenizer import SubwordTokenizer as SubwordTokenizer
from .tokenizer import Tokenizer as Tokenizer
from .tokenizer import load_tokenizer as load_tokenizer
