"""The vocabulary command: record, repetition, refusal, casing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep.contract.errors import DataError, InputError, OutputError, UsageError
from data_prep.pieces import vocabulary_job
from data_prep.pieces.vocabulary_job import VocabularyJob, make_vocabulary, vocabulary_with_casing
from data_prep.pieces.vocabulary_training import VocabularyOptions
from data_prep.text.inputs import TextFormat, find_inputs


@pytest.fixture
def job(corpus: Path, tmp_path: Path) -> VocabularyJob:
    options = VocabularyOptions(size=150)
    return VocabularyJob([str(corpus)], TextFormat(), options, tmp_path / "sub" / "vocab.txt")


def test_the_record_states_how_the_vocabulary_was_made(job: VocabularyJob) -> None:
    assert make_vocabulary(job) == f"{job.output}: 150 pieces."
    record = json.loads(job.output.with_suffix(".json").read_text(encoding="utf-8"))
    assert record["parameters"]["size"] == 150
    assert record["parameters"]["lowercase"] is True
    assert record["inputs"]["given"][0]["path"] == job.inputs[0]
    assert record["num_pieces"] == 150
    assert job.output.read_text(encoding="utf-8").splitlines()[:5] == [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]


def test_a_second_run_does_nothing_and_says_so(job: VocabularyJob) -> None:
    make_vocabulary(job)
    before = job.output.stat().st_mtime_ns
    assert "is up to date" in make_vocabulary(job)
    assert job.output.stat().st_mtime_ns == before


def test_other_parameters_are_refused_unless_asked_to_overwrite(job: VocabularyJob) -> None:
    make_vocabulary(job)
    other = replace(job, options=VocabularyOptions(size=160))
    with pytest.raises(UsageError, match=r"size: 150 there, 160 now.*--overwrite"):
        make_vocabulary(other)
    assert "160 pieces" in make_vocabulary(replace(other, overwrite=True))


def test_a_vocabulary_without_record_is_not_replaced_by_accident(job: VocabularyJob) -> None:
    job.output.parent.mkdir()
    job.output.write_text("mine\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no record of how it was made"):
        make_vocabulary(job)
    assert job.output.read_text(encoding="utf-8") == "mine\n"


def test_a_vocabulary_changed_after_it_was_made_is_found(job: VocabularyJob) -> None:
    make_vocabulary(job)
    with job.output.open("a", encoding="utf-8") as file:
        file.write("another\n")
    with pytest.raises(DataError, match="records another vocabulary"):
        make_vocabulary(job)
    with pytest.raises(DataError, match="records another vocabulary"):
        vocabulary_with_casing(job.output, cased=False, strip_accents=None)


def test_casing_comes_from_the_record_and_a_conflict_is_an_error(job: VocabularyJob) -> None:
    make_vocabulary(job)
    assert vocabulary_with_casing(job.output, False, None).lowercase
    with pytest.raises(UsageError, match=r"--cased.*uncased"):
        vocabulary_with_casing(job.output, True, None)
    with pytest.raises(UsageError, match="--strip-accents"):
        vocabulary_with_casing(job.output, False, False)
    options = VocabularyOptions(size=150, lowercase=False, strip_accents=False)
    cased = replace(job, options=options, output=job.output.parent / "cased.txt")
    make_vocabulary(cased)
    for given in (True, False):
        found = vocabulary_with_casing(cased.output, given, None)
        assert (found.lowercase, found.strip_accents) == (False, False)


def test_casing_is_as_asked_without_a_record(vocabulary_path: Path) -> None:
    assert vocabulary_with_casing(vocabulary_path, False, None).lowercase
    cased = vocabulary_with_casing(vocabulary_path, True, None)
    assert (cased.lowercase, cased.strip_accents) == (False, False)


def test_another_json_next_to_a_vocabulary_is_an_error(
    vocabulary_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(vocabulary_path.read_bytes())
    path.with_suffix(".json").write_text('{"hello": 1}', encoding="utf-8")
    with pytest.raises(DataError, match="rename one of the two"):
        vocabulary_with_casing(path, False, None)


def test_text_without_words_and_bad_outputs_are_errors(job: VocabularyJob, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n", encoding="utf-8")
    with pytest.raises(InputError, match="no word"):
        make_vocabulary(replace(job, inputs=[str(empty)]))
    with pytest.raises(UsageError, match=r"use \.txt"):
        make_vocabulary(replace(job, output=tmp_path / "vocab.json"))
    with pytest.raises(OutputError, match="cannot be written"):
        make_vocabulary(replace(job, output=empty / "vocab.txt"))


def test_a_sample_is_drawn_from_the_whole_text(job: VocabularyJob) -> None:
    sampled = replace(job, sample_bytes=3_000, options=VocabularyOptions(size=120))
    make_vocabulary(sampled)
    first = job.output.read_text(encoding="utf-8")
    assert "is up to date" in make_vocabulary(sampled)
    files = find_inputs(job.inputs).files
    texts = list(vocabulary_job._texts(files, TextFormat(), 3_000))
    everything = list(vocabulary_job._texts(files, TextFormat(), None))
    assert 1_000 < sum(map(len, texts)) < 6_000 < sum(map(len, everything))
    places = [everything.index(text) for text in texts]
    assert places[0] < len(everything) / 3 < 2 * len(everything) / 3 < places[-1]
    with pytest.raises(UsageError, match="sample_bytes: 3000 there, None now"):
        make_vocabulary(replace(sampled, sample_bytes=None))
    make_vocabulary(replace(sampled, sample_bytes=None, overwrite=True))
    assert job.output.read_text(encoding="utf-8") != first
    with pytest.raises(UsageError, match="--sample-bytes 0: must be at least 1"):
        make_vocabulary(replace(sampled, sample_bytes=0))
