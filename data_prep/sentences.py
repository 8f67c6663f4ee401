"""Sentences of a document by rules, with nothing to download.

A sentence ends at `.`, `!`, `?` or an ellipsis, with any closing quotes or brackets, where white
space follows and the next word does not begin with a small letter; a full stop after an
abbreviation, an initial or a list number does not end one. Full-width marks of Chinese and Japanese
and the marks of Hindi, Urdu and Arabic end one as well, the full-width ones without white space.
"""

from __future__ import annotations

import re
from typing import Literal

from data_prep.clean import clean_document, clean_lines

SentenceRule = Literal["rules", "lines"]

_CLOSING = "\"')\\]}\u2019\u201d\u00bb\u300d\u300f\uff09"
_OPENING = "\"'([{\u2018\u201c\u00ab\u00bf\u00a1"
_END = re.compile(
    rf"(?P<mark>[.!?\u2026\u0964\u061f\u06d4]+)[{_CLOSING}]*\s(?=[{_OPENING}]*(?P<next>[^{_OPENING}]))"
    rf"|[\u3002\uff01\uff1f]+[{_CLOSING}]*(?=.)"
)
_LOOK = 40  # characters looked at to the left and right of a mark
_LAST_WORD = re.compile(r"[^\s(\[\"'\u201c\u2018]*$")
_ABBREVIATIONS = frozenset("approx cf ed eds est etc viz vs".split())
_CAPITALISED_ABBREVIATIONS = frozenset(
    """
    Adm Al Apr Assn Aug Ave Brig Bros Capt Cmdr Co Col Corp Cpl Dec Dept Dr Esq Feb Fri Gen Gov Hon
    Inc Jan Jr Jul Jun Lt Ltd Maj Mar Messrs Mon Mr Mrs Ms Mt Nov Oct Prof Pres Pvt Rep Reps Rev Sat
    Sen Sens Sep Sept Sgt Sr St Ste Sun Supt Thu Tue Univ Wed
    """.split()
)
_NUMBERED = frozenset("art ch fig figs no nos op p pp sec vol vols".split())
_MAY_END = frozenset("Al Bros Co Corp Esq Inc Jr Ltd Sr etc".split())
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_NEW_SENTENCE = frozenset(
    """
    A An And As At But By For From He Her His How I If In It Its My No Not Now Of On Our She So That
    The Their Then There These They This Those To We What When Where Which While Who Why With You
    """.split()
)


def split_sentences(text: str, rule: SentenceRule = "rules") -> list[str]:
    """The sentences of a document, cleaned.

    Args:
        text: the document.
        rule: "rules" as this module describes; "lines" takes every line as a sentence.

    Returns:
        Sentences that hold more than white space.
    """
    if rule == "lines":
        return clean_lines(text)
    return [sentence for part in clean_document(text) for sentence in split_paragraph(part)]


def split_paragraph(paragraph: str) -> list[str]:
    """The sentences of one cleaned paragraph; joined they hold the same words."""
    sentences, start = [], 0
    for match in _END.finditer(paragraph):
        if match["mark"] is None or _ends_sentence(paragraph, start, match):
            sentences.append(paragraph[start : match.end()].strip())
            start = match.end()
    rest = paragraph[start:].strip()
    return [*sentences, rest] if rest else sentences


def _ends_sentence(paragraph: str, start: int, match: re.Match[str]) -> bool:
    """Whether the mark in `match` ends the sentence that begins at `start`."""
    if match["next"].islower():
        return False
    if match["mark"] != ".":
        return True
    word = _last_word(paragraph, start, match.start())
    following = paragraph[match.end() : match.end() + _LOOK].split(" ", 1)[0].strip(_OPENING)
    if word in _ABBREVIATIONS or word in _CAPITALISED_ABBREVIATIONS:
        return word in _MAY_END and following in _NEW_SENTENCE
    if word.lower() in _NUMBERED and following[:1].isdigit():
        return False
    if _INITIALS.fullmatch(word) and word != "I":
        return "." in word and following in _NEW_SENTENCE
    return not (word.isdigit() and match.start() - start == len(word))


def _last_word(paragraph: str, start: int, end: int) -> str:
    """The word that ends at `end`, without opening quotes."""
    found = _LAST_WORD.search(paragraph, max(start, end - _LOOK), end)
    return found[0] if found else ""
