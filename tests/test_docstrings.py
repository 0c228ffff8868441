"""Runs the examples in the docstrings of all functions on tensors.

They are wrapped (see `weft.tensor.function`), and doctest passes over what seems to come from another module.
"""

import doctest
import inspect
import sys

import pytest

from weft.tensor import FUNCTIONS

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
WITH_EXAMPLES = sorted(name for name, f in FUNCTIONS.items() if ">>>" in (f.__doc__ or ""))


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name):
    f = inspect.unwrap(FUNCTIONS[name])
    names = dict(vars(sys.modules[f.__module__]))
    example = doctest.DocTestParser().get_doctest(f.__doc__, names, name, inspect.getfile(f), 0)
    said = []
    doctest.DocTestRunner(optionflags=FLAGS).run(example, out=said.append)
    assert not said, "".join(said)


def test_every_function_says_what_it_does():
    assert [name for name, f in FUNCTIONS.items() if not f.__doc__] == []
