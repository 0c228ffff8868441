"""From a Python function to a compiled one: `jit`.

A call goes through the files in this order:

    cache_key       what a program depends on: options, types and structure of the arguments, static values
    program_cache   the compiled programs of a function, by that key
    trace           calls the function with placeholders (arguments, scalars), observed by a context: nodes
    traced          those nodes closed to a graph, with its arguments, state, random streams, results and guards
    artifact        all of that as plain data, to be printed, compared and hashed; naming: the names of state in it
    compiled        that graph as an executable of a device, run on the values of a call
"""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
