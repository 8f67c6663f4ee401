"""A small corpus, a vocabulary, and a way to run a preparation in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from data_prep.contract.wordpiece import load_vocabulary
from data_prep.inspect.recipes import read_phases
from data_prep.inspect.stats import log_result
from data_prep.pieces.vocabulary_training import VocabularyOptions, count_words, train_vocabulary
from data_prep.running.executor import Executor, SerialExecutor, Stage
from data_prep.stages.job import Job
from data_prep.stages.plan import ShardOptions
from data_prep.stages.prepare import prepare_shards
from data_prep.stages.work_folder import Preparation
from data_prep.text.input_files import InputFiles

WORDS = (
    "the of and to in that it is was for on are as with his they at be this have from or one had "
    "by words but not what all were we when your can said there use an each which she do how their "
    "if will up other about out many then them these so some her would make like him into time has "
    "look two more write go see number no way could people my than first water been call who oil"
).split()


def text_of(num_documents: int, seed: int = 0, most_sentences: int = 12) -> str:
    """Documents of random sentences, separated by blank lines; no two sentences are equal."""
    generator = np.random.default_rng(seed)
    documents = []
    for document in range(num_documents):
        sentences = []
        for sentence in range(int(generator.integers(1, most_sentences + 1))):
            words = generator.choice(WORDS, int(generator.integers(3, 12))).tolist()
            sentences.append(f"Document {document} sentence {sentence} {' '.join(words)}.")
        documents.append("\n".join(sentences))
    return "\n\n".join(documents) + "\n"


def files_of(sizes: dict[str, int], weight: float = 1.0) -> InputFiles:
    """Input files that are not there, by name and size; the digest of each is its number."""
    names = [name.encode() for name in sizes]
    digests = np.zeros((len(sizes), 32), np.uint8)
    digests[:, 0] = np.arange(len(sizes))
    return InputFiles(
        np.frombuffer(b"".join(names), np.uint8),
        np.cumsum([len(name) for name in names]),
        np.array(list(sizes.values()), np.int64),
        np.zeros(len(sizes), np.int64),
        np.full(len(sizes), weight),
        digests,
    )


def _results(work: Path) -> set[tuple[str, int]]:
    """Name and inode of the results in a work folder."""
    paths = [*(work / "map").glob("*.json"), *(work / "reduce").glob("*.json")]
    return {(path.name, path.stat().st_ino) for path in paths}


class StoppingExecutor(SerialExecutor):
    """Stops the preparation before task number `left`, as a kill would."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.finished = 0
        """Tasks that were looked at, and done where they were not done already."""
        self.done_now = 0
        """Tasks that wrote a result."""

    def run(self, stage: Stage) -> None:
        def counted(job: Job, item: object) -> None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            before = _results(job.work)
            stage.function(job, item)
            self.finished += 1
            self.done_now += _results(job.work) != before

        super().run(replace(stage, function=counted))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of 60 documents."""
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(text_of(60), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def vocabulary_path(corpus: Path) -> Path:
    """An uncased vocabulary of the corpus; whole words for the most part."""
    counts = count_words([corpus.read_text(encoding="utf-8")])
    path = corpus.parent / "vocab.txt"
    pieces = train_vocabulary(counts, VocabularyOptions(size=250))
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


Prepare = Callable[..., list[Path]]


@pytest.fixture
def prepare(corpus: Path, vocabulary_path: Path) -> Prepare:
    """Runs a preparation; keyword arguments are those of `ShardOptions`."""

    def run(
        output_dir: Path,
        inputs: list[Path] | None = None,
        executor: Executor | None = None,
        task_bytes: int | None = None,
        vocabulary: Path = vocabulary_path,
        **options: object,
    ) -> list[Path]:
        defaults: dict[str, object] = {
            "sequence_length": (64,),
            "max_predictions_per_seq": (10,),
            "duplicate_factor": 2,
            "valid_fraction": 0.2,
            "rows_per_block": 16,
            "blocks_per_shard": 4,
        }
        preparation = Preparation(
            inputs=[str(path) for path in inputs or [corpus]],
            vocabulary_path=vocabulary,
            vocabulary=load_vocabulary(vocabulary),
            output_dir=output_dir,
            options=ShardOptions(**{**defaults, **options}),
            task_bytes=task_bytes,
        )
        with executor or SerialExecutor() as used:
            return prepare_shards(preparation, used, partial(log_result, phases=read_phases(None)))

    return run


@pytest.fixture
def folder_bytes() -> Callable[[Path], dict[str, bytes]]:
    """Reads a folder: the bytes of every file, by its path in the folder."""

    def read(folder: Path) -> dict[str, bytes]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return read


@pytest.fixture
def folder(prepare: Prepare, tmp_path: Path) -> Path:
    """A dataset folder of several shards."""
    return prepare(tmp_path / "D")[0]
