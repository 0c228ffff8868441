"""Text: tokenizers, and language models that continue a text.

from weft import text

tokenizer = text.load_tokenizer("runs/text/book-gpt-1")
for piece in text.stream(model, "Once upon a time", tokenizer, temperature=0.8):
    print(piece, end="", flush=True)
"""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
