"""A device of three methods: it stores and reads arrays, and runs the definition of every op. It counts what it runs."""

from weft.extend import ArrayDevice, register_device
from weft.runtime.reference import interpreted


class CountingDevice(ArrayDevice):
    """The definitions, counted."""

    name = "counting"
    nodes = 0

    def run(self, program):
        self.nodes += len(program.order)
        return interpreted(self, program)


counting = register_device(CountingDevice())
