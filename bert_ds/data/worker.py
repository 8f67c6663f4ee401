"""A reader process: `python -m bert_ds.data.worker`, started by `bert_ds.data.processes`.

It takes a pickled `ReadingTask` from its standard input and writes frames to its standard output.
When its standard input ends, its parent has closed it or is gone, and it ends at once. It never
imports torch.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
from io import BufferedWriter

from bert_ds.data.frames import Frame, ReadingTask, write_frame
from bert_ds.data.rows import RowStream
from bert_ds.errors import DataError


class _Warnings(logging.Handler):
    """Keeps what is logged, for the training process to log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record.getMessage())

    def taken(self) -> tuple[str, ...]:
        """What has come in since the last call."""
        taken, self._kept = tuple(self._kept), []
        return taken


def main() -> None:
    """Make frames until the parent has enough."""
    frames = _claim_stdout()
    task: ReadingTask = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings = _Warnings()
    logging.getLogger().addHandler(warnings)
    try:
        for update in RowStream(task.spec).updates(task.position, task.every):
            write_frame(frames, Frame(update=update, warnings=warnings.taken()))
    except DataError as err:
        write_frame(frames, Frame(error=str(err), warnings=warnings.taken()))
    except BrokenPipeError:
        os._exit(0)  # the parent is gone


def _claim_stdout() -> BufferedWriter:
    """The pipe to the parent; whatever prints from now on prints to standard error."""
    sys.stdout.flush()
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipe


def _end_with_parent() -> None:
    """End this process, whatever it is doing, when its standard input ends."""
    while os.read(0, 1):
        continue
    os._exit(0)


if __name__ == "__main__":
    main()
