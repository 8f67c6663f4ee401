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
    REFUSED,
    WordTable,
    count_unknown,
    entry_bits,
    entry_num_pieces,
    entry_pieces,
    find_word,
    has_room,
    remember,
    settle_unknown,
    tokenise_word,
)

_LINE_FEED, _CARRIAGE_RETURN = 10, 13
# Where a word that needs no blank behind it may end: further marks may follow, then what
# closes after them (quotation marks, brackets), and ends before anything else.
_IN_WORD, _IN_MARKS, _IN_CLOSING = 0, 1, 2


class Tables(NamedTuple):
    """All that `scan` looks up."""

    characters: Characters
    """What each character is."""
    trie: Trie
    """The vocabulary."""
    rules: RuleWords
    """Words that the sentence rules know."""
    words: WordTable
    """Distinct words of the text so far; more come in."""


class ScanSettings(NamedTuple):
    """What decides the result of `scan` besides text and tables."""

    by_lines: bool
    """Whether lines are sentences; otherwise the rules decide."""
    content_key: np.uint64
    """Key of the content hashes."""
    unknown_id: int
    """Id of [UNK]."""


class Scanned(NamedTuple):
    """Room for what `scan` finds."""

    ids: UnsignedArray
    """Piece ids of all documents."""
    sentence_lengths: npt.NDArray[np.uint32]
    """uint32, tokens of each sentence, none of them 0."""
    num_sentences: IntArray
    """int64 [documents]."""
    content: npt.NDArray[np.uint64]
    """uint64 [documents], hash of the ids; equal texts have equal hashes."""
    used: IntArray
    """int64 [2], how much of `ids` and `sentence_lengths` is filled."""
    unknown: IntArray
    """int64 [0x110000], how often the text has each character that no piece begins with."""


class _Scratch(NamedTuple):
    """Room that is used for one word after the other."""

    letters: npt.NDArray[np.int32]
    """The characters of a word."""
    part: IntArray
    """The normalised characters of a part of a word."""


@compiled
def scan(
    data: npt.NDArray[np.uint8],
    starts: IntArray,
    ends: IntArray,
    settings: ScanSettings,
    tables: Tables,
    out: Scanned,
) -> bool:
    """Turn documents of `data` into sentences of piece ids.

    Args:
        data: valid UTF-8 whose characters are loaded, none of them irregular.
        starts: int64 [documents], first byte of each.
        ends: int64 [documents], the byte after each.
        settings: how text is cut, and ids.
        tables: what is known of characters, pieces and words.
        out: gets the result.

    Returns:
        Whether `ids` had room for what `data` may hold; if not, `out` is incomplete.
    """
    out.used[0] = out.used[1] = 0
    scratch = _Scratch(np.empty(len(data) + 1, np.int32), np.empty(LONGEST_WORD + 1, np.int64))
    for document in range(len(starts)):
        first_id, first_sentence = out.used[0], out.used[1]
        has_room = _scan_document(
            data, starts[document], ends[document], settings, tables, out, scratch
        )
        if not has_room:
            return False
        content = settings.content_key
        for piece in out.ids[first_id : out.used[0]]:
            content = hash_piece(content, np.uint64(piece))
        out.content[document] = finish_hash(content)
        out.num_sentences[document] = out.used[1] - first_sentence
    return True


@compiled
def hash_piece(content: np.uint64, piece: np.uint64) -> np.uint64:
    """Return a hash with one more piece."""
    content = (content ^ piece) * MIX_MULTIPLIER
    return content ^ (content >> np.uint64(29))


@compiled
def finish_hash(content: np.uint64) -> np.uint64:
    """Mix a hash, so that its high bits depend on all of it."""
    content ^= content >> np.uint64(32)
    content *= np.uint64(0xD6E8FEB86659FD93)
    return content ^ (content >> np.uint64(32))


# How a document is scanned. One turn of the loop takes one word. Between two turns the state is
#   place           the byte behind the last word
#   id_place        where the next piece goes; all words so far have written theirs
#   words           words of the sentence so far, 0 at the start of the document
#   sentence_start  where the pieces of this sentence begin
#   before          bits of the last word, by which it may end a sentence
# A word first writes its pieces. Only then is it known whether a sentence ended in front of
# it, because that depends on its own bits, too: so a sentence is closed at `id_start`, where
# the pieces of the word begin, and the word is the first of the next one. Words without pieces
# (accents alone, say) count as words, but a sentence without pieces is not written.
@compiled
def _scan_document(
    data: npt.NDArray[np.uint8],
    place: int,
    stop: int,
    settings: ScanSettings,
    tables: Tables,
    out: Scanned,
    scratch: _Scratch,
) -> bool:
    """Add the sentences of bytes [place, stop) to `out`; return False where `out` is full."""
    # Fields are looked up once: each look takes and gives back a reference, an atomic operation.
    flags, by_lines = tables.characters.flags, settings.by_lines
    table = tables.words
    slots, entries, text, pieces = table.slots, table.entries, table.text, table.pieces
    unknown_uses, ids, sentence_lengths = table.unknown_uses, out.ids, out.sentence_lengths
    id_place, sentences = out.used[0], out.used[1]
    sentence_start, words, before = id_place, 0, integer(0)
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
            first = entry_pieces(entries, number)
            for piece in range(first, first + entry_num_pieces(entries, number)):
                ids[id_place] = pieces[piece]
                id_place += 1
            bits = entry_bits(entries, number)
            if bits & HAS_UNKNOWN:
                unknown_uses[number] += 1
        else:
            id_place, bits = _add_word(
                data, place, end, hashed, settings.unknown_id, tables, out, scratch, id_place
            )
        ends = is_border and words > 0
        if words > 0 and not is_border and not by_lines and before:
            ends = is_end(before, bits, words)
            if bits & ALL_OPENING and before & ENDS:
                # Opening marks alone belong to the word after them, if one follows in this block.
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
    """Return the start of the next word, and whether a border of sentences lies before it.

    A border is a blank line, or any line end where lines are sentences.
    """
    newlines, is_border = 0, False
    while place < stop:
        code, after = decode(data, place)
        flag = flags[code]
        if flag & ch.NEWLINE:
            newlines += 1
            is_border |= by_lines or newlines == 2
            if code == _CARRIAGE_RETURN and after < stop and data[after] == _LINE_FEED:
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
    """Return the byte after the word that begins at `place`, and the hash of its bytes."""
    hashed = HASH_START
    closing = _IN_WORD
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
            if not flag & ch.IS_CLOSING and not (closing == _IN_MARKS and is_mark):
                break
            closing = _IN_CLOSING if flag & ch.IS_CLOSING else _IN_MARKS
        elif is_mark:
            closing = _IN_MARKS
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
    """Return whether the first character from `place` on that cleaning leaves in is a digit."""
    while place < stop:
        code, place = decode(data, place)
        if not flags[code] & ch.REMOVED:
            return ch.is_western_digit(code)
    return False


@compiled
def _add_word(
    data: npt.NDArray[np.uint8],
    place: int,
    end: int,
    hashed: np.uint64,
    unknown_id: int,
    tables: Tables,
    out: Scanned,
    scratch: _Scratch,
    id_start: int,
) -> tuple[int, int]:
    """Write the pieces of a word that is not in the table, and put it there.

    Returns:
        The place after the pieces, and the bits of the word.
    """
    characters, trie, table = tables.characters, tables.trie, tables.words
    id_place, has_unknown = tokenise_word(
        data, place, end, unknown_id, characters, trie, scratch.part, out.ids, id_start
    )
    bits = word_bits(data, place, end, characters.flags, tables.rules, scratch.letters)
    if has_unknown:
        bits |= HAS_UNKNOWN
    if end - place <= CACHED_BYTES and id_place - id_start < 256:
        if has_room(table, end - place, id_place - id_start):
            remember(data, place, end - place, hashed, bits, table, out.ids, id_start, id_place)
        else:
            table.used[REFUSED] += 1
        if table.used[REFUSED] > len(table.unknown_uses):
            settle_unknown(characters, trie, table, out.unknown)
            table.slots[:] = 0
            table.used[:] = 0
    if has_unknown:
        count_unknown(data, place, end, characters, trie, out.unknown, 1)
    return id_place, bits
