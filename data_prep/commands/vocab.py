"""`bert-prep vocab`: train a WordPiece vocabulary."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.commands.arguments import add_inputs, add_vocab_size, size

if TYPE_CHECKING:
    from data_prep.commands.arguments import Commands


def add_parsers(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("vocab", help="train a WordPiece vocabulary")
    add_inputs(parser)
    add_vocab_size(parser)
    add = parser.add_argument
    add(
        "--limit-alphabet", type=int, default=1_000, metavar="N",
        help="most different characters; raise it for Chinese or Japanese (1000)",
    )  # fmt: skip
    add(
        "--sample-bytes", type=size, metavar="SIZE",
        help="read about this much of a large corpus, such as 2G (all of it)",
    )  # fmt: skip
    add("--output", type=Path, required=True, metavar="vocab.txt", help="gets a record next to it")
    add("--overwrite", action="store_true", help="replace a vocabulary that was made otherwise")
    parser.set_defaults(run=run, outlives_its_reader=True)


def run(parsed: argparse.Namespace) -> int:
    """Train the vocabulary, unless it is there already."""
    from data_prep.pieces.vocabulary_job import VocabularyJob, make_vocabulary
    from data_prep.pieces.vocabulary_training import VocabularyOptions
    from data_prep.text.inputs import TextFormat

    lowercase = not parsed.cased
    options = VocabularyOptions(
        size=parsed.vocab_size,
        lowercase=lowercase,
        strip_accents=lowercase if parsed.strip_accents is None else parsed.strip_accents,
        limit_alphabet=parsed.limit_alphabet,
    )
    job = VocabularyJob(
        inputs=parsed.input,
        text_format=TextFormat(parsed.one_document_per_file, parsed.json_field),
        options=options,
        output=parsed.output,
        overwrite=parsed.overwrite,
        sample_bytes=parsed.sample_bytes,
    )
    print(make_vocabulary(job))
    return 0
