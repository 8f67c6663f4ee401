"""The judgement of a dataset: silent for sound data, and with the cause for each kind of bad."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.contract.errors import InputError
from data_prep.contract.manifest import (
    InputSummary,
    Manifest,
    SplitSource,
    TextFacts,
    Totals,
    VocabularyEntry,
    load_manifest,
)
from data_prep.contract.quality import THRESHOLDS, DataFinding, Thresholds, judge_dataset
from data_prep.contract.wordpiece import SPECIAL_PIECES
from data_prep.inspect.stats import describe_folder
from tests.unit.data_prep.conftest import text_of

Prepare = Callable[..., list[Path]]

ROWS, LENGTH = 10_000, 128
SOUND = Manifest(
    tool_version="1",
    sequence_length=LENGTH,
    max_predictions_per_seq=20,
    pair_label_name="next_sentence_label",
    vocabulary=VocabularyEntry("cd" * 32, 30_522, True, True),
    parameters={
        "duplicate_factor": 5,
        "valid_fraction": 0.01,
        "pairs": "next_sentence",
        "random_next": "google",
    },
    inputs=InputSummary(0, 0, "0" * 64, ()),
    train_shards=(),
    valid_shards=(),
    train_totals=Totals(rows=ROWS, tokens=ROWS * 120, label_1=5500, unknown=900, repeated_rows=110),
    valid_totals=Totals(rows=400, tokens=400 * 120, label_1=230),
    train_source=SplitSource(documents=990),
    valid_source=SplitSource(documents=10),
    documents=1000,
    text=TextFacts(sentences=20_000, pieces=500_000, single_sentence_documents=30,
                   single_sentence_pieces=600, scripts=(("Latin", 2_000_000),)),
)  # fmt: skip


def changed(
    train: dict[str, Any] | None = None, text: dict[str, Any] | None = None, **others: Any
) -> Manifest:
    """The sound manifest with some values changed."""
    return replace(
        SOUND,
        train_totals=replace(SOUND.train_totals, **(train or {})),
        text=replace(SOUND.text, **(text or {})),
        **others,
    )


def only(manifest: Manifest) -> DataFinding:
    (finding,) = judge_dataset(manifest)
    return finding


def test_sound_data_are_not_warned_about() -> None:
    assert judge_dataset(SOUND) == []


@pytest.mark.parametrize("share", [0.11, 0.5, 0.89])
def test_labels_that_hold_something_are_not_warned_about(share: float) -> None:
    assert judge_dataset(changed({"label_1": int(share * ROWS)})) == []


SINGLES = {"single_sentence_documents": 1000, "sentences": 1000}


@pytest.mark.parametrize(
    ("text", "cause", "fix"),
    [
        (
            {**SINGLES, "single_sentence_pieces": 12_000, "pieces": 12_000},
            "100% of 1000 documents are a single sentence, sentences have 12 tokens on average, .*"
            "there is a blank line after each sentence",
            "separate documents by blank lines",
        ),
        (
            {**SINGLES, "single_sentence_pieces": 500_000},
            "--sentences rules finds no ends of sentences: .* have 500 tokens on average",
            "give --sentences lines, or take --pairs none",
        ),
        (
            {**SINGLES, "single_sentence_pieces": 20_000, "scripts": (("Thai", 9), ("Latin", 2))},
            r"Thai has no sentence mark \(a blank separates clauses\)",
            "give --sentences lines, or take --pairs none",
        ),
        (
            {"sentences": 2_000, "scripts": (("Lao", 9),)},  # some paragraphs a document
            "Lao has no sentence mark",
            "give --sentences lines",
        ),
        (
            {"sentences": 5_000},
            "a row of 128 has room for one sentence: .* sentences have 100 tokens on average",
            "take a longer --sequence-length, or --pairs none or --random-next balanced",
        ),
        ({}, "^$", "--pairs none or --random-next balanced"),
    ],
)
def test_labels_that_are_all_1_are_warned_about_with_the_cause(
    text: dict[str, Any], cause: str, fix: str
) -> None:
    finding = only(changed({"label_1": ROWS}, text))
    assert finding.subject == "train next_sentence_label"
    assert "100.0% of 10000 rows have label 1" in finding.measured
    assert "10%" in finding.measured
    assert "90%" in finding.measured
    assert re.search(cause, finding.cause)
    assert fix in finding.fix


def test_lines_that_are_whole_documents_are_named_where_lines_are_sentences() -> None:
    parameters = {**SOUND.parameters, "sentences": "lines"}
    text = {**SINGLES, "single_sentence_pieces": 500_000}
    finding = only(changed({"label_1": ROWS}, text, parameters=parameters))
    assert "--sentences lines takes lines as sentences" in finding.cause
    assert "--sentences rules" in finding.fix


def test_labels_that_are_all_0_are_warned_about_with_the_cause() -> None:
    source = SplitSource(documents=1, documents_without_partner=1)
    finding = only(changed({"label_1": 0}, train_source=source))
    assert "0.0% of 10000 rows have label 1" in finding.measured
    assert "no random partners" in finding.cause
    assert "--one-document-per-file" in finding.fix


def test_labels_of_held_out_rows_are_judged_where_there_are_enough() -> None:
    valid = replace(SOUND.valid_totals, label_1=400)
    assert only(changed(valid_totals=valid)).subject == "valid next_sentence_label"
    few = replace(valid, rows=99, label_1=99)
    assert only(changed(valid_totals=few)).subject == "held-out rows"


def test_rows_without_pairs_have_no_label_to_judge() -> None:
    assert judge_dataset(changed({"label_1": 0}, pair_label_name=None)) == []


@pytest.mark.parametrize(
    ("share", "text", "unknown", "cause"),
    [
        (
            0.3,
            {"unknown_characters": 90, "unknown_pieces": 90},
            (("\u51e7", 50), ("\u51e8", 40)),
            r"no piece begins with 90 characters, the commonest '\u51e7' U\+51E7 \(50\), .*"
            "alphabet was cut off",
        ),
        (
            0.9,
            {"unknown_characters": 90, "unknown_pieces": 90, "scripts": (("Khmer", 9),)},
            (("\u1780", 90),),
            r"another language or script \(this text is mostly Khmer\)",
        ),
        (
            0.1,
            {"unknown_characters": 90, "unknown_pieces": 90},
            (("T", 80), ("I", 10)),
            "capitals, and the vocabulary is uncased",
        ),
        (
            1.0,
            {"unknown_characters": 3, "unknown_pieces": 90, "scripts": (("Khmer", 9),)},
            (("\u2603", 3),),
            "words of over 100 characters are .UNK. as a whole; the text, mostly Khmer,",
        ),
    ],
)
def test_much_unk_is_warned_about_with_the_commonest_characters(
    share: float, text: dict[str, Any], unknown: tuple[tuple[str, int], ...], cause: str
) -> None:
    tokens = ROWS * (120 - 3)  # without [CLS] and [SEP]
    finding = only(changed({"unknown": round(share * tokens)}, text, unknown_characters=unknown))
    assert finding.subject == "[UNK]"
    assert f"{share:.1%} of the text's tokens" in finding.measured
    assert re.search(cause, finding.cause)


@pytest.mark.parametrize(
    ("rows", "fraction", "source", "words"),
    [
        (0, 0, SplitSource(990), ["there are none", "--valid-fraction is 0"]),
        (0, 0.01, SplitSource(1, 1), ["there are none", "only one document", "blank lines"]),
        (
            25,
            0.01,
            SplitSource(990),
            ["25 of them", "uncertain by 20 points", "raise --valid-fraction"],
        ),
    ],
)
def test_held_out_rows_that_cannot_measure_are_warned_about(
    rows: int, fraction: float, source: SplitSource, words: list[str]
) -> None:
    parameters = {**SOUND.parameters, "valid_fraction": fraction}
    valid = replace(SOUND.valid_totals, rows=rows)
    finding = only(changed(valid_totals=valid, parameters=parameters, train_source=source))
    for word in words:
        assert word in "\n".join(finding.lines())


def test_repeated_rows_are_put_down_to_the_duplicate_factor_or_to_the_text() -> None:
    short = only(changed({"repeated_rows": 2100}, {"pieces": 50_000, "sentences": 2_000}))
    assert "21.0% of 10000 train rows" in short.measured
    assert "50 tokens on average" in short.cause
    assert "--duplicate-factor 5 uses each 5 times" in short.cause
    documents, rows = judge_dataset(changed({"repeated_rows": 2100}, repeated_documents=300))
    assert "30.0% of 1000 documents" in documents.measured
    assert "30% of the documents have the text of another one" in rows.cause


def test_rows_of_one_sentence_and_padding_are_warned_about() -> None:
    divided = only(changed(train_source=SplitSource(990, 0, 6000)))
    assert "60.0% of 10000 train rows are one sentence cut in two" in divided.measured
    padded = only(changed({"tokens": ROWS * 20, "unknown": 0}, {"pieces": 17_000}))
    assert "20 of 128 tokens on average: 84.4% padding" in padded.measured
    assert "documents have 17 tokens on average" in padded.cause


def test_every_threshold_is_in_the_docs() -> None:
    docs = (Path(__file__).parents[4] / "docs" / "data-quality.md").read_text(encoding="utf-8")
    for field in fields(Thresholds):
        value = getattr(THRESHOLDS, field.name)
        assert (f"{value:.0%}" if isinstance(value, float) else str(value)) in docs, field.name


# Real preparations.


def f5_text(num_sentences: int) -> str:
    """A blank line after each sentence (google-research/bert#125)."""
    return text_of(num_sentences, most_sentences=1)


def findings_of(folder: Path) -> dict[str, DataFinding]:
    return {finding.subject: finding for finding in judge_dataset(load_manifest(folder))}


def test_a_blank_line_after_each_sentence_is_warned_about_by_shards_and_stats(
    prepare: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.txt"
    path.write_text(f5_text(40), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        (folder,) = prepare(tmp_path / "D", inputs=[path], duplicate_factor=1)
    manifest = load_manifest(folder)
    assert manifest.train_totals.label_1 == manifest.train_totals.rows
    for text in (caplog.text, "\n".join(describe_folder(folder))):
        assert "WARNING train next_sentence_label: 100.0% of" in text
        assert "blank line after each sentence" in text
        assert "--pairs none" in text


@pytest.mark.parametrize("kind", ["next_sentence", "sentence_order"])
def test_sentences_that_are_lines_of_a_document_raise_no_alarm_about_labels(
    prepare: Prepare, tmp_path: Path, kind: str
) -> None:
    (folder,) = prepare(tmp_path / "D", pairs=kind)
    assert set(findings_of(folder)) <= {"held-out rows"}


def test_sentence_order_of_one_sentence_documents_is_rows_of_one_sentence(
    prepare: Prepare, tmp_path: Path
) -> None:
    path = tmp_path / "x.txt"
    path.write_text(f5_text(40), encoding="utf-8")
    (folder,) = prepare(tmp_path / "D", inputs=[path], pairs="sentence_order")
    manifest = load_manifest(folder)
    assert manifest.train_source.divided_rows == manifest.train_totals.rows
    assert "100% of 40 documents are a single sentence" in (
        findings_of(folder)["rows of one sentence"].cause
    )


def test_text_in_small_letters_is_named_and_the_packages_that_are_advised_cut_it(
    prepare: Prepare, tmp_path: Path
) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text_of(40, most_sentences=40).lower(), encoding="utf-8")
    subject = "train next_sentence_label"
    found = findings_of(prepare(tmp_path / "rules", inputs=[path])[0])[subject]
    assert "small letters follow them" in found.cause
    for package in ("nupunkt", "sentencex:en"):
        assert package.split(":")[0] in found.fix
        pytest.importorskip(package.split(":")[0])
        folder = prepare(tmp_path / package[:4], inputs=[path], sentences=package)[0]
        assert subject not in findings_of(folder)


THAI = "\u0e27\u0e31\u0e19\u0e19\u0e35\u0e49 \u0e09\u0e31\u0e19\u0e44\u0e1b "
KHMER = "\u1781\u17d2\u1789\u17bb\u17c6 \u1791\u17c5\u17d4 "


def letters_of(text: str, path: Path) -> Path:
    letters = sorted(set(text) - {" ", "\n"})
    pieces = [*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters)]
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


def test_thai_is_named_as_the_cause_and_khmer_is_cut_into_sentences(
    prepare: Prepare, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    for name, clause in (("thai", THAI), ("khmer", KHMER)):
        words = clause.split()
        documents = [
            " ".join(generator.permutation(words * 4).tolist()) + f" {number} "
            for number in range(40)
        ]
        text = "\n\n".join(document + clause * 8 for document in documents)
        path = tmp_path / f"{name}.txt"
        path.write_text(text, encoding="utf-8")
        vocabulary = letters_of(text, tmp_path / f"{name}-vocab.txt")
        (folder,) = prepare(tmp_path / name, inputs=[path], vocabulary=vocabulary)
        found = findings_of(folder)
        assert load_manifest(folder).text.scripts[0][0] == name.capitalize()
        if name == "thai":
            assert "Thai has no sentence mark" in found["train next_sentence_label"].cause
        else:
            assert "train next_sentence_label" not in found


def test_the_share_of_unk_is_that_of_the_rows_before_masking(
    prepare: Prepare, tmp_path: Path
) -> None:
    path = tmp_path / "x.txt"
    text = text_of(30).replace(" sentence ", " \u2603 ").replace("Document ", "\u2604\u2604 ")
    path.write_text(text, encoding="utf-8")
    (folder,) = prepare(tmp_path / "D", inputs=[path])
    manifest = load_manifest(folder)
    assert manifest.text.unknown_pieces == text.count("\u2603") + text.count("\u2604\u2604")
    assert manifest.text.unknown_characters == text.count("\u2603") + text.count("\u2604")
    share = manifest.text.unknown_pieces / manifest.text.pieces
    (finding,) = (f for f in judge_dataset(manifest) if f.subject == "[UNK]")
    assert abs(float(finding.measured.split("%")[0]) / 100 - share) < 0.01
    assert "'\u2604' U+2604" in finding.cause


def test_text_that_is_all_unk_and_gives_no_row_says_so(prepare: Prepare, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("\n\n".join(["a" * 120] * 5), encoding="utf-8")
    with pytest.raises(InputError, match=r"no row to train on(.|\n)*100.0% (.|\n)*over 100"):
        prepare(tmp_path / "D", inputs=[path])


def test_the_facts_of_the_text_do_not_depend_on_the_tasks(prepare: Prepare, tmp_path: Path) -> None:
    one = load_manifest(prepare(tmp_path / "one")[0])
    many = load_manifest(prepare(tmp_path / "many", task_bytes=700)[0])
    assert one == many
    assert one.text.sentences > one.documents == 60
    assert one.text.pieces > 0
    assert 0 < one.text.single_sentence_documents < 30
