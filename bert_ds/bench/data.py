"""`bert-ds bench data`: measures rows per second from shards to the tensors of micro batches.

All ways take turns (A B C, C B A, A B C, ...) in one process, each of them resuming its own stream,
so that a machine whose speed drifts favours none; results are medians. A single thread reads, as in
training. After the first turns the shards are in the system's page cache, if it can hold them.

`packed` micro batches have rows end to end, for attention without padding; `padded` ones have rows
of equal length. For a dataset that was prepared with `--masking none` rows are also masked as they
are read, which shows what masking costs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert_ds.config.batch import BatchPlan
from bert_ds.data.collate import collate, pack
from bert_ds.data.masks import is_left_to_the_reader
from bert_ds.data.reader import open_dataset
from bert_ds.data.row_copy import cut_rows
from bert_ds.data.rows import RowStream, StreamSpec, UpdateRows
from bert_ds.errors import DataError
from data_prep.contract.format import Block
from data_prep.contract.manifest import Manifest
from data_prep.contract.masking import MaskingKind

UPDATE_ROWS = 1024
"""Rows per update and rank."""
MICRO_BATCH_TOKENS = 8192
"""Tokens of a micro batch of full rows: 64 rows of 128."""
TURN_TOKENS = 1 << 23
"""Tokens of full rows per turn: 65,536 rows of 128; fewer with a small dataset."""
_SEED = 42


@dataclass(frozen=True)
class Measurement:
    """The throughput of one way."""

    batches: str
    """"packed" or "padded"."""
    masking: str | None
    """"token" or "whole_word" if rows are masked as they are read, else None."""
    rows_per_s: float
    """Median over the turns."""
    tokens_per_s: float
    """Real tokens at that rate."""

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.batches + (f", masked on the way ({self.masking})" if self.masking else "")


@dataclass(frozen=True)
class DataBench:
    """All measurements, and what they were taken on."""

    data: str
    """The dataset folder."""
    sequence_length: int
    """Tokens of its longest rows."""
    num_rows: int
    """Rows of its training split."""
    mean_length: float
    """Mean tokens of a row."""
    micro_batch_size: int
    """Rows of a micro batch."""
    turn_rows: int
    """Rows per turn."""
    repeats: int
    """Turns that count, after one that does not."""
    num_cores: int
    """Cores that this process may use."""
    measurements: tuple[Measurement, ...]
    """One measurement per way."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Way:
    """One way to make micro batches, with its own stream."""

    batches: str
    """"packed" or "padded"."""
    masking: MaskingKind | None
    """How rows are masked as they are read, if they are."""
    updates: Iterator[UpdateRows]
    """The rows, in an endless stream."""

    def read(self, num_rows: int, micro_batch_size: int) -> float:
        """Make the micro batches of some rows, and return the seconds that it took."""
        make: Callable[[Block], object] = pack if self.batches == "packed" else collate
        started = time.perf_counter()
        for _ in range(num_rows // UPDATE_ROWS):
            for rows in cut_rows(next(self.updates).rows, micro_batch_size):
                make(rows)
        return time.perf_counter() - started


def bench_data(folder: Path, repeats: int) -> DataBench:
    """Time every way `repeats` times.

    Args:
        folder: a dataset folder such as D/seq128.
        repeats: turns that count, after one that does not.

    Raises:
        DataError: there is no dataset, or it is broken or has no training rows.
    """
    manifest = open_dataset(folder)
    totals = manifest.totals("train")
    if not totals.rows:
        raise DataError(f"dataset {folder} has no training rows to read")
    length = manifest.sequence_length
    micro_batch_size = max(1, MICRO_BATCH_TOKENS // length)
    turn_rows = min(TURN_TOKENS // length, totals.rows)
    turn_rows = -(-turn_rows // UPDATE_ROWS) * UPDATE_ROWS
    with ExitStack() as stack:
        ways = _open_ways(folder, manifest, micro_batch_size, stack)
        times: list[list[float]] = [[] for _ in ways]
        for number in range(repeats + 1):
            turn = list(zip(ways, times, strict=True))
            for way, taken in turn if number % 2 else reversed(turn):
                seconds = way.read(turn_rows, micro_batch_size)
                if number:
                    taken.append(seconds)
    mean_length = totals.tokens / totals.rows
    rates = [turn_rows / statistics.median(taken) for taken in times]
    return DataBench(
        data=str(folder),
        sequence_length=length,
        num_rows=totals.rows,
        mean_length=mean_length,
        micro_batch_size=micro_batch_size,
        turn_rows=turn_rows,
        repeats=repeats,
        num_cores=len(os.sched_getaffinity(0)),
        measurements=tuple(
            Measurement(way.batches, way.masking, rate, rate * mean_length)
            for way, rate in zip(ways, rates, strict=True)
        ),
    )


def _open_ways(
    folder: Path, manifest: Manifest, micro_batch_size: int, stack: ExitStack
) -> list[_Way]:
    batch = BatchPlan(UPDATE_ROWS, micro_batch_size, max(1, UPDATE_ROWS // micro_batch_size), 1)
    maskings: tuple[MaskingKind | None, ...] = (None,)
    if is_left_to_the_reader(manifest):
        maskings = (None, "token", "whole_word")
    ways = []
    for masking in maskings:
        spec = StreamSpec(folder, manifest, _SEED, batch, 0, masking)
        for batches in ("packed", "padded"):
            stream = RowStream(spec)
            stack.callback(stream.close)
            ways.append(_Way(batches, masking, stream.updates(0)))
    return ways


def as_text(bench: DataBench) -> str:
    """Return the result as a table."""
    lines = [
        f"{bench.data}: {bench.num_rows:,} rows of up to {bench.sequence_length} tokens "
        f"({bench.mean_length:.1f} on average), micro batches of {bench.micro_batch_size}, "
        f"{bench.num_cores} cores; medians of {bench.repeats} turns of {bench.turn_rows:,} rows",
        "",
        f"{'micro batches':40}{'rows/s':>12}{'M tokens/s':>12}",
    ]
    lines += [
        f"{each.name:40}{each.rows_per_s:12,.0f}{each.tokens_per_s / 1e6:12.1f}"
        for each in bench.measurements
    ]
    return "\n".join(lines)
