"""Blocks: hand-made bytes, and every way in which a block can be broken."""

from __future__ import annotations

import dataclasses
import io
import struct
import zipfile
import zlib

import numpy as np
import pytest

from data_prep.contract.errors import DataError
from data_prep.contract.format import (
    ENDING_BYTES,
    Block,
    block_checksum,
    checksum_of_ending,
    count_dtype,
    decode_block,
    encode_block,
    position_dtype,
    token_dtype,
)


@pytest.fixture
def block() -> Block:
    """Two rows: [CLS] 7 [SEP] 8 9 [SEP] and [CLS] 5 [SEP] 6 [SEP]."""
    return Block(
        tokens=np.array([2, 7, 3, 4, 9, 3, 2, 4, 3, 6, 3], np.uint16),
        length=np.array([6, 5], np.uint16),
        segment_a_length=np.array([3, 3], np.uint16),
        num_predictions=np.array([1, 1], np.uint8),
        masked_lm_positions=np.array([3, 1], np.uint8),
        masked_lm_ids=np.array([8, 5], np.uint16),
        pair_label=np.array([0, 1], np.uint8),
        pair_label_name="next_sentence_label",
    )


def arrays_of(block: Block) -> dict[str, object]:
    return {
        field.name: np.asarray(getattr(block, field.name)).tolist()
        for field in dataclasses.fields(block)
    }


def test_a_block_comes_back_as_it_was_with_dtypes(block: Block) -> None:
    back = decode_block(encode_block(block), "here")
    assert arrays_of(back) == arrays_of(block)
    assert back.tokens.dtype == np.uint16
    assert back.length.dtype == np.uint16
    assert back.masked_lm_positions.dtype == np.uint8
    assert len(back) == 2


def test_decoded_arrays_are_writable_copies(block: Block) -> None:
    data = encode_block(block)
    decode_block(memoryview(data), "here").tokens[0] = 99
    assert decode_block(data, "here").tokens[0] == 2


def test_a_block_is_known_by_its_headers_and_by_its_end_alike(block: Block) -> None:
    data = encode_block(block)
    crcs = [info.CRC for info in zipfile.ZipFile(io.BytesIO(data)).infolist()]
    expected = zlib.crc32(b"".join(struct.pack("<I", crc) for crc in crcs))
    assert block_checksum(data) == block_checksum(memoryview(data)) == expected
    assert checksum_of_ending(data[-ENDING_BYTES:]) == checksum_of_ending(data) == expected
    other = dataclasses.replace(block, masked_lm_ids=np.array([8, 6], np.uint16))
    assert block_checksum(encode_block(other)) != expected


def test_an_end_that_holds_no_directory_is_no_end_of_a_block(block: Block) -> None:
    data = encode_block(block)
    for broken in (b"", data[:-1], data[-30:], data[-470:-60] + data[-22:], bytes(1024)):
        with pytest.raises(ValueError, match="zip directory"):
            checksum_of_ending(broken)
    with pytest.raises(ValueError, match="no zip member"):
        block_checksum(bytes(100))


def test_encoding_twice_gives_the_same_bytes_and_numpy_reads_them(block: Block) -> None:
    data = encode_block(block)
    assert data == encode_block(block)
    with np.load(io.BytesIO(data)) as archive:
        assert archive["tokens"].tolist() == block.tokens.tolist()
        assert sorted(archive.files) == [
            "length",
            "masked_lm_ids",
            "masked_lm_positions",
            "next_sentence_label",
            "num_predictions",
            "segment_a_length",
            "tokens",
        ]


def test_the_label_of_sentence_order_has_its_own_name(block: Block) -> None:
    swapped = dataclasses.replace(block, pair_label_name="sentence_order_label")
    assert decode_block(encode_block(swapped), "here").pair_label_name == "sentence_order_label"


def test_every_changed_byte_of_a_field_is_an_error_that_says_where(block: Block) -> None:
    data = encode_block(block)
    payload_ends = data.index(b"PK\x01\x02")
    changed_unseen = []
    for offset in range(payload_ends):
        changed = bytearray(data)
        changed[offset] ^= 0x01
        try:
            decode_block(bytes(changed), "shard 7 block 3")
        except DataError as err:
            assert "shard 7 block 3" in str(err)
        else:
            changed_unseen.append(offset)
    # Zip header fields that nothing depends on (versions, times, uncompressed size).
    headers = len(changed_unseen) / 7
    assert headers <= 14


@pytest.mark.parametrize("size", [0, 3, 29, 100, 700, 1200])
def test_a_truncated_block_is_an_error(block: Block, size: int) -> None:
    with pytest.raises(DataError, match="here"):
        decode_block(encode_block(block)[:size], "here")


def test_an_array_of_another_kind_is_an_error(block: Block) -> None:
    floats = dataclasses.replace(block, length=np.array([6.0, 5.0]))
    with pytest.raises(DataError, match="one-dimensional unsigned"):
        decode_block(encode_block(floats), "here")


@pytest.mark.parametrize("field", ["tokens", "segment_a_length", "masked_lm_ids", "pair_label"])
def test_a_field_of_another_size_is_named(block: Block, field: str) -> None:
    short = dataclasses.replace(block, **{field: getattr(block, field)[:-1]})
    name = "next_sentence_label" if field == "pair_label" else field
    with pytest.raises(DataError, match=f"here: field {name} has"):
        decode_block(encode_block(short), "here")


def test_a_missing_field_is_an_error_that_lists_what_there_is() -> None:
    buffer = io.BytesIO()
    array = np.zeros(1, np.uint8)
    payload = io.BytesIO()
    np.lib.format.write_array(payload, array, version=(1, 0))
    import zipfile

    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tokens.npy", payload.getvalue())
    with pytest.raises(DataError, match=r"fields are \['tokens'\]"):
        decode_block(buffer.getvalue(), "here")


def test_a_compressed_block_is_an_error(block: Block) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, tokens=block.tokens)
    with pytest.raises(DataError, match="not a readable block"):
        decode_block(buffer.getvalue(), "here")


def test_dtypes_grow_where_values_need_it() -> None:
    assert token_dtype(65_536) == np.uint16
    assert token_dtype(65_537) == np.uint32
    assert position_dtype(256) == np.uint8
    assert position_dtype(257) == np.uint16
    assert count_dtype(255) == np.uint8
    assert count_dtype(256) == np.uint16
    assert struct.calcsize("<H") == np.dtype(np.uint16).itemsize
