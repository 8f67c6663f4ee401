"""Sentences of a document by rules, with nothing to download.

A sentence ends at `.`, `!`, `?` or an ellipsis, with any closing quotes or brackets, where white
space follows and the next word does not begin with a small letter; a full stop after an
abbreviation, an initial or a list number does not end one. Full-width marks of Chinese and Japanese
and the marks of Hindi, Urdu and Arabic end one as well, the full-width ones without white space.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable
from functools import lru_cache

from data_prep.clean import clean_document, clean_lines, clean_parts
from data_prep.errors import UsageError

OWN_RULES = ("rules", "lines")
PACKAGES = ("blingfire", "nupunkt", "sentencex")
"""Packages that can cut paragraphs instead of the rules; see the extra `sentences`."""
_OLDEST_PYTHON = {"nupunkt": (3, 11)}
"""The oldest Python of a package that does not take all that bert_ds takes."""

MARKS = ".!?\u2026\u0964\u061f\u06d4"
"""What ends a sentence where white space follows."""
FULL_WIDTH_MARKS = "\u3002\uff01\uff1f"
"""What ends one whatever follows."""
CLOSING = "\"')]}\u2019\u201d\u00bb\u300d\u300f\uff09"
OPENING = "\"'([{\u2018\u201c\u00ab\u00bf\u00a1"
LOOK = 40
"""Characters looked at to the left and right of a mark."""

_CLOSINGS, _OPENINGS = f"[{re.escape(CLOSING)}]*", re.escape(OPENING)
_END = re.compile(
    rf"(?P<mark>[{MARKS}]+){_CLOSINGS}\s(?=[{_OPENINGS}]*(?P<next>[^{_OPENINGS}]))"
    rf"|[{FULL_WIDTH_MARKS}]+(?![{FULL_WIDTH_MARKS}]){_CLOSINGS}(?![{re.escape(CLOSING)}])(?=.)"
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
    """UsageError where there is no such way to cut sentences, or its package is not installed."""
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
    """The sentences of a document, cleaned.

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
    """The function of another package that cuts a paragraph; its sentences are cleaned.

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
    """Microsoft's BlingFire: a finite automaton, several languages."""
    from blingfire import text_to_sentences

    return lambda paragraph: str(text_to_sentences(paragraph)).split("\n")


def _nupunkt(_: str) -> Callable[[str], list[str]]:
    """nupunkt: Punkt trained on legal text, English."""
    from nupunkt import sent_tokenize

    return lambda paragraph: list(sent_tokenize(paragraph))


def _sentencex(language: str) -> Callable[[str], list[str]]:
    """Wikimedia's sentencex, with its rules for many languages."""
    from sentencex import segment

    return lambda paragraph: list(segment(language, paragraph))


_MAKERS = {"blingfire": _blingfire, "nupunkt": _nupunkt, "sentencex": _sentencex}


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
    following = paragraph[match.end() : match.end() + LOOK].split(" ", 1)[0].strip(OPENING)
    if word in ABBREVIATIONS:
        return word in MAY_END and following in NEW_SENTENCE
    if word.lower() in NUMBERED and following[:1].isdigit():
        return False
    if _INITIALS.fullmatch(word) and word != "I":
        return "." in word and following in NEW_SENTENCE
    return not (word.isdigit() and match.start() - start == len(word))


def _last_word(paragraph: str, start: int, end: int) -> str:
    """The word that ends at `end`, without opening quotes."""
    found = _LAST_WORD.search(paragraph, max(start, end - LOOK), end)
    return found[0] if found else ""


def is_initial(character: str) -> bool:
    """Whether the character can be an initial, as "J" before a full stop."""
    return _INITIALS.fullmatch(character) is not None


def is_word_border(character: str) -> bool:
    """Whether the word before a full stop begins after the character."""
    return _LAST_WORD.fullmatch(character) is None
