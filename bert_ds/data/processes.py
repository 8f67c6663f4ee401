"""Reader processes of one rank: updates are dealt out in turn and come back in order.

Process p of N makes the updates p, p + N, p + 2 N, ...; each waits, with one update made, until its
pipe is read. The processes are started anew, never forked, so that they hold nothing of the
training process. They take no signals: launchers signal whole process groups, and an update may
still be wanted then. They end when their standard input does, so also when the training process is
killed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader

from bert_ds.data.frames import ReadingTask, read_frame
from bert_ds.data.rows import StreamSpec, UpdateRows
from bert_ds.errors import DataError

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_PIPE_BYTES = 1 << 20  # as much as a user without privileges may ask for; Linux gives 64 KiB
_SECONDS_TO_END = 10.0


class ReaderProcesses:
    """Iterates over a rank's updates; the processes run until it is closed."""

    def __init__(self, spec: StreamSpec, position: int, count: int) -> None:
        """Start the processes.

        Args:
            spec: the stream.
            position: stream position of the first update.
            count: processes, at least 1.
        """
        self._is_closed = threading.Event()
        self._told: set[str] = set()
        self._next = 0
        self._workers = [_start() for _ in range(count)]
        for number, worker in enumerate(self._workers):
            first = position + number * spec.batch.train_batch_size
            _send(worker, ReadingTask(spec, first, count))

    def __iter__(self) -> Iterator[UpdateRows]:
        return self

    def __next__(self) -> UpdateRows:
        """The next update; waits for it.

        Raises:
            DataError: what went wrong while it was read, or its process has ended.
            StopIteration: the processes were closed meanwhile.
        """
        worker = self._workers[self._next]
        frame = read_frame(_frames_of(worker)) if not self._is_closed.is_set() else None
        if self._is_closed.is_set():
            raise StopIteration
        if frame is None:
            raise DataError(self._describe_end(worker))
        for warning in frame.warnings:
            if warning not in self._told:
                self._told.add(warning)
                log.warning("%s", warning)
        if frame.error is not None:
            raise DataError(frame.error)
        assert frame.update is not None, "a frame holds rows or an error"
        self._next = (self._next + 1) % len(self._workers)
        return frame.update

    def close(self) -> None:
        """End the processes, within seconds; any thread may call it, also while another waits."""
        self._is_closed.set()
        for worker in self._workers:
            worker.kill()  # they hold nothing that could be lost
        for worker in self._workers:
            try:
                worker.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:  # the kernel holds it, in a read that never ends
                log.warning("reader process %d does not end; left behind", worker.pid)
                continue
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # of a task that was never taken
                        pipe.close()

    def _describe_end(self, worker: subprocess.Popen[bytes]) -> str:
        try:
            code = worker.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            how = "has closed its pipe"
        else:
            how = f"was ended by signal {-code}" if code < 0 else f"has ended with code {code}"
        return (
            f"reader process {self._next} of {len(self._workers)} (pid {worker.pid}) {how} while "
            "it read rows; what it said stands above, a kill by the system for want of memory "
            "stands in the kernel's log. Start the same command again, perhaps with fewer "
            "data.reader_processes"
        )


def _start() -> subprocess.Popen[bytes]:
    # A new process inherits which signals its parent's thread blocks.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        worker = subprocess.Popen(
            [sys.executable, "-m", "bert_ds.data.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # one core each, and the modules that this process would find
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    # Where it is refused (not Linux, or the user's pipes are too many) pipes are slower, no more.
    with suppress(AttributeError, OSError):
        fcntl.fcntl(_frames_of(worker), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return worker


def _send(worker: subprocess.Popen[bytes], task: ReadingTask) -> None:
    """Give a process its task; its input stays open, for its end tells the process to end."""
    assert worker.stdin is not None, "it was started with a pipe"
    with suppress(BrokenPipeError):  # it has ended already, which is told when its rows are due
        worker.stdin.write(pickle.dumps(task))
        worker.stdin.flush()


def _frames_of(worker: subprocess.Popen[bytes]) -> BufferedReader:
    assert isinstance(worker.stdout, BufferedReader), "it was started with a pipe"
    return worker.stdout
