"""Text to piece ids and sentences in compiled code, straight from UTF-8 bytes.

The text is cut into words at white space. What a word is to the tokeniser (its pieces) and to the
sentence rules (some bits) depends on the word alone, so it is worked out once for each distinct
word and kept in a table; a sentence ends between two words by their bits. `data_prep.encode` holds
this against the plain way, which is slower by more than ten times and gives the same arrays.

Words are cut on at full-width marks, which end a sentence without white space after them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep import characters as ch
from data_prep.characters import Characters
from data_prep.compiled import compiled, integer
from data_prep.format import IntArray, UnsignedArray
from data_prep.sentences import ABBREVIATIONS, LOOK, MAY_END, NEW_SENTENCE, NUMBERED
from data_prep.trie import CONTINUATION_ROOT, WORD_ROOT, Trie, next_node

LONGEST_WORD = 100
"""Characters; a longer word is [UNK]."""
_CACHED_BYTES = 64  # longer words are hardly met twice
_WORD_SLOTS, _MOST_WORDS = 1 << 20, 1 << 19
_WORD_BYTES, _WORD_PIECES = 1 << 24, 1 << 22

# What a word is to the sentence rules, as the one before a blank.
_ENDS, _ENDS_WITH_DOT, _ENDS_FULL_WIDTH = 1, 2, 4
_ABBREVIATION, _MAY_END, _NUMBERED = 8, 16, 32
_INITIALS, _HAS_DOTS, _LIST_NUMBER = 64, 128, 256
# ... and as the one after it.
_BEGINS_LOWER, _ALL_OPENING, _NEW_SENTENCE, _BEGINS_WITH_DIGIT = 512, 1024, 2048, 4096
_HAS_UNKNOWN = 8192
_BITS_BEFORE = 511

_LONGEST_RULE_WORD = max(map(len, ABBREVIATIONS | MAY_END | NUMBERED | NEW_SENTENCE))
_HASH_START, _HASH_MULTIPLIER = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_MIX_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class WordTable(NamedTuple):
    """Distinct words and what was worked out about them.

    Attributes:
        slots: int32 [power of 2], word number + 1, or 0.
        entries: uint64 [4 * words], four to a word, so that a look reads one line of the cache: its
            hash; where its bytes lie in `text` and its pieces in `pieces` (low and high half); how
            many bytes and pieces it has, and its bits (from bit 0, 8, 16 on); nothing.
        unknown_uses: int64 [words], how often a word with unknown characters was met.
        text: uint8, bytes of all words.
        pieces: int32, pieces of all words.
        used: int64 [4], words, bytes and pieces in the table, and words met since it was full. The
            commonest words come first, so a full table keeps them until it has met as many others.
    """

    slots: npt.NDArray[np.int32]
    entries: npt.NDArray[np.uint64]
    unknown_uses: IntArray
    text: npt.NDArray[np.uint8]
    pieces: npt.NDArray[np.int32]
    used: IntArray


def make_word_table() -> WordTable:
    """An empty table; memory is taken as words come."""
    return WordTable(
        slots=np.zeros(_WORD_SLOTS, np.int32),
        entries=np.empty(4 * _MOST_WORDS, np.uint64),
        unknown_uses=np.empty(_MOST_WORDS, np.int64),
        text=np.empty(_WORD_BYTES, np.uint8),
        pieces=np.empty(_WORD_PIECES, np.int32),
        used=np.zeros(4, np.int64),
    )


class RuleWords(NamedTuple):
    """The words that the sentence rules know, by hash.

    Attributes:
        hashes: uint64, sorted.
        bits: int64, what each is.
    """

    hashes: npt.NDArray[np.uint64]
    bits: IntArray


def make_rule_words() -> RuleWords:
    """The words of `data_prep.sentences`; numbered ones in small letters."""
    bits: dict[str, int] = {}
    for words, bit in (
        (ABBREVIATIONS, _ABBREVIATION),
        (MAY_END, _MAY_END),
        (NUMBERED, _NUMBERED),
        (NEW_SENTENCE, _NEW_SENTENCE),
    ):
        for word in words:
            bits[word] = bits.get(word, 0) | bit
    hashes = {word: int(_hash(np.frombuffer(word.encode(), np.uint8))) for word in bits}
    ordered = sorted(bits, key=hashes.__getitem__)
    return RuleWords(
        np.array([hashes[word] for word in ordered], np.uint64),
        np.array([bits[word] for word in ordered], np.int64),
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
def missing_page(data: npt.NDArray[np.uint8], is_loaded: npt.NDArray[np.bool_]) -> int:
    """The first page of characters in `data` (UTF-8) that is not loaded, or -1."""
    place = 0
    while place < len(data):
        if data[place] < 0x80:
            place += 1
            continue
        code, place = decode(data, place)
        if not is_loaded[code >> 8]:
            return code >> 8
    return -1


@compiled
def has_flag(data: npt.NDArray[np.uint8], flags: npt.NDArray[np.uint16], flag: int) -> bool:
    """Whether a character of `data` (UTF-8) beyond ASCII has `flag`."""
    place = 0
    while place < len(data):
        if data[place] < 0x80:
            place += 1
            continue
        code, place = decode(data, place)
        if flags[code] & flag:
            return True
    return False


@compiled
def decode(data: npt.NDArray[np.uint8], place: int) -> tuple[int, int]:
    """The character at `place` of valid UTF-8, and the place after it."""
    byte = integer(data[place])
    if byte < 0x80:
        return byte, place + 1
    second = integer(data[place + 1]) & 0x3F
    if byte < 0xE0:
        return ((byte & 0x1F) << 6) | second, place + 2
    third = integer(data[place + 2]) & 0x3F
    if byte < 0xF0:
        return ((byte & 0x0F) << 12) | (second << 6) | third, place + 3
    fourth = integer(data[place + 3]) & 0x3F
    return ((byte & 0x07) << 18) | (second << 12) | (third << 6) | fourth, place + 4


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
) -> int:
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
        0, or 1 where `ids` has no room for what `data` may hold.
    """
    out.used[0] = out.used[1] = 0
    letters = np.empty(LOOK * 4 + len(data), np.int32)
    word = np.empty(LONGEST_WORD + 1, np.int64)
    for document in range(len(starts)):
        first_id, first_sentence = out.used[0], out.used[1]
        is_done = _scan_document(
            data, starts[document], ends[document], by_lines, unknown_id,
            characters, trie, rules, table, out, letters, word,
        )  # fmt: skip
        if not is_done:
            return 1
        content = key
        for piece in out.ids[first_id : out.used[0]]:
            content = hash_piece(content, np.uint64(piece))
        out.content[document] = finish_hash(content)
        out.num_sentences[document] = out.used[1] - first_sentence
    return 0


@compiled
def hash_piece(content: np.uint64, piece: np.uint64) -> np.uint64:
    """A hash with one more piece."""
    content = (content ^ piece) * _MIX_MULTIPLIER
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
        if end - place <= _CACHED_BYTES:
            number = _find_word(data, place, end - place, hashed, slots, entries, text)
        if number >= 0:
            first = integer(entries[4 * number + 1] >> np.uint64(32))
            sizes = integer(entries[4 * number + 2])
            for piece in range(first, first + ((sizes >> 8) & 0xFF)):
                ids[id_place] = pieces[piece]
                id_place += 1
            bits = sizes >> 16
            if bits & _HAS_UNKNOWN:
                unknown_uses[number] += 1
        else:
            id_place, bits = _meet_word(
                data, place, end, hashed, unknown_id, characters, trie, rules, table, unknown,
                letters, word, ids, id_place,
            )  # fmt: skip
        is_end = is_border and words > 0
        if words > 0 and not is_border and not by_lines and before:
            is_end = _is_end(before, bits, words)
            if bits & _ALL_OPENING and before & _ENDS:
                after, is_border_after = _skip_blanks(data, end, stop, flags, by_lines)
                is_end = is_end and after < stop and not is_border_after
        if is_end:
            if id_start > sentence_start:
                sentence_lengths[sentences] = id_start - sentence_start
                sentences += 1
            sentence_start, words = id_start, 0
        before, place = bits & _BITS_BEFORE, end
        words += 1
    if id_place > sentence_start:
        sentence_lengths[sentences] = id_place - sentence_start
        sentences += 1
    out.used[0], out.used[1] = id_place, sentences
    return True


@compiled
def _find_word(
    data: npt.NDArray[np.uint8],
    place: int,
    size: int,
    hashed: np.uint64,
    slots: npt.NDArray[np.int32],
    entries: npt.NDArray[np.uint64],
    text: npt.NDArray[np.uint8],
) -> int:
    """The number of a word in the table, or -1."""
    mask = integer(len(slots) - 1)
    slot = integer((hashed * _MIX_MULTIPLIER) >> np.uint64(32)) & mask
    while slots[slot]:
        number = integer(slots[slot]) - 1
        if entries[4 * number] == hashed and integer(entries[4 * number + 2]) & 0xFF == size:
            start, index = integer(entries[4 * number + 1]) & 0xFFFFFFFF, 0
            while index < size and text[start + index] == data[place + index]:
                index += 1
            if index == size:
                return number
        slot = (slot + 1) & mask
    return integer(-1)


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
    hashed = _HASH_START
    closing = 0  # 1 among full-width marks, 2 among what closes after them
    while place < stop:
        byte = data[place]
        code, after = integer(byte), place + 1
        if byte >= 0x80:
            code, after = decode(data, place)
        flag = flags[code]
        if flag & ch.SPACE:
            break
        if closing and not flag & ch.REMOVED:
            if not flag & ch.IS_CLOSING and not (closing == 1 and flag & ch.IS_FULL_WIDTH_MARK):
                break
            closing = 2 if flag & ch.IS_CLOSING else 1
        elif flag & ch.IS_FULL_WIDTH_MARK:
            closing = 1
        while place < after:
            hashed = (hashed ^ np.uint64(data[place])) * _HASH_MULTIPLIER
            place += 1
    return place, hashed


@compiled
def _is_end(before: int, after: int, words: int) -> bool:
    """Whether a sentence of `words` words ends between two words, by their bits."""
    if before & _ENDS_FULL_WIDTH:
        return True
    if not before & _ENDS or after & _BEGINS_LOWER:
        return False
    if not before & _ENDS_WITH_DOT:
        return True
    if before & _ABBREVIATION:
        return (before & _MAY_END) != 0 and (after & _NEW_SENTENCE) != 0
    if before & _NUMBERED and after & _BEGINS_WITH_DIGIT:
        return False
    if before & _INITIALS:
        return (before & _HAS_DOTS) != 0 and (after & _NEW_SENTENCE) != 0
    return not (words == 1 and before & _LIST_NUMBER)


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
    bits = _word_bits(data, place, end, characters.flags, rules, letters)
    if has_unknown:
        bits |= _HAS_UNKNOWN
    if end - place <= _CACHED_BYTES and id_place - id_start < 256:
        if _has_room(table, end - place, id_place - id_start):
            _remember(data, place, end - place, hashed, bits, table, ids, id_start, id_place)
        else:
            table.used[3] += 1
        if table.used[3] > len(table.unknown_uses):
            settle_unknown(characters, trie, table, unknown)
            table.slots[:] = 0
            table.used[:] = 0
    if has_unknown:
        count_unknown(data, place, end, characters, trie, unknown, 1)
    return id_place, bits


@compiled
def _has_room(table: WordTable, size: int, count: int) -> bool:
    """Whether a word of `size` bytes and `count` pieces fits into the table."""
    number, text_start, pieces_start = table.used[0], table.used[1], table.used[2]
    return bool(
        number < len(table.unknown_uses)
        and text_start + size <= len(table.text)
        and pieces_start + count <= len(table.pieces)
    )


@compiled
def _remember(
    data: npt.NDArray[np.uint8],
    place: int,
    size: int,
    hashed: np.uint64,
    bits: int,
    table: WordTable,
    ids: UnsignedArray,
    id_start: int,
    id_end: int,
) -> None:
    """Puts a word into the table."""
    number, text_start, pieces_start = table.used[0], table.used[1], table.used[2]
    slots, text, pieces = table.slots, table.text, table.pieces
    mask = integer(len(slots) - 1)
    slot = integer((hashed * _MIX_MULTIPLIER) >> np.uint64(32)) & mask
    while slots[slot]:
        slot = (slot + 1) & mask
    slots[slot] = number + 1
    table.unknown_uses[number] = 0
    entries = table.entries
    entries[4 * number] = hashed
    entries[4 * number + 1] = np.uint64(text_start | (pieces_start << 32))
    entries[4 * number + 2] = np.uint64(size | ((id_end - id_start) << 8) | (bits << 16))
    for index in range(size):
        text[text_start + index] = data[place + index]
    for index in range(id_end - id_start):
        pieces[pieces_start + index] = ids[id_start + index]
    table.used[0], table.used[1] = number + 1, text_start + size
    table.used[2] = pieces_start + id_end - id_start


@compiled
def settle_unknown(characters: Characters, trie: Trie, table: WordTable, unknown: IntArray) -> None:
    """Counts the unknown characters of the words in the table, as often as each was met."""
    for number in range(table.used[0]):
        uses = table.unknown_uses[number]
        sizes = integer(table.entries[4 * number + 2])
        if (sizes >> 16) & _HAS_UNKNOWN and uses:
            start = integer(table.entries[4 * number + 1]) & 0xFFFFFFFF
            end = start + (sizes & 0xFF)
            count_unknown(table.text, start, end, characters, trie, unknown, uses)
            table.unknown_uses[number] = 0


@compiled
def count_unknown(
    data: npt.NDArray[np.uint8],
    place: int,
    end: int,
    characters: Characters,
    trie: Trie,
    unknown: IntArray,
    uses: int,
) -> None:
    """Adds `uses` for every normalised character of a word that no piece begins with."""
    while place < end:
        code, place = decode(data, place)
        if characters.flags[code] & ch.REMOVED:
            continue
        first = integer(characters.start[code])
        for index in range(first, first + integer(characters.size[code])):
            kind = integer(characters.pool[index])
            character = kind & (ch.PUNCTUATION - 1)
            is_known = (
                next_node(trie.slots, WORD_ROOT, character) >= 0
                or next_node(trie.slots, CONTINUATION_ROOT, character) >= 0
            )
            if not kind & ch.BREAK and not is_known:
                unknown[character] += uses


@compiled
def tokenise_word(
    data: npt.NDArray[np.uint8],
    place: int,
    end: int,
    unknown_id: int,
    characters: Characters,
    trie: Trie,
    word: IntArray,
    ids: UnsignedArray,
    id_place: int,
) -> tuple[int, bool]:
    """Writes the pieces of what lies between two blanks to `ids` from `id_place` on.

    Returns:
        The place after them, and whether one is [UNK].
    """
    flags, starts, sizes, pool = (
        characters.flags,
        characters.start,
        characters.size,
        characters.pool,
    )
    size, has_unknown, is_unknown = 0, False, False
    while place < end:
        code, place = decode(data, place)
        if flags[code] & ch.REMOVED:
            continue
        first = integer(starts[code])
        for index in range(first, first + integer(sizes[code])):
            kind = integer(pool[index])
            if kind >= ch.PUNCTUATION:
                id_place, is_unknown = _write_pieces(word, size, unknown_id, trie, ids, id_place)
                has_unknown |= is_unknown
                size = 0
                if kind & ch.PUNCTUATION:
                    word[0] = kind & (ch.PUNCTUATION - 1)
                    id_place, is_unknown = _write_pieces(word, 1, unknown_id, trie, ids, id_place)
                    has_unknown |= is_unknown
            else:
                word[min(size, LONGEST_WORD)] = kind
                size += 1
    id_place, is_unknown = _write_pieces(word, size, unknown_id, trie, ids, id_place)
    return id_place, has_unknown | is_unknown


@compiled
def _write_pieces(
    word: IntArray, size: int, unknown_id: int, trie: Trie, ids: UnsignedArray, id_place: int
) -> tuple[int, bool]:
    """Writes the pieces of a word, the longest first, or [UNK].

    Returns:
        The place after them, and whether it is [UNK].
    """
    slots, pieces = trie.slots, trie.pieces
    start, root, before = 0, WORD_ROOT, id_place
    while start < size <= LONGEST_WORD:
        node, piece, after = root, -1, start
        for place in range(start, size):
            node = next_node(slots, node, word[place])
            if node < 0:
                break
            if pieces[node] >= 0:
                piece, after = integer(pieces[node]), place + 1
        if piece < 0:
            break
        ids[id_place] = piece
        id_place += 1
        start, root = after, CONTINUATION_ROOT
    if start < size:
        ids[before] = unknown_id
        return before + 1, True
    return id_place, False


@compiled
def _word_bits(
    data: npt.NDArray[np.uint8],
    place: int,
    end: int,
    flags: npt.NDArray[np.uint16],
    rules: RuleWords,
    letters: npt.NDArray[np.int32],
) -> int:
    """What a word is to the sentence rules; see `data_prep.sentences`."""
    size = 0
    while place < end:
        code, place = decode(data, place)
        if not flags[code] & ch.REMOVED:
            letters[size] = code
            size += 1
    return _bits_before(letters, size, flags, rules) | _bits_after(letters, size, flags, rules)


@compiled
def _bits_before(
    letters: npt.NDArray[np.int32],
    size: int,
    flags: npt.NDArray[np.uint16],
    rules: RuleWords,
) -> int:
    """Bits of a word as the one before a blank."""
    mark_end = size
    while mark_end and flags[letters[mark_end - 1]] & ch.IS_CLOSING:
        mark_end -= 1
    if mark_end and flags[letters[mark_end - 1]] & ch.IS_FULL_WIDTH_MARK:
        return _ENDS_FULL_WIDTH
    mark = mark_end
    while mark and flags[letters[mark - 1]] & ch.IS_MARK:
        mark -= 1
    if mark == mark_end:
        return 0
    if mark_end - mark > 1 or letters[mark] != 46:
        return _ENDS
    first = mark
    while first and mark - first < LOOK and not flags[letters[first - 1]] & ch.IS_BORDER:
        first -= 1
    bits = _ENDS | _ENDS_WITH_DOT
    bits |= _rule_bits(letters[first:mark], rules, False) & (_ABBREVIATION | _MAY_END)
    bits |= _rule_bits(letters[first:mark], rules, True) & _NUMBERED
    is_initials = (mark - first) % 2 == 1 and not (mark - first == 1 and letters[first] == 73)
    is_number = mark > first
    for index in range(first, mark):
        flag = flags[letters[index]]
        is_initials &= (
            flag & ch.IS_INITIAL != 0 if (index - first) % 2 == 0 else letters[index] == 46
        )
        is_number &= flag & ch.IS_DIGIT != 0
    if is_initials:
        bits |= _INITIALS | (_HAS_DOTS if mark - first > 1 else 0)
    if is_number and first == 0:
        bits |= _LIST_NUMBER
    return bits


@compiled
def _bits_after(
    letters: npt.NDArray[np.int32],
    size: int,
    flags: npt.NDArray[np.uint16],
    rules: RuleWords,
) -> int:
    """Bits of a word as the one after a blank."""
    first = 0
    while first < size and flags[letters[first]] & ch.IS_OPENING:
        first += 1
    if first == size:
        return _ALL_OPENING
    bits = _BEGINS_LOWER if flags[letters[first]] & ch.IS_LOWER else 0
    last = min(size, LOOK)
    while last > first and flags[letters[last - 1]] & ch.IS_OPENING:
        last -= 1
    if first < last:
        bits |= _rule_bits(letters[first:last], rules, False) & _NEW_SENTENCE
        bits |= _BEGINS_WITH_DIGIT if flags[letters[first]] & ch.IS_DIGIT else 0
    return bits


@compiled
def _rule_bits(letters: npt.NDArray[np.int32], rules: RuleWords, is_lowered: bool) -> int:
    """What the rules know about a word of ASCII letters."""
    if len(letters) > _LONGEST_RULE_WORD:
        return 0
    hashed = _HASH_START
    for letter in letters:
        if letter >= 0x80:
            return 0
        code = letter + 32 if is_lowered and 65 <= letter <= 90 else letter
        hashed = (hashed ^ np.uint64(code)) * _HASH_MULTIPLIER
    place = np.searchsorted(rules.hashes, hashed)
    if place < len(rules.hashes) and rules.hashes[place] == hashed:
        return integer(rules.bits[place])
    return 0


@compiled
def _hash(data: npt.NDArray[np.uint8]) -> np.uint64:
    """The hash of a word's bytes."""
    hashed = _HASH_START
    for byte in data:
        hashed = (hashed ^ np.uint64(byte)) * _HASH_MULTIPLIER
    return hashed
