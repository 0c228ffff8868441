"""Messages from one process to another through memory that they share: a queue of slots with one sender and one receiver.

The sender fills the next slot as soon as it is free, publishes it, and continues: it waits for the receiver only if all slots are full. Each
message has the number and the tag that the receiver expects, or the receiver gives up.
"""

from __future__ import annotations

from llvmlite import ir

from ..ir_builder import I8, I64, PTR, Int, Value, new_module
from ..library import library
from .layout import LINE, TAG_BITS, Context
from .shared_memory import ExchangeCode

ARGUMENTS = ("data", "count", "context", "tag", "status")  # `count`: of bytes


@library("link")
def make(symbol: str) -> ir.Module:
    """link.send and link.receive: arguments as in ARGUMENTS."""
    module = new_module(symbol)
    code = _LinkCode.begin(module, symbol, [PTR, I64, PTR, I64, PTR])
    code.prepare_link()
    code.write_send() if symbol == "link.send" else code.write_receive()
    code.finish()
    code.done()
    return module


class _LinkCode(ExchangeCode):
    """The code of one side of a link."""

    def prepare_link(self) -> None:
        self.of = dict(zip(ARGUMENTS, self.arguments, strict=True))
        self.context = self.of["context"]
        self.own_count = self.address(Context.SEQUENCES)
        self.sequence = self.variable(I64)
        self.store(self.read(self.own_count, 0, I64), self.sequence)
        self.given_up = self.append_basic_block("given_up")

    def write_send(self) -> None:
        number, slots = self.load(self.sequence, typ=I64), self.word(Context.LANES)
        self.wait_while(lambda: self.icmp_signed("<=", self.plus(self._seen(Context.RECEIVED), slots), number))
        slot = self._slot_of(number)
        self.write(self._label(number), slot, 0)
        self.copy(self.at(slot, LINE, I8), self.of["data"], self.of["count"])
        self._say(Context.PUBLISHED, number)

    def write_receive(self) -> None:
        number = self.load(self.sequence, typ=I64)
        self.wait_while(lambda: self.icmp_signed("<=", self._seen(Context.PUBLISHED), number))
        slot = self._slot_of(number)
        other = self.icmp_unsigned("!=", self.read(slot, 0, I64), self._label(number))
        self.give_up_if(other, self.word(Context.INDEX))
        self.copy(self.of["data"], self.at(slot, LINE, I8), self.of["count"])
        self._say(Context.RECEIVED, number)

    def _seen(self, word: int) -> Value:
        return self.load_atomic(self.address(word), "acquire", 8, typ=I64)

    def _say(self, word: int, number: Value) -> None:
        self.store_atomic(self.plus(number, 1), self.typed(self.address(word)), "release", 8)
        self.next()

    def _slot_of(self, number: Int) -> Value:
        place = self.mul(self.srem(number, self.word(Context.LANES)), self.word(Context.SLOT_BYTES))
        return self.at(self.address(Context.STAGING), place, I8)

    def _label(self, number: Value) -> Value:
        return self.or_(self.shl(self.plus(number, 1), self.i64(TAG_BITS)), self.of["tag"])
