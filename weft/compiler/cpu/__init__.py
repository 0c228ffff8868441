"""The CPU backend: LLVM IR and native functions.

Its modules are imported when they are first used: a program whose code is cached, or came with a file, needs no code generator.
"""

from ...lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
