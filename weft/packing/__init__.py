"""Packed tensors: entropy codes, and a small file of tensors made with them.

rans, huffman    entropy codes of symbols, with native decoders; `frequencies` are the tables of rANS
byte_stream      numbers, texts and tables as bytes, read with bounds checks
density_classes  contexts of a mask of zeros: classes of rows and columns by their density
tensor_content   a tensor as zeros, a codebook and the numbers of its values
context_coding   tensors in rANS streams
relative_coding  tensors as in Deep Compression: Huffman codes of values and of distances between nonzero weights
packed_tensors   the file

The names of `__init__.pyi` are imported when they are first used: programs that are not packed need no decoder.
"""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
