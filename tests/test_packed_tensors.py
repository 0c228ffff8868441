"""Packed tensors: what comes back is equal bit by bit, files are as small as statistics allow, and damaged ones are rejected."""

import zlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from weft.errors import RunError, UserError
from weft.packing import context_coding, packed_tensors
from weft.packing.byte_stream import ByteReader, ByteWriter
from weft.packing.density_classes import choose_classes
from weft.packing.frequencies import Frequencies
from weft.packing.packed_tensors import Coder, load_packed, pack_tensors, save_packed, unpack_tensors
from weft.packing.relative_coding import relative_weights
from weft.packing.tensor_content import split_tensor
from weft.packing.tensor_forms import rans_form

RNG = np.random.default_rng(0)
CODERS: tuple[Coder, ...] = ("rans", "huffman")


def shared(rows: int, columns: int, density: float, values: int = 31) -> np.ndarray:
    """Pruned weights with few values; some columns keep more than others, as the pixels of digits do."""
    weight = RNG.choice(RNG.normal(size=values).astype(np.float32), size=(rows, columns))
    weight[RNG.random((rows, columns)) > np.clip(3 * density * RNG.random(columns) ** 2, 0, 1)] = 0
    return weight


def grouped(rows: int, columns: int) -> np.ndarray:
    """Pruned weights that stand in groups: most that are kept have a neighbour."""
    weight = RNG.choice(RNG.normal(size=7).astype(np.float32), size=(rows, columns // 4, 4))
    weight[RNG.random((rows, columns // 4)) > 0.05] = 0
    return weight.reshape(rows, columns)


def tensors() -> dict[str, np.ndarray]:
    return {
        "fc1.weight": shared(300, 784, 0.08),
        "fc1.bias": RNG.normal(size=300).astype(np.float32),
        "half.bias": RNG.normal(size=50).astype(np.float16).astype(np.float32),
        "conv.weight": shared(20, 50, 0.5, 255).reshape(20, 2, 5, 5),
        "256 values": RNG.integers(1, 257, (60, 60)).astype(np.int32),
        "pruned": np.where(RNG.random((50, 60)) < 0.1, RNG.normal(size=(50, 60)), 0).astype(np.float32),
        "groups": grouped(40, 200),
        "zeros": np.zeros((5, 5), np.int64),
        "ones": np.ones(100, np.float16),
        "bools": RNG.random(99) > 0.5,
        "none": np.zeros((0, 4), np.float32),
        "scalar": np.asarray(3.5),
        "special": np.array([0.0, -0.0, np.nan, np.inf, 1, 1] * 20, np.float32),
        "bfloat16": np.array([1.5, 0, 0, 1.5] * 30, ml_dtypes.bfloat16),
    }


def check_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        assert found[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("coder", CODERS)
def test_tensors_come_back_bit_by_bit(coder: Coder, tmp_path) -> None:
    given_tensors = tensors()
    size = save_packed(tmp_path / "w.packed", given_tensors, coder)
    assert size == (tmp_path / "w.packed").stat().st_size
    check_equal(load_packed(tmp_path / "w.packed"), given_tensors)
    packed = pack_tensors(given_tensors, coder)
    parts = sum(form.bytes for form in packed.forms.values())
    assert parts < size < parts + 200, "what each tensor takes adds up to the file but for names, states and checksum"


@settings(deadline=None, max_examples=60)
@given(
    arrays.arrays(st.sampled_from([np.float32, np.int8, np.uint16]), arrays.array_shapes(min_dims=0, max_side=6)),
    st.sampled_from(CODERS),
)
def test_any_array_comes_back(array: np.ndarray, coder: Coder) -> None:
    check_equal(unpack_tensors(pack_tensors({"x": array}, coder).content, "x"), {"x": array})


def test_many_contexts_and_many_symbols_take_several_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    given_tensors = {str(i): shared(40, 50, 0.3) for i in range(40)}
    monkeypatch.setattr(context_coding, "MOST_CONTEXTS", 150)
    monkeypatch.setattr(context_coding, "LARGE", 5000)
    packed = pack_tensors(given_tensors)
    segments = [one for form in packed.forms.values() for one in form.symbols]
    assert len(list(context_coding._groups(segments))) > 3
    check_equal(unpack_tensors(packed.content, "x"), given_tensors)


def test_contexts_pay_where_columns_differ_and_are_left_out_where_they_do_not() -> None:
    uneven = shared(300, 784, 0.08) != 0
    chosen = choose_classes(uneven)
    assert chosen.column_classes > 2
    coded = pack_tensors({"x": uneven}).forms["x"]
    share = uneven.mean()
    entropy = -uneven.size * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    assert coded.mask_bits < 0.9 * entropy
    even = RNG.random((300, 784)) < 0.08
    assert choose_classes(even).count <= 2
    bits = pack_tensors({"x": even}).forms["x"].mask_bits
    share = even.mean()
    assert bits < 1.01 * -even.size * (share * np.log2(share) + (1 - share) * np.log2(1 - share))


def test_float32_values_that_are_float16_take_two_bytes() -> None:
    half = RNG.normal(size=1000).astype(np.float16).astype(np.float32)
    full = RNG.normal(size=1000).astype(np.float32)
    assert len(pack_tensors({"x": half}).content) < 2050 < 4000 < len(pack_tensors({"x": full}).content)


def test_distances_longer_than_their_bits_have_fillers() -> None:
    array = np.zeros((1, 100), np.float32)
    array[0, [0, 3, 20, 99]] = [1, 2, 1, 2]
    found = relative_weights(split_tensor(array), 3)
    assert found.gaps.tolist() == [0, 2, 7, 7, 0, *[7] * 9, 6]
    assert found.values.tolist() == [1, 2, 0, 0, 1, *[0] * 9, 2]
    check_equal(unpack_tensors(pack_tensors({"x": array}, "huffman").content, "x"), {"x": array})


def test_tables_of_frequencies_are_short() -> None:
    out, table = ByteWriter(), Frequencies.of_counts(np.array([[1, 5, 900, 3], [0, 0, 0, 9]]))
    out.frequencies(table)
    assert len(out.content) <= 10
    np.testing.assert_array_equal(ByteReader(bytes(out.content)).frequencies(2, 4).rows, table.rows)


# --- damage -----------------------------------------------------------------------------------------------------------------


def resealed(content: bytes) -> bytes:
    """With the checksum of what it holds now: what somebody made on purpose."""
    return content[:-4] + zlib.crc32(content[:-4]).to_bytes(4, "little")


@pytest.mark.parametrize("coder", CODERS)
def test_every_changed_byte_is_noticed_by_the_checksum(coder: Coder) -> None:
    content = pack_tensors({"x": shared(10, 12, 0.5), "y": np.arange(3.0)}, coder).content
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(RNG.integers(8))
        with pytest.raises(RunError, match="w.packed is not a file of packed tensors, or is damaged"):
            unpack_tensors(bytes(damaged), "w.packed")
    for length in range(len(content)):
        with pytest.raises(RunError, match="is damaged"):
            unpack_tensors(content[:length], "w.packed")


@pytest.mark.parametrize("coder", CODERS)
def test_damage_with_a_right_checksum_is_refused_or_read_within_bounds(coder: Coder) -> None:
    content = pack_tensors({"x": shared(10, 12, 0.5), "y": np.arange(3.0), "z": np.zeros((3, 3))}, coder).content
    refused = 0
    for number in range(250):
        damaged = bytearray(content)
        for _ in range(1 + number % 3):
            damaged[int(RNG.integers(len(content) - 4))] = int(RNG.integers(256))
        try:
            found = unpack_tensors(resealed(bytes(damaged)), "w.packed")
        except RunError as error:
            refused += 1
            assert "w.packed" in error.message  # noqa: PT017
        else:
            assert all(isinstance(value, np.ndarray) for value in found.values())
    assert refused > 50


def test_a_small_file_cannot_claim_much_memory() -> None:
    out = ByteWriter()
    out.content += b"WPK\x01\x00"
    names = ByteWriter()
    names.varint(1)
    names.text("x")
    out.varint(0)
    out.block(bytes(names.content))
    out.varint(11, 2, 1 << 20, 1 << 20, 0)
    with pytest.raises(RunError, match="larger than a file of this size can hold"):
        unpack_tensors(resealed(bytes(out.content) + bytes(4)), "x")


@pytest.mark.parametrize("coder", CODERS)
def test_what_is_packed_can_be_unpacked_however_small_it_is(coder: Coder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_tensors, "MOST_BYTES", 1 << 14)
    monkeypatch.setattr(packed_tensors, "MOST_RATIO", 1 << 7)
    weight = np.zeros((200, 300), np.float32)
    weight[3, 5] = weight[7, 9] = 0.5
    packed = pack_tensors({"w": weight}, coder).content
    assert len(packed) == -(-weight.nbytes // 128)
    assert packed[3] == packed_tensors.PADDED
    check_equal(unpack_tensors(packed, "w"), {"w": weight})
    with pytest.raises(RunError, match="bytes are left over"):
        unpack_tensors(resealed(packed[:3] + b"\x02" + packed[4:]), "w")
    with pytest.raises(RunError, match="bytes are left over"):
        unpack_tensors(resealed(packed[:-5] + b"\x01" + packed[-4:]), "w")
    with pytest.raises(RunError, match="larger than a file of this size can hold"):
        unpack_tensors(resealed(packed[:-5] + packed[-4:]), "w")


def test_arrays_in_another_byte_order_are_packed_by_value() -> None:
    given = np.array([1.0, -2.5, 0.0, 1.0], ">f4")
    found = unpack_tensors(pack_tensors({"x": given}).content, "x")["x"]
    assert found.tolist() == given.tolist()


def test_weights_in_groups_are_told_by_their_distances() -> None:
    weight = grouped(300, 784)
    packed = pack_tensors({"w": weight})
    assert packed.forms["w"].has_distances
    assert packed.content[3] == 2
    check_equal(unpack_tensors(packed.content, "w"), {"w": weight})
    size = {
        "mask": rans_form(split_tensor(weight)).bytes,
        "huffman": len(pack_tensors({"w": weight}, "huffman").content),
    }
    assert len(packed.content) < 0.7 * size["mask"]
    assert len(packed.content) < 1.02 * size["huffman"]
    apart = pack_tensors({"w": shared(300, 784, 0.08)})
    assert not apart.forms["w"].has_distances
    assert apart.content[3] == 1  # older versions read it
    beyond = bytearray(packed.content)
    refused = 0
    for place in range(5, len(beyond) - 4, 37):
        damaged = bytes(beyond[:place]) + bytes([beyond[place] ^ 0x15]) + bytes(beyond[place + 1 :])
        try:
            assert unpack_tensors(resealed(damaged), "w")["w"].shape == weight.shape
        except RunError:
            refused += 1
    assert refused > 5


def test_what_is_not_ours_or_newer_is_told_apart(tmp_path) -> None:
    content = pack_tensors({"x": np.zeros(3)}).content
    with pytest.raises(RunError, match="does not begin as one"):
        unpack_tensors(b"x" * 100, "x")
    with pytest.raises(RunError, match="has version 9, this weft reads up to 3: install a newer weft"):
        unpack_tensors(resealed(content[:3] + b"\x09" + content[4:]), "x")
    with pytest.raises(RunError, match="cannot be read"):
        load_packed(tmp_path / "missing")
    with pytest.raises(UserError, match="'rans' or 'huffman', got 'zip'"):
        pack_tensors({}, "zip")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="'x' is complex128"):
        pack_tensors({"x": np.zeros(2, complex)})
