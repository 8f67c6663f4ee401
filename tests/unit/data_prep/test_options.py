"""What can be asked of a preparation besides its defaults: each option is seen in the rows."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data_prep.contract.errors import UsageError
from data_prep.contract.format import Block
from data_prep.contract.manifest import load_manifest
from data_prep.contract.wordpiece import load_vocabulary
from data_prep.inspect.dataset import read_split
from data_prep.inspect.show import show_rows
from data_prep.inspect.stats import describe_folder
from data_prep.inspect.verify import verify_folder
from data_prep.running.executor import SerialExecutor
from data_prep.stages.plan import Plan, ShardOptions, check_options, make_plan
from data_prep.stages.prepare import prepare_shards
from data_prep.stages.work_folder import Preparation
from data_prep.text import sentences
from data_prep.text.input_files import summary_of
from tests.unit.data_prep.conftest import files_of, text_of

Prepare = Callable[..., list[Path]]


def blocks_of(folder: Path, split: str = "train") -> list[Block]:
    return [block for _, block in read_split(folder, load_manifest(folder), split)]


def sentences_in(folder: Path, split: str) -> Counter[tuple[str, ...]]:
    """How often each sentence of the corpus stands whole in the rows: by document and number."""
    pieces = load_vocabulary(folder / "vocab.txt").pieces
    found: Counter[tuple[str, ...]] = Counter()
    for block in blocks_of(folder, split):
        ends = np.cumsum(block.length, dtype=int)
        for row, end in enumerate(ends):
            text = " ".join(pieces[t] for t in block.tokens[end - block.length[row] : end])
            words = text.replace(" ##", "").split()
            for place, word in enumerate(words[:-3]):
                if word == "document" and words[place + 2] == "sentence":
                    found[words[place + 1], words[place + 3]] += 1
    return found


def test_rows_without_pairs_and_masks_hold_every_sentence_once_a_copy(
    prepare: Prepare, tmp_path: Path, corpus: Path
) -> None:
    (folder,) = prepare(
        tmp_path / "D", pairs="none", masking="none", duplicate_factor=3, sequence_length=(128,),
        max_predictions_per_seq=(20,), short_sequence_probability=0.0,
    )  # fmt: skip
    manifest = verify_folder(folder)
    assert manifest.pair_label_name is None
    assert manifest.train_totals.predictions == manifest.train_totals.label_1 == 0
    for block in blocks_of(folder):
        assert block.pair_label is None
        assert block.segment_a_length.tolist() == block.length.tolist()
        assert not block.num_predictions.any()
        assert len(block.masked_lm_ids) == len(block.masked_lm_positions) == 0
    text = corpus.read_text(encoding="utf-8").split()
    expected = Counter(
        (text[place + 1], text[place + 3])
        for place, word in enumerate(text)
        if word == "Document" and text[place + 2] == "sentence"
    )
    found = sentences_in(folder, "train") + sentences_in(folder, "valid")
    assert found == Counter({sentence: 3 * count for sentence, count in expected.items()})
    _, row = show_rows(folder, "train", 0, 1, False)
    assert "A: [CLS]" in row
    assert "\nB: " not in row
    assert "0 predictions" in row
    lines = "\n".join(describe_folder(folder))
    assert "predictions         none: the reader masks" in lines
    assert "next_sentence_label" not in lines


def test_every_document_is_used_in_both_kinds_of_pairs(
    prepare: Prepare, tmp_path: Path, corpus: Path
) -> None:
    documents = {
        line.split()[1] for line in corpus.read_text(encoding="utf-8").splitlines() if line
    }
    for pairs in ("next_sentence", "sentence_order"):
        (folder,) = prepare(
            tmp_path / pairs, pairs=pairs, masking="none", sequence_length=(300,),
            max_predictions_per_seq=(20,),
        )  # fmt: skip
        found = sentences_in(folder, "train") + sentences_in(folder, "valid")
        assert {document for document, _ in found} == documents


def test_balanced_labels_are_half_random(prepare: Prepare, tmp_path: Path) -> None:
    shares = {}
    for random_next in ("google", "balanced"):
        (folder,) = prepare(
            tmp_path / random_next, random_next=random_next, duplicate_factor=40,
            sequence_length=(16,), max_predictions_per_seq=(3,),
        )  # fmt: skip
        totals = verify_folder(folder).train_totals
        shares[random_next] = totals.label_1 / totals.rows
    assert shares["google"] > 0.6  # most sentences fill a row of 16
    assert abs(shares["balanced"] - 0.5) < 5 * np.sqrt(0.25 / totals.rows)


def test_weights_say_how_often_the_documents_of_an_input_are_used(
    tmp_path: Path, vocabulary_path: Path
) -> None:
    inputs = []
    for name in ("one", "two", "three"):
        folder = tmp_path / name
        folder.mkdir()
        text = text_of(300, seed=len(inputs)).replace("Document", f"{name} document")
        (folder / "a.txt").write_text(text, encoding="utf-8")
        inputs.append(str(folder))
    options = ShardOptions(
        (128,), (20,), duplicate_factor=2, pairs="none", masking="none", valid_fraction=0,
        short_sequence_probability=0,
    )  # fmt: skip
    preparation = Preparation(
        inputs, vocabulary_path, load_vocabulary(vocabulary_path), tmp_path / "D", options,
        weights=[1, 2.5, 0.25],
    )  # fmt: skip
    with SerialExecutor() as executor:
        (folder,) = prepare_shards(preparation, executor)
    manifest = verify_folder(folder)
    assert [entry.weight for entry in manifest.inputs.given] == [1, 2.5, 0.25]
    pieces = load_vocabulary(folder / "vocab.txt").pieces
    text = " ".join(pieces[token] for block in blocks_of(folder) for token in block.tokens)
    words = text.replace(" ##", "").split()
    uses = Counter(
        words[place - 1]
        for place, word in enumerate(words)
        if word == "document" and words[place + 2 : place + 4] == ["sentence", "0"]
    )
    assert uses["one"] == 600
    assert uses["two"] == 1500
    # Half a use is one for half of the documents, drawn for each: 5 deviations of 300 coins.
    assert abs(uses["three"] - 150) < 5 * np.sqrt(300 * 0.25)
    for weights, message in (([1, 2], "--weights has 2 values, --input 3"), ([1, 0, 1], "above 0")):
        with pytest.raises(UsageError, match=message), SerialExecutor() as executor:
            prepare_shards(replace(preparation, weights=weights), executor)


def test_memory_decides_buckets_and_groups() -> None:
    from data_prep.contract.manifest import VocabularyEntry

    vocabulary = VocabularyEntry("", 100, True, True)
    plain = ShardOptions((128,), (20,))

    def plan_of(options: ShardOptions, path: str, size: int, weight: float) -> Plan:
        files = files_of({path: size}, weight)
        return make_plan(options, vocabulary, summary_of(files, [path], [0, 1]), files)

    def buckets(memory: int, size: int, path: str = "a.jsonl.gz") -> int:
        options = replace(plain, memory_per_worker=memory)
        return plan_of(options, path, size, 1.0).num_buckets

    assert buckets(1 << 30, 1 << 20) == 5  # five times as much text as bytes
    assert buckets(1 << 30, 1 << 31) == 1024
    little, much = buckets(512 << 20, 1 << 40), buckets(1 << 34, 1 << 40)
    assert little > 2 * much > 2 * 1024

    def most(options: ShardOptions, weight: float = 1.0) -> int:
        return plan_of(options, "a.txt.gz", 1, weight).most_group_tokens

    assert most(replace(plain, memory_per_worker=1 << 29)) * 2 < most(plain)
    assert most(replace(plain, duplicate_factor=40)) == most(plain, 8.0) < most(plain) / 3
    with pytest.raises(UsageError, match="--memory-per-worker 1000: must lie between 536870912"):
        check_options(replace(plain, memory_per_worker=1000))


@pytest.mark.parametrize("rule", ["words", "sentencex", "blingfire:en", "rules:en", ""])
def test_unknown_ways_to_cut_sentences_are_refused(rule: str) -> None:
    with pytest.raises(UsageError, match="must be rules, lines, blingfire, nupunkt, or sentencex"):
        check_options(ShardOptions((128,), (20,), sentences=rule))


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ((3, 11), r"needs the package nupunkt \(.+\): pip install nupunkt, or take"),
        ((3, 10), r"needs Python 3\.11 or later, .* this is Python \d.*, or take"),
    ],
)
def test_a_package_that_is_not_installed_is_named(
    python: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences.splitter.cache_clear()
    monkeypatch.setitem(sys.modules, "nupunkt", None)
    monkeypatch.setattr(sentences, "sys", SimpleNamespace(version_info=python))
    with pytest.raises(UsageError, match=rf"--sentences nupunkt {expected} --sentences rules\.$"):
        check_options(ShardOptions((128,), (20,), sentences="nupunkt"))


def test_korean_is_cut_by_its_own_package_and_not_into_jamo(
    tmp_path: Path, prepare: Prepare
) -> None:
    from data_prep.pieces.vocabulary_training import (
        VocabularyOptions,
        count_words,
        train_vocabulary,
    )

    sentences = ["\uc601\ud654\uac00 \uc7ac\ubbf8\uc788\ub2e4.", "\ubc30\uc6b0\uac00 \uc88b\ub2e4!"]
    text = "\n\n".join(" ".join(sentences * 3) + f" {number}." for number in range(20))
    path = tmp_path / "ko.txt"
    path.write_text(text, encoding="utf-8")
    options = VocabularyOptions(size=60, strip_accents=False)
    pieces = train_vocabulary(count_words([text]), options)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    preparation = Preparation(
        [str(path)], vocabulary, load_vocabulary(vocabulary, True, False), tmp_path / "D",
        ShardOptions((32,), (5,), duplicate_factor=1, masking="none", pairs="none",
                     sentences="sentencex:ko", valid_fraction=0.1),
    )  # fmt: skip
    with SerialExecutor() as executor:
        (folder,) = prepare_shards(preparation, executor)
    verify_folder(folder)
    shown = [pieces[token] for block in blocks_of(folder) for token in block.tokens]
    assert "[UNK]" not in shown
    assert "".join(shown).replace("##", "").count("\uc601\ud654\uac00") >= 50
    assert not any("\u1100" <= character <= "\u11ff" for piece in shown for character in piece)
