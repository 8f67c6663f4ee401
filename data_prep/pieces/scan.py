"""Text to piece ids and sentences in compiled code, straight from UTF-8 bytes.

The text is cut into words at white space. What a word is to the tokeniser (its pieces) and to the
sentence rules (some bits) depends on the word alone, so it is worked out once for each distinct
word and kept in a table; a sentence ends between two words by their bits.
`data_prep.pieces.encode` holds this against the plain way, which is slower by more than ten times
and gives the same arrays.

Words are cut after the marks that end a sentence without white space after them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled, integer
from data_prep.contract.format import IntArray, UnsignedArray
from data_prep.pieces import characters as ch
from data_prep.pieces.characters import Characters, decode
from data_prep.pieces.trie import Trie
from data_prep.pieces.word_rules import (
    ALL_OPENING,
    BITS_BEFORE,
    ENDS,
    HAS_UNKNOWN,
    HASH_MULTIPLIER,
    HASH_START,
    RuleWords,
    is_end,
    word_bits,
)
from data_prep.pieces.words import (
    CACHED_BYTES,
    LONGEST_WORD,
    MIX_MULTIPLIER,
    WordTable,
    count_unknown,
    find_word,
    has_room,
    remember,
    settle_unknown,
    tokenise_word,
)


class Scanned(NamedTuple):
    """Room for what `scan` finds.

    Attributes:
        ids: piece ids of all documents.
        sentence_lengths: uint32, tokens of each sentence, none of them 0.
        num_sentences: int64 [documents].
        content: uint64 [documents], hash of the ids; equal texts have equal hashes.
        used: int64 [2], how much of `ids` and `sentence_lengths` is filled.
        unknown: int64 [0x110000], how often each character was met that no piece begins with.
    """

    ids: UnsignedArray
    sentence_lengths: npt.NDArray[np.uint32]
    num_sentences: IntArray
    content: npt.NDArray[np.uint64]
    used: IntArray
    unknown: IntArray


@compiled
def scan(
    data: npt.NDArray[np.uint8],
    starts: IntArray,
    ends: IntArray,
    by_lines: bool,
    key: np.uint64,
    unknown_id: int,
    characters: Characters,
    trie: Trie,
    rules: RuleWords,
    table: WordTable,
    out: Scanned,
) -> bool:
    """Documents of `data` to sentences of piece ids.

    Args:
        data: valid UTF-8 whose characters are loaded, none of them irregular.
        starts: int64 [documents], first byte of each.
        ends: int64 [documents], the byte after each.
        by_lines: lines are sentences; otherwise the rules decide.
        key: of the content hashes.
        unknown_id: id of [UNK].
        characters: what characters are.
        trie: the vocabulary.
        rules: words that the rules know.
        table: distinct words; more come in.
        out: gets the result.

    Returns:
        Whether `ids` had room for what `data` may hold; if not, `out` is incomplete.
    """
    out.used[0] = out.used[1] = 0
    letters = np.empty(len(data) + 1, np.int32)
    word = np.empty(LONGEST_WORD + 1, np.int64)
    for document in range(len(starts)):
        first_id, first_sentence = out.used[0], out.used[1]
        is_done = _scan_document(
            data, starts[document], ends[document], by_lines, unknown_id,
            characters, trie, rules, table, out, letters, word,
        )  # fmt: skip
        if not is_done:
            return False
        content = key
        for piece in out.ids[first_id : out.used[0]]:
            content = hash_piece(content, np.uint64(piece))
        out.content[document] = finish_hash(content)
        out.num_sentences[document] = out.used[1] - first_sentence
    return True


@compiled
def hash_piece(content: np.uint64, piece: np.uint64) -> np.uint64:
    """A hash with one more piece."""
    content = (content ^ piece) * MIX_MULTIPLIER
    return content ^ (content >> np.uint64(29))


@compiled
def finish_hash(content: np.uint64) -> np.uint64:
    """Mixes a hash, so that its high bits depend on all of it."""
    content ^= content >> np.uint64(32)
    content *= np.uint64(0xD6E8FEB86659FD93)
    return content ^ (content >> np.uint64(32))


@compiled
def _scan_document(
    data: npt.NDArray[np.uint8],
    place: int,
    stop: int,
    by_lines: bool,
    unknown_id: int,
    characters: Characters,
    trie: Trie,
    rules: RuleWords,
    table: WordTable,
    out: Scanned,
    letters: npt.NDArray[np.int32],
    word: IntArray,
) -> bool:
    """Adds the sentences of one document to `out`; False where there is no room."""
    # Fields are looked up once: each look takes and gives back a reference, an atomic operation.
    flags, ids, sentence_lengths = characters.flags, out.ids, out.sentence_lengths
    slots, entries, text, pieces = table.slots, table.entries, table.text, table.pieces
    unknown_uses, unknown = table.unknown_uses, out.unknown
    id_place, sentences = out.used[0], out.used[1]
    before = integer(0)  # bits of the word before
    words = 0  # of the sentence so far
    sentence_start = id_place
    while True:
        place, is_border = _skip_blanks(data, place, stop, flags, by_lines)
        if place >= stop:
            break
        end, hashed = _find_word_end(data, place, stop, flags)
        if len(ids) - id_place < 4 * (end - place) + 16:
            return False
        id_start = id_place
        number = integer(-1)
        if end - place <= CACHED_BYTES:
            number = find_word(data, place, end - place, hashed, slots, entries, text)
        if number >= 0:
            first = integer(entries[4 * number + 1] >> np.uint64(32))
            sizes = integer(entries[4 * number + 2])
            for piece in range(first, first + ((sizes >> 8) & 0xFF)):
                ids[id_place] = pieces[piece]
                id_place += 1
            bits = sizes >> 16
            if bits & HAS_UNKNOWN:
                unknown_uses[number] += 1
        else:
            id_place, bits = _meet_word(
                data, place, end, hashed, unknown_id, characters, trie, rules, table, unknown,
                letters, word, ids, id_place,
            )  # fmt: skip
        ends = is_border and words > 0
        if words > 0 and not is_border and not by_lines and before:
            ends = is_end(before, bits, words)
            if bits & ALL_OPENING and before & ENDS:
                after, is_border_after = _skip_blanks(data, end, stop, flags, by_lines)
                ends = ends and after < stop and not is_border_after
        if ends:
            if id_start > sentence_start:
                sentence_lengths[sentences] = id_start - sentence_start
                sentences += 1
            sentence_start, words = id_start, 0
        before, place = bits & BITS_BEFORE, end
        words += 1
    if id_place > sentence_start:
        sentence_lengths[sentences] = id_place - sentence_start
        sentences += 1
    out.used[0], out.used[1] = id_place, sentences
    return True


@compiled
def _skip_blanks(
    data: npt.NDArray[np.uint8],
    place: int,
    stop: int,
    flags: npt.NDArray[np.uint16],
    by_lines: bool,
) -> tuple[int, bool]:
    """The begin of the next word, and whether a sentence cannot reach across to it.

    That is at a blank line, or at any line end where lines are sentences.
    """
    newlines, is_border = 0, False
    while place < stop:
        code, after = decode(data, place)
        flag = flags[code]
        if flag & ch.NEWLINE:
            newlines += 1
            is_border |= by_lines or newlines == 2
            if code == 13 and after < stop and data[after] == 10:
                after += 1
        elif not flag & ch.BLANK:
            if not flag & ch.REMOVED:
                return place, is_border
            newlines = 0
        place = after
    return place, is_border


@compiled
def _find_word_end(
    data: npt.NDArray[np.uint8], place: int, stop: int, flags: npt.NDArray[np.uint16]
) -> tuple[int, np.uint64]:
    """The byte after the word that begins at `place`, and the hash of its bytes."""
    hashed = HASH_START
    closing = 0  # 1 among marks that need no blank, 2 among what closes after them
    is_after_digit = False
    while place < stop:
        byte = data[place]
        code, after = integer(byte), place + 1
        if byte >= 0x80:
            code, after = decode(data, place)
        flag = flags[code]
        if flag & ch.SPACE:
            break
        is_mark = flag & ch.IS_FREE_MARK != 0
        if is_mark and is_after_digit and ch.is_stop_of_digits(code):
            is_mark = not _is_digit_next(data, after, stop, flags)
        if closing and not flag & ch.REMOVED:
            if not flag & ch.IS_CLOSING and not (closing == 1 and is_mark):
                break
            closing = 2 if flag & ch.IS_CLOSING else 1
        elif is_mark:
            closing = 1
        if not flag & ch.REMOVED:
            is_after_digit = ch.is_western_digit(code)
        while place < after:
            hashed = (hashed ^ np.uint64(data[place])) * HASH_MULTIPLIER
            place += 1
    return place, hashed


@compiled
def _is_digit_next(
    data: npt.NDArray[np.uint8], place: int, stop: int, flags: npt.NDArray[np.uint16]
) -> bool:
    """Whether the first character from `place` on that cleaning leaves in is a digit."""
    while place < stop:
        code, place = decode(data, place)
        if not flags[code] & ch.REMOVED:
            return ch.is_western_digit(code)
    return False


@compiled
def _meet_word(
    data: npt.NDArray[np.uint8],
    place: int,
    end: int,
    hashed: np.uint64,
    unknown_id: int,
    characters: Characters,
    trie: Trie,
    rules: RuleWords,
    table: WordTable,
    unknown: IntArray,
    letters: npt.NDArray[np.int32],
    word: IntArray,
    ids: UnsignedArray,
    id_start: int,
) -> tuple[int, int]:
    """Writes the pieces of a word that is not in the table, and puts it there.

    Returns:
        The place after the pieces, and the bits of the word.
    """
    id_place, has_unknown = tokenise_word(
        data, place, end, unknown_id, characters, trie, word, ids, id_start
    )
    bits = word_bits(data, place, end, characters.flags, rules, letters)
    if has_unknown:
        bits |= HAS_UNKNOWN
    if end - place <= CACHED_BYTES and id_place - id_start < 256:
        if has_room(table, end - place, id_place - id_start):
            remember(data, place, end - place, hashed, bits, table, ids, id_start, id_place)
        else:
            table.used[3] += 1
        if table.used[3] > len(table.unknown_uses):
            settle_unknown(characters, trie, table, unknown)
            table.slots[:] = 0
            table.used[:] = 0
    if has_unknown:
        count_unknown(data, place, end, characters, trie, unknown, 1)
    return id_place, bits
