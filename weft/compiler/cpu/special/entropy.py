"""Entropy coding: rANS with several interleaved states, and the decoder of canonical Huffman codes. Both read and write symbols of one byte.

A state of rANS lies in [2^16, 2^32); it is renormalized by words of 16 bits. Frequencies add up to 2^12, so the table of a context, one 32-bit
entry for each slot, fits in the first cache. Symbol i belongs to state i mod LANES, so that LANES symbols are decoded at a time.

Decoders never read or write outside of what they are given, whatever the data says; callers check how much was read and how states end.
"""

from __future__ import annotations

from llvmlite import ir

from ..ir_builder import I8, I16, I32, I64, PTR, Code, Value, new_module
from ..library import library

LANES = 4
SCALE = 12  # bits of a frequency
LOWEST = 1 << 16  # the smallest state, and the one that encoding begins with
PEEK = 15  # bits of the longest Huffman code

# Arguments in order. A table entry: symbol in bits 0 to 7, frequency - 1 in bits 8 to 19, slot - first slot of the symbol in bits 20 to 31.
DECODE = ("symbols", "count", "contexts", "words", "available", "states", "table")
# For each context and symbol: frequency in bits 0 to 15, first slot in bits 16 to 31. Words are written from the end of a buffer backwards.
ENCODE = ("symbols", "count", "contexts", "words", "capacity", "states", "table")
# A table entry: symbol in bits 0 to 7, length of its code above; 0 for bits that begin no code. The buffer has 8 bytes more than `available`.
HUFFMAN = ("symbols", "count", "bytes", "available", "table")


@library("rans")
def rans(symbol: str) -> ir.Module:
    """rans.decode.WITH, rans.encode.WITH: WITH is contexts or plain, where all symbols have the first context."""
    _, what, contexts = symbol.split(".")
    module = new_module(symbol)
    code = Code.begin(module, symbol, [PTR, I64, PTR, PTR, I64, PTR, PTR], I64)
    of = dict(zip(DECODE if what == "decode" else ENCODE, code.arguments, strict=True))
    code.done((_decode if what == "decode" else _encode)(code, of, contexts == "contexts"))
    return module


def _decode(code: Code, of: dict[str, Value], contexts: bool) -> Value:
    """Decode `count` symbols, a multiple of LANES; the number of words read, which is beyond `available` for data that is cut off."""
    states = [code.read(of["states"], lane, I32) for lane in range(LANES)]

    def group(i: Value, carried: list[Value]) -> list[Value]:
        *now, place = carried
        for lane in range(LANES):
            at = code.plus(i, lane)
            slot = code.and_(now[lane], ir.Constant(I32, (1 << SCALE) - 1))
            entry = code.read(of["table"], _table_place(code, of, at, slot, SCALE, contexts), I32)
            code.write(code.trunc(entry, I8), of["symbols"], at)
            frequency = code.add(code.and_(code.lshr(entry, _i32(8)), _i32(0xFFF)), _i32(1))
            rest = code.mul(frequency, code.lshr(now[lane], _i32(SCALE)))
            state = code.add(rest, code.lshr(entry, _i32(20)))
            low = code.icmp_unsigned("<", state, _i32(LOWEST))
            word = code.zext(code.read(of["words"], code.minimum(place, of["available"]), I16), I32)
            now[lane] = code.select(low, code.or_(code.shl(state, _i32(16)), word), state)
            place = code.add(place, code.zext(low, I64))
        return [*now, place]

    *states, place = code.loop_carrying(0, of["count"], [*states, code.i64(0)], group, LANES)
    for lane, state in enumerate(states):
        code.write(state, of["states"], lane)
    return place


def _encode(code: Code, of: dict[str, Value], contexts: bool) -> Value:
    """Encode `count` symbols, a multiple of LANES, from the last to the first; the place of the first word in the buffer, or -1 if it is too small."""
    states = [code.read(of["states"], lane, I32) for lane in range(LANES)]

    def group(i: Value, carried: list[Value]) -> list[Value]:
        *now, place = carried
        for lane in reversed(range(LANES)):
            at = code.sub(of["count"], code.plus(i, LANES - lane))
            symbol = code.zext(code.read(of["symbols"], at, I8), I32)
            entry = code.read(of["table"], _table_place(code, of, at, symbol, 8, contexts), I32)
            frequency, first = code.and_(entry, _i32(0xFFFF)), code.lshr(entry, _i32(16))
            limit = code.shl(code.zext(frequency, I64), code.i64(32 - SCALE))
            high = code.icmp_unsigned(">=", code.zext(now[lane], I64), limit)
            before = code.plus(place, -1)
            code.write(code.trunc(now[lane], I16), of["words"], code.maximum(before, 0))  # kept only if it is counted
            place = code.select(high, before, place)
            state = code.select(high, code.lshr(now[lane], _i32(16)), now[lane])
            whole = code.udiv(state, frequency)
            rest = code.sub(state, code.mul(whole, frequency))
            now[lane] = code.add(code.add(code.shl(whole, _i32(SCALE)), rest), first)
        return [*now, place]

    *states, place = code.loop_carrying(0, of["count"], [*states, of["capacity"]], group, LANES)
    for lane, state in enumerate(states):
        code.write(state, of["states"], lane)
    return code.select(code.icmp_signed("<", place, code.i64(1)), code.i64(-1), place)


def _table_place(code: Code, of: dict[str, Value], at: Value, entry: Value, bits: int, contexts: bool) -> Value:
    """The place of an entry in the tables of all contexts."""
    entry = code.zext(entry, I64)
    if not contexts:
        return entry
    context = code.zext(code.read(of["contexts"], at, I8), I64)
    return code.or_(code.shl(context, code.i64(bits)), entry)


@library("huffman")
def huffman(symbol: str) -> ir.Module:
    """huffman.decode: symbols whose codes begin with their highest bit; the number of bits read, or -1 for bits that begin no code."""
    module = new_module(symbol)
    code = Code.begin(module, symbol, [PTR, I64, PTR, I64, PTR], I64)
    of = dict(zip(HUFFMAN, code.arguments, strict=True))
    most = code.mul(of["available"], code.i64(8))

    def one(i: Value, carried: list[Value]) -> list[Value]:
        place, bad = carried
        start = code.lshr(code.minimum(place, most), code.i64(3))
        wide = code.load(code.at(of["bytes"], start, I8), typ=I32, align=1)
        ahead = code.intrinsic("bswap", wide)
        offset = code.trunc(code.and_(place, code.i64(7)), I32)
        peeked = code.lshr(code.shl(ahead, offset), _i32(32 - PEEK))
        entry = code.read(of["table"], code.zext(peeked, I64), I16)
        code.write(code.trunc(entry, I8), of["symbols"], i)
        length = code.zext(code.lshr(entry, ir.Constant(I16, 8)), I64)
        bad = code.or_(bad, code.icmp_unsigned("==", length, code.i64(0)))
        return [code.add(place, length), bad]

    place, bad = code.loop_carrying(0, of["count"], [code.i64(0), ir.Constant(ir.IntType(1), 0)], one)
    code.done(code.select(bad, code.i64(-1), place))
    return module


def _i32(value: int) -> Value:
    return ir.Constant(I32, value)
