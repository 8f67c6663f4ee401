"""Cleaning of text: as little as the tokeniser needs, and nothing that changes its meaning.

Control characters are removed and runs of white space become one blank. Letters are not
normalised here: case and accents are the tokeniser's business.
Differs from Hugging Face: form feed, vertical tab and next line separate words here; its normaliser
would remove them and join the words.
"""

from __future__ import annotations

import re

# C0 and C1 controls and DEL, without those that are white space (tab, line feed, vertical tab,
# form feed, carriage return, next line). U+001C to U+001F are white space to Python alone.
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")


def clean_document(text: str) -> list[str]:
    """Return the paragraphs of a document, cleaned.

    Args:
        text: a document; blank lines separate its paragraphs, other line ends are white space.

    Returns:
        Paragraphs that hold more than white space, words separated by single blanks.
    """
    return clean_parts(_PARAGRAPH.split(_unified(text)))


def clean_lines(text: str) -> list[str]:
    """Return the lines of a document, cleaned; blank ones are left out."""
    return clean_parts(_unified(text).split("\n"))


def clean_parts(parts: list[str]) -> list[str]:
    """Return every part with single blanks between its words; blank parts are left out."""
    joined = (" ".join(_CONTROLS.sub("", part).split()) for part in parts)
    return [part for part in joined if part]


def is_removed(character: str) -> bool:
    """Return whether cleaning takes the character out."""
    return _CONTROLS.match(character) is not None


def _unified(text: str) -> str:
    """Return `text` with every line end as a line feed."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
