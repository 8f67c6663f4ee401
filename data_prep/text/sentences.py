"""Sentences of a document by rules, with nothing to download.

A sentence ends at `.`, `!`, `?` or an ellipsis, with any closing quotes or brackets, where white
space follows and the next word does not begin with a small letter; a full stop after an
abbreviation, an initial or a list number does not end one. The marks of other scripts end one as
well: all that Unicode calls sentence terminals, and Tibetan's shad. Those of scripts that write no
blanks between words, or none after the mark, end one whatever follows. Thai and Lao have no mark.

Source: Unicode 17, PropList.txt (Sentence_Terminal) and SentenceBreakProperty.txt (STerm, ATerm).
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable
from functools import lru_cache

from data_prep.contract.errors import UsageError
from data_prep.text.clean import clean_document, clean_lines, clean_parts

OWN_RULES = ("rules", "lines")
PACKAGES = ("blingfire", "nupunkt", "sentencex")
"""Packages that can cut paragraphs instead of the rules; see the extra `sentences`."""
_OLDEST_PYTHON = {"nupunkt": (3, 11)}
"""The oldest Python of a package that does not take all that bert_ds takes."""


def _characters(codes: str) -> str:
    """Return the characters of hexadecimal codes and ranges such as "0F0D-0F11"."""
    ranges = [[int(end, 16) for end in part.split("-")] for part in codes.split()]
    return "".join(chr(code) for ends in ranges for code in range(ends[0], ends[-1] + 1))


MARKS = ".\u2026" + _characters(
    """
    0021 003F 0589 061D-061F 06D4 0700-0702 07F9 0837 0839 083D-083E 0964-0965 166E 1735-1736 1803
    1809 1944-1945 1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049 2CF9-2CFB 2E2E 2E3C 2E53-2E54 2E60-2E61
    A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F AA5D-AA5F AAF0-AAF1 ABEB 10A56-10A57
    10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6 111CD 111DE-111DF
    11238-11239 1123B-1123C 112A9 113D4-113D5 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642
    1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F
    16AF5 16B37-16B38 16B44 16D6E-16D6F 16E98 1BC9F 1DA88
    """
)
"""What ends a sentence where white space follows."""
FULL_WIDTH_STOPS = "\uff0e\ufe52"
"""Full stops that are decimal points too: between two digits they end no sentence."""
FREE_MARKS = FULL_WIDTH_STOPS + _characters(
    """
    0F0D-0F11 104A-104B 1362 1367-1368 17D4-17D5 1AA8-1AAB 1B4E-1B4F 1B5A-1B5B 1B5E-1B5F 1B7D-1B7F
    3002 A9C8-A9C9 FE12 FE15-FE16 FE56-FE57 FF01 FF1F FF61
    """
)
"""What ends one whatever follows: in Tibetan, Burmese, Ethiopic, Khmer, Tai Tham, Balinese,
Chinese, Japanese and Javanese."""
CLOSING = "\"')]}\u2019\u201d\u00bb\u300d\u300f\uff09\uff63"
OPENING = "\"'([{\u2018\u201c\u00ab\u00bf\u00a1"
LOOK = 40
"""Characters looked at to the left and right of a mark."""

_CLOSINGS, _OPENINGS = f"[{re.escape(CLOSING)}]*", re.escape(OPENING)
_DIGIT = "[0-9\uff10-\uff19]"
_FREE = rf"(?:(?!(?<={_DIGIT})[{FULL_WIDTH_STOPS}]{_DIGIT})[{FREE_MARKS}])"
# Marks that stand alone after a blank, as in Tibetan, belong to the sentence before them.
_END = re.compile(
    rf"(?P<mark>[{MARKS}]+){_CLOSINGS}\s(?=[{_OPENINGS}]*(?P<next>[^{_OPENINGS}]))"
    rf"|{_FREE}+(?!{_FREE}){_CLOSINGS}(?![{re.escape(CLOSING)}])(?!\s?{_FREE})(?=.)"
)
_LAST_WORD = re.compile(r"[^\s(\[\"'\u201c\u2018]*$")
ABBREVIATIONS = frozenset(
    """
    approx cf ed eds est etc viz vs
    Adm Al Apr Assn Aug Ave Brig Bros Capt Cmdr Co Col Corp Cpl Dec Dept Dr Esq Feb Fri Gen Gov Hon
    Inc Jan Jr Jul Jun Lt Ltd Maj Mar Messrs Mon Mr Mrs Ms Mt Nov Oct Prof Pres Pvt Rep Reps Rev Sat
    Sen Sens Sep Sept Sgt Sr St Ste Sun Supt Thu Tue Univ Wed
    """.split()
)
NUMBERED = frozenset("art ch fig figs no nos op p pp sec vol vols".split())
MAY_END = frozenset("Al Bros Co Corp Esq Inc Jr Ltd Sr etc".split())
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
NEW_SENTENCE = frozenset(
    """
    A An And As At But By For From He Her His How I If In It Its My No Not Now Of On Our She So That
    The Their Then There These They This Those To We What When Where Which While Who Why With You
    """.split()
)


def check_rule(rule: str) -> None:
    """Raise UsageError for an unknown way to cut sentences, or a package that is not installed."""
    package, _, language = rule.partition(":")
    if rule in OWN_RULES or (package in PACKAGES and (package == "sentencex") == bool(language)):
        if package in PACKAGES:
            splitter(rule)
        return
    raise UsageError(
        f"--sentences {rule}: must be rules, lines, blingfire, nupunkt, or sentencex with a "
        "language, such as sentencex:ko."
    )


def split_sentences(text: str, rule: str = "rules") -> list[str]:
    """Return the sentences of a document, cleaned.

    Args:
        text: the document.
        rule: "rules" as this module describes; "lines" takes every line as a sentence; else the
            package that cuts paragraphs, "sentencex" with a language as in "sentencex:ko".

    Returns:
        Sentences that hold more than white space.
    """
    if rule == "lines":
        return clean_lines(text)
    split = split_paragraph if rule == "rules" else splitter(rule)
    return [sentence for part in clean_document(text) for sentence in split(part)]


@lru_cache(maxsize=1)
def splitter(rule: str) -> Callable[[str], list[str]]:
    """Return the function of another package that cuts a paragraph; its sentences are cleaned.

    Raises:
        UsageError: the package is not installed.
    """
    package, _, language = rule.partition(":")
    try:
        cut = _MAKERS[package](language)
    except ImportError as err:
        raise UsageError(f"--sentences {package} needs {_how_to_install(package, err)}.") from err
    return lambda paragraph: clean_parts(cut(paragraph))


def _how_to_install(package: str, err: ImportError) -> str:
    """Return what a missing package needs, for an error."""
    oldest = _OLDEST_PYTHON.get(package, (3, 0))
    if sys.version_info[:2] < oldest:
        return (
            f"Python {oldest[0]}.{oldest[1]} or later, as the package {package} does, and this is "
            f"Python {platform.python_version()}: make an environment with a later Python, or take "
            "--sentences rules"
        )
    return f"the package {package} ({err}): pip install {package}, or take --sentences rules"


def _blingfire(_: str) -> Callable[[str], list[str]]:
    """Return Microsoft's BlingFire: a finite automaton, several languages."""
    from blingfire import text_to_sentences

    return lambda paragraph: str(text_to_sentences(paragraph)).split("\n")


def _nupunkt(_: str) -> Callable[[str], list[str]]:
    """Return nupunkt: Punkt trained on legal text, English."""
    from nupunkt import sent_tokenize

    return lambda paragraph: list(sent_tokenize(paragraph))


def _sentencex(language: str) -> Callable[[str], list[str]]:
    """Return Wikimedia's sentencex, with its rules for many languages."""
    from sentencex import segment

    return lambda paragraph: list(segment(language, paragraph))


_MAKERS = {"blingfire": _blingfire, "nupunkt": _nupunkt, "sentencex": _sentencex}


def split_paragraph(paragraph: str) -> list[str]:
    """Return the sentences of one cleaned paragraph; joined they hold the same words."""
    sentences, start = [], 0
    for match in _END.finditer(paragraph):
        if match["mark"] is None or _ends_sentence(paragraph, start, match):
            sentences.append(paragraph[start : match.end()].strip())
            start = match.end() + paragraph.startswith(" ", match.end())
    rest = paragraph[start:].strip()
    return [*sentences, rest] if rest else sentences


def _ends_sentence(paragraph: str, start: int, match: re.Match[str]) -> bool:
    """Return whether the mark in `match` ends the sentence that begins at `start`."""
    if match["next"].islower():
        return False
    if match["mark"] != ".":
        return True
    word = _last_word(paragraph, start, match.start())
    following = paragraph[match.end() : match.end() + LOOK].split(" ", 1)[0].strip(OPENING)
    if word in ABBREVIATIONS:
        return word in MAY_END and following in NEW_SENTENCE
    if word.lower() in NUMBERED and following[:1].isdigit():
        return False
    if _INITIALS.fullmatch(word) and word != "I":
        return "." in word and following in NEW_SENTENCE
    return not (word.isdigit() and match.start() - start == len(word))


def _last_word(paragraph: str, start: int, end: int) -> str:
    """Return the word that ends at `end`, without opening quotes."""
    found = _LAST_WORD.search(paragraph, max(start, end - LOOK), end)
    return found[0] if found else ""


def is_initial(character: str) -> bool:
    """Return whether the character can be an initial, as "J" before a full stop."""
    return _INITIALS.fullmatch(character) is not None


def is_word_border(character: str) -> bool:
    """Return whether the word before a full stop begins after the character."""
    return _LAST_WORD.fullmatch(character) is None
