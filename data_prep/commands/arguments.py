"""Arguments that several subcommands share, and the kinds of values that they take."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the text, and how it is normalised."""
    add = parser.add_argument
    add(
        "--input", nargs="+", required=True, metavar="PATH",
        help="files or folders of .txt (documents separated by blank lines) or .jsonl, also .gz "
        "and .zst; links are followed",
    )  # fmt: skip
    add("--one-document-per-file", action="store_true", help="a .txt file is one document")
    add("--json-field", default="text", metavar="NAME", help="field of .jsonl lines (text)")
    add_cased(parser)
    add(
        "--strip-accents", action=argparse.BooleanOptionalAction,
        help="remove accents (follows the case)",
    )  # fmt: skip


def add_cased(parser: argparse.ArgumentParser) -> None:
    """Add the choice of a cased vocabulary."""
    parser.add_argument("--cased", action="store_true", help="keep upper case and accents")


def add_vocab_size(parser: argparse.ArgumentParser) -> None:
    """Add the size of a vocabulary that is to be trained."""
    parser.add_argument(
        "--vocab-size", type=int, default=30_522, metavar="N", help="pieces to train (30522)"
    )


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add the recipe whose epochs are reported."""
    parser.add_argument(
        "--recipe", type=Path, metavar="RECIPE",
        help="report how many epochs this recipe (a folder, or a name such as bert-base) trains; "
        "without it, the published one for BERT-large",
    )  # fmt: skip


def new_file(text: str) -> Path:
    """Return the path of a file to write; its folder must exist."""
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.absolute().parent}")
    return path


def size(text: str) -> int:
    """Return the bytes of a size such as 512M, 1.5GiB or 77."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number = text.rstrip("KMGTiB")
    unit = text[len(number) :].removesuffix("B").removesuffix("i")
    try:
        return int(float(number) * units[unit])
    except (KeyError, ValueError, OverflowError) as err:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 512M or 4G") from err
