"""One judgement of a dataset: shares that make it worth little or nothing, why, and how to fix it.

`bert-prep shards` and `bert-prep stats` print it, `bert-ds pretrain` and `bert-ds doctor` repeat
it. It needs nothing but the manifest. It stops nothing: a run that was started for the night must
not end before it begins because of a share that may be meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from data_prep.contract.manifest import SPLITS, Manifest, Totals


@dataclass(frozen=True)
class Thresholds:
    """What the shares of a dataset may be; anything beyond gets a warning."""

    lowest_label_share: float = 0.10
    """Of rows with label 1. Below it always guessing 0 is right in 90% of the rows and the label
    holds less than half a bit. Ordinary text gives 50% to 70%."""
    highest_label_share: float = 0.90
    """Of rows with label 1, for the same reason."""
    unknown_share: float = 0.02
    """Of the text's tokens that are [UNK]. A vocabulary leaves hardly any of the text it was
    trained on; the limit of 1,000 characters leaves about 10% of Chinese."""
    held_out_rows: int = 100
    """Fewest rows of the valid split: of 100, an accuracy of next-sentence labels is uncertain by
    10 points (two standard errors of a half), one of masked tokens, 20 a row, by 2."""
    repeated_documents: float = 0.05
    """Of documents with the text of another one. Common corpora have less, C4 about 3% even of near
    copies (Lee et al. 2022); a folder that is given twice has 50%."""
    repeated_rows: float = 0.20
    """Of train rows with the text of another one. Documents of about a row repeat by the duplicate
    factor, which does little harm: the demo's long speeches give 1%, documents of a row 10%."""
    divided_rows: float = 0.50
    """Of rows whose segments are two parts of one sentence: beyond it most labels ask for grammar,
    not for what follows from a text."""
    padding: float = 0.75
    """Of the positions if every row were padded. Wikipedia has about 50% at 512 (Krell et al.
    2021). Beyond it three of four position embeddings are hardly trained."""


THRESHOLDS = Thresholds()
UNKNOWN = "[UNK]"
"""The subject of the finding about unknown pieces."""
_MANY = 0.5  # a cause is named where it holds for most of the documents
_LONGEST_SENTENCE = 100  # tokens, on average: no prose has longer ones, so marks are missing
_WITHOUT_MARKS = ("Thai", "Lao")
_LONGEST_WORD = 100  # characters; BERT's tokeniser makes [UNK] of a longer word

_MARKS_FIX = (
    "`--sentences rules` knows every mark that Unicode lists, and the packages that --sentences "
    "takes do not cut such text either: write a sentence a line with a tool for the language and "
    "give --sentences lines, or take --pairs none"
)


@dataclass(frozen=True)
class DataFinding:
    """One share that is out of its limits."""

    subject: str
    """What it is about, in a few words."""
    measured: str
    """The share, and the threshold."""
    cause: str
    """Why, as far as it is known; or empty."""
    fix: str
    """What to do."""

    def lines(self) -> tuple[str, ...]:
        """Return a line each for what was measured, its cause and how to fix it."""
        cause = (f"  cause: {self.cause}",) if self.cause else ()
        return (f"WARNING {self.subject}: {self.measured}", *cause, f"  fix: {self.fix}")


def judge_dataset(manifest: Manifest) -> list[DataFinding]:
    """Return what makes a dataset worth less than it looks, the worst first.

    Args:
        manifest: of the dataset folder.

    Returns:
        A finding for every share beyond `THRESHOLDS`; none for a sound dataset.
    """
    return [
        *_labels(manifest),
        *_unknown(manifest),
        *_held_out(manifest),
        *_repeated_documents(manifest),
        *_repeated_rows(manifest),
        *_divided_rows(manifest),
        *_padding(manifest),
    ]


def padding_share(manifest: Manifest, totals: Totals) -> float:
    """Return the share of the positions that are padding if every row is padded to full length."""
    return 1 - totals.tokens / (totals.rows * manifest.sequence_length)


def unknown_share(manifest: Manifest, totals: Totals) -> float:
    """Return the share of [UNK] among the tokens of the text, without [CLS] and [SEP]."""
    special = (3 if manifest.pair_label_name else 2) * totals.rows
    return totals.unknown / max(totals.tokens - special, 1)


def _labels(manifest: Manifest) -> Iterator[DataFinding]:
    """Yield a finding for next-sentence (or sentence-order) labels that are nearly all alike."""
    low, high = THRESHOLDS.lowest_label_share, THRESHOLDS.highest_label_share
    for split in SPLITS if manifest.pair_label_name else ():
        totals = manifest.totals(split)
        fewest = 1 if split == "train" else THRESHOLDS.held_out_rows
        if totals.rows < fewest or low < totals.label_1 / totals.rows < high:
            continue
        share = totals.label_1 / totals.rows
        cause, fix = _random_cause(manifest) if share >= high else _next_cause(manifest, split)
        yield DataFinding(
            f"{split} {manifest.pair_label_name}",
            f"{share:.1%} of {totals.rows} rows have label 1 (it should be near 50%; warned about "
            f"up to {low:.0%} and from {high:.0%}): always guessing {int(share >= high)} is right "
            f"in {max(share, 1 - share):.1%}, so that a model learns little or nothing from it",
            cause,
            fix,
        )


def _random_cause(manifest: Manifest) -> tuple[str, str]:
    """Return why nearly all second segments are random, and how to fix it."""
    text = manifest.text
    singles = text.single_sentence_documents / max(manifest.documents, 1)
    of_one = text.single_sentence_pieces / max(text.single_sentence_documents, 1)
    length = text.pieces / max(text.sentences, 1)
    is_single, is_long = singles > _MANY, length > manifest.sequence_length / 2
    seen = (
        f"{singles:.0%} of {manifest.documents} documents are a single sentence, sentences have "
        f"{length:.0f} tokens on average, and what follows one is from another document"
    )
    if (
        length > _LONGEST_SENTENCE
        or (is_single and of_one > _LONGEST_SENTENCE)
        or ((is_single or is_long) and _script(manifest) in _WITHOUT_MARKS)
    ):
        why, fix = _uncut_cause(manifest)
        return f"{why}: {seen}", fix
    if is_single:
        return (
            f"{seen}: there is a blank line after each sentence, or the texts are that short",
            "separate documents by blank lines and nothing else (line ends inside a document do no "
            "harm); where a text is one sentence, take --pairs none",
        )
    if is_long:
        return (
            f"a row of {manifest.sequence_length} has room for one sentence: {seen}",
            f"take a longer --sequence-length, or --pairs none{_balanced(manifest)}",
        )
    return "", f"look at rows with `bert-prep show`, or take --pairs none{_balanced(manifest)}"


def _uncut_cause(manifest: Manifest) -> tuple[str, str]:
    """Return why text is not cut into sentences, and how to fix it."""
    script, rule = _script(manifest), manifest.parameters.get("sentences", "rules")
    if rule == "lines":
        return (
            "--sentences lines takes lines as sentences, and they are longer",
            "write a sentence a line, or take --sentences rules",
        )
    if script in _WITHOUT_MARKS:
        return f"{script} has no sentence mark (a blank separates clauses)", _MARKS_FIX
    return (
        f"--sentences {rule} finds no ends of sentences: there are no marks, or small letters "
        "follow them",
        "text in small letters is cut by --sentences nupunkt and sentencex:LANGUAGE; without marks "
        "write a sentence a line and give --sentences lines, or take --pairs none",
    )


def _balanced(manifest: Manifest) -> str:
    """Return a way to labels that are half and half, where it was not taken."""
    is_google = manifest.parameters.get("random_next") == "google"
    return " or --random-next balanced" if is_google else ""


def _next_cause(manifest: Manifest, split: str) -> tuple[str, str]:
    """Return why hardly any second segment is random, and how to fix it."""
    source = manifest.source(split)
    if source.documents and source.documents_without_partner > _MANY * source.documents:
        return (
            f"the {split} split is only one document (or equal ones): there are no random partners",
            "documents are separated by blank lines; for one a file give --one-document-per-file",
        )
    return "", "look at rows with `bert-prep show`, or take --pairs none"


def _unknown(manifest: Manifest) -> Iterator[DataFinding]:
    """Yield a finding for much [UNK]."""
    totals, text = manifest.train_totals, manifest.text
    share = text.unknown_pieces / max(text.pieces, 1)
    if totals.rows:
        share = unknown_share(manifest, totals)
    if share > THRESHOLDS.unknown_share:
        cause, fix = _unknown_cause(manifest, share)
        yield DataFinding(
            UNKNOWN,
            f"{share:.1%} of the text's tokens are [UNK] (warned about above "
            f"{THRESHOLDS.unknown_share:.0%}): a model neither sees nor predicts what it was",
            cause,
            fix,
        )


def _unknown_cause(manifest: Manifest, share: float) -> tuple[str, str]:
    """Return why so much is unknown, and how to fix it."""
    text, characters = manifest.text, manifest.unknown_characters
    script = _script(manifest)
    if text.unknown_characters < _MANY * text.unknown_pieces:
        return (
            f"words of over {_LONGEST_WORD} characters are [UNK] as a whole; the text, mostly "
            f"{script or 'without letters'}, has no blanks between words or holds runs of "
            "characters that are no words",
            "write a blank between words with a tool for the language, or take such runs out",
        )
    named = ", ".join(f"{name!r} U+{ord(name):04X} ({count})" for name, count in characters)
    seen = f"no piece begins with {text.unknown_characters} characters, the commonest {named}"
    if characters and all(name.isupper() for name, _ in characters):
        return (
            f"{seen}: capitals, and the vocabulary is uncased",
            "leave --cased out, or train a vocabulary with bert-prep vocab --cased",
        )
    if share > _MANY:
        return (
            f"{seen}: the vocabulary was made for another language or script (this text is mostly "
            f"{script})",
            "train a vocabulary on this text with bert-prep vocab",
        )
    return (
        f"{seen}: the vocabulary was trained on other text, or its alphabet was cut off",
        "train it on this text with a higher --limit-alphabet (default 1,000) and --vocab-size",
    )


def _held_out(manifest: Manifest) -> Iterator[DataFinding]:
    """Yield a finding for no held-out rows, or too few to measure with."""
    rows, fewest = manifest.valid_totals.rows, THRESHOLDS.held_out_rows
    if rows >= fewest:
        return
    fraction = manifest.parameters.get("valid_fraction")
    cause, fix = "", "raise --valid-fraction, or give more text"
    if fraction == 0:
        cause, fix = "--valid-fraction is 0", "give one above 0, such as 0.01"
    elif not rows and manifest.source("train").documents_without_partner:
        cause = "there is only one document (or equal ones), and it is for training"
        fix = "documents are separated by blank lines; for one a file give --one-document-per-file"
    elif fraction is not None:
        cause = f"--valid-fraction {fraction:g} of {manifest.documents} documents"
    seen = f"there are none (warned about below {fewest}): there will be no held-out result"
    if rows:
        what = "labels" if manifest.pair_label_name else "masked tokens"
        number = rows if manifest.pair_label_name else max(manifest.valid_totals.predictions, rows)
        seen = (
            f"{rows} of them (warned about below {fewest}): an accuracy of {what} measured on them "
            f"is uncertain by {100 / number**0.5:.0f} points (two standard errors)"
        )
    yield DataFinding("held-out rows", seen, cause, fix)


def _repeated_documents(manifest: Manifest) -> Iterator[DataFinding]:
    """Yield a finding for texts that stand more than once in the inputs."""
    share = manifest.repeated_documents / max(manifest.documents, 1)
    if share > THRESHOLDS.repeated_documents:
        yield DataFinding(
            "repeated documents",
            f"{share:.1%} of {manifest.documents} documents have the text of another one (warned "
            f"about above {THRESHOLDS.repeated_documents:.0%})",
            "inputs hold the same texts: a file that is given twice, a copy in another format, or "
            "pages of boilerplate",
            "give every text once",
        )


def _repeated_rows(manifest: Manifest) -> Iterator[DataFinding]:
    """Yield a finding for train rows that have the text of another one."""
    totals = manifest.train_totals
    share = totals.repeated_rows / max(totals.rows, 1)
    if share > THRESHOLDS.repeated_rows:
        cause, fix = _repeated_cause(manifest)
        yield DataFinding(
            "repeated rows",
            f"{share:.1%} of {totals.rows} train rows have the text of another one, with other "
            f"masks (warned about above {THRESHOLDS.repeated_rows:.0%})",
            cause,
            fix,
        )


def _repeated_cause(manifest: Manifest) -> tuple[str, str]:
    """Return why rows repeat, and how to fix it."""
    factor, mean = manifest.parameters.get("duplicate_factor", 1), _document_length(manifest)
    repeated = manifest.repeated_documents / max(manifest.documents, 1)
    if repeated > THRESHOLDS.repeated_documents:
        return f"{repeated:.0%} of the documents have the text of another one", "give each once"
    if factor > 1 and mean < 2 * manifest.sequence_length:
        return (
            f"documents have {mean:.0f} tokens on average, which gives few different rows of "
            f"{manifest.sequence_length}, and --duplicate-factor {factor} uses each {factor} times",
            "lower it to 1: more passes over the rows do the same; with --masking none they are "
            "masked differently in each pass",
        )
    return "", "look at rows with `bert-prep show`; the text repeats itself inside documents"


def _divided_rows(manifest: Manifest) -> Iterator[DataFinding]:
    """Yield a finding for pairs whose segments are two parts of one sentence."""
    totals, source = manifest.train_totals, manifest.train_source
    share = source.divided_rows / max(totals.rows, 1)
    if manifest.pair_label_name and share > THRESHOLDS.divided_rows:
        text = manifest.text
        singles = text.single_sentence_documents / max(manifest.documents, 1)
        yield DataFinding(
            "rows of one sentence",
            f"{share:.1%} of {totals.rows} train rows are one sentence cut in two (warned about "
            f"above {THRESHOLDS.divided_rows:.0%}): their label asks for grammar, not for what "
            "follows from a text",
            f"{singles:.0%} of {manifest.documents} documents are a single sentence, and sentences "
            f"have {text.pieces / max(text.sentences, 1):.0f} tokens on average in rows of "
            f"{manifest.sequence_length}",
            "separate documents, not sentences, by blank lines; where texts are that short or "
            "sentences that long, take --pairs none or a longer --sequence-length",
        )


def _padding(manifest: Manifest) -> Iterator[DataFinding]:
    """Yield a finding for rows far shorter than they may be."""
    totals = manifest.train_totals
    share = padding_share(manifest, totals) if totals.rows else 0.0
    if share > THRESHOLDS.padding:
        mean = _document_length(manifest)
        is_short = mean < manifest.sequence_length * (1 - THRESHOLDS.padding)
        yield DataFinding(
            "padding",
            f"train rows have {totals.tokens / totals.rows:.0f} of {manifest.sequence_length} "
            f"tokens on average: {share:.1%} padding if rows were padded (warned about above "
            f"{THRESHOLDS.padding:.0%}); later positions are hardly trained",
            f"documents have {mean:.0f} tokens on average" if is_short else "",
            "take a shorter --sequence-length, or longer documents",
        )


def _document_length(manifest: Manifest) -> float:
    """Return the mean number of tokens of a document."""
    return manifest.text.pieces / max(manifest.documents, 1)


def _script(manifest: Manifest) -> str:
    """Return the script of most characters, or empty."""
    return manifest.text.scripts[0][0] if manifest.text.scripts else ""
