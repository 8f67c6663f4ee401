"""Who runs the tasks: this process, worker processes, or the ranks of an MPI job.

A task is a module-level function of the work folder and an item; it leaves its result in files, so
every executor gives the same bytes and a task may be run again. Processes are spawned, never
forked: a fork after the tokeniser's thread pool started hangs. Whoever is at work on a task says so
in a file, by which the next run can name it where this one was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from data_prep.contract.errors import DataPrepError, UsageError
from data_prep.running.files import output_error
from data_prep.running.memory import return_large_blocks

RUNNING_NAME = "running"
"""Folder in the work folder: a file for every task that is being done, with its description."""
CLAIMS_NAME = "claims"
"""Folder in the work folder: what the ranks of an MPI job have taken and done."""

Item = TypeVar("Item")
Result = TypeVar("Result")

# Sizes of the job as Open MPI, MPICH (Hydra) and Slurm's srun announce it.
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")


class Executor(Protocol):
    """Runs functions on workers; a context manager."""

    is_root: bool
    """Whether this process speaks to the user."""
    size: int
    """Number of workers."""

    def __enter__(self) -> Executor: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def on_root(self, function: Callable[[], Result]) -> Result:
        """Calls `function` in one process; all get its result or its error."""
        ...

    def gather(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[Item], None],
    ) -> list[Result]:
        """Call `function(item)` for all items on the workers.

        Args:
            function: does one item; of a module, so that processes find it.
            items: what is to be done; under MPI those of the root count.
            done: called in the root process for items that are done, under MPI for its own.

        Returns:
            The results in the order of the items; nothing but in the root process.
        """
        ...

    def run(
        self,
        function: Callable[[Path, Item], None],
        work: Path,
        items: Sequence[Item],
        done: Callable[[Item], None],
        describe: Callable[[Item], str] = str,
    ) -> None:
        """Calls `function(work, item)` for all items, and `done(item)` in the root process.

        Args:
            function: does one item.
            work: the work folder.
            items: what is to be done, the same list in every process.
            done: hears of items that are done; under MPI on the root of those of all ranks.
            describe: an item in words, for the message where its worker died.
        """
        ...


class SerialExecutor:
    """Runs everything in this process, in order."""

    is_root = True
    size = 1

    def __enter__(self) -> SerialExecutor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return

    def on_root(self, function: Callable[[], Result]) -> Result:
        """Calls `function`."""
        return function()

    def gather(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[Item], None],
    ) -> list[Result]:
        """Call `function` for one item after the other."""
        results = []
        for item in items:
            results.append(function(item))
            done(item)
        return results

    def run(
        self,
        function: Callable[[Path, Item], None],
        work: Path,
        items: Sequence[Item],
        done: Callable[[Item], None],
        describe: Callable[[Item], str] = str,
    ) -> None:
        """Calls `function` for one item after the other."""
        for item in items:
            run_task(function, work, item, describe(item))
            done(item)


class ProcessExecutor(SerialExecutor):
    """Runs tasks in spawned processes that end with this one.

    Args:
        size: number of processes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool: ProcessPoolExecutor | None = None
        self._others = {child.pid for child in multiprocessing.active_children()}

    def __enter__(self) -> ProcessExecutor:
        """Starts the processes, which import what they need while this one plans."""
        self._submit(_nothing)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is None:
            return
        if kind is not None:
            for child in multiprocessing.active_children():
                if child.pid not in self._others:
                    child.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(
        self,
        function: Callable[[Path, Item], None],
        work: Path,
        items: Sequence[Item],
        done: Callable[[Item], None],
        describe: Callable[[Item], str] = str,
    ) -> None:
        """Gives items to whichever process is free.

        Raises:
            DataPrepError: a process died.
        """
        with self._deaths_reported(lambda: was_running(work)):
            futures = {
                self._submit(run_task, function, work, item, describe(item)): item for item in items
            }
            for future in as_completed(futures):
                future.result()
                done(futures[future])

    def gather(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[Item], None],
    ) -> list[Result]:
        """Give items to the processes that are free; a single one is done here, at once.

        Raises:
            DataPrepError: a process died.
        """
        if len(items) < 2:  # the processes may still be importing
            return super().gather(function, items, done)
        with self._deaths_reported(list):
            futures = {self._submit(function, item): item for item in items}
            for future in as_completed(futures):
                future.result()
                done(futures[future])
            return [future.result() for future in futures]

    @contextmanager
    def _deaths_reported(self, at_work: Callable[[], list[str]]) -> Iterator[None]:
        """Raise DataPrepError where a process dies; `at_work` says what was being done."""
        try:
            yield
        except BrokenProcessPool as err:
            running = at_work()
            tasks = f" at work on: {'; '.join(running)}" if running else ""
            raise DataPrepError(
                f"a worker process died: it was killed, perhaps for want of memory, with "
                f"{self.size} processes{tasks}. Finished tasks are kept: run the same command "
                "again, with a smaller -j if memory is short."
            ) from err

    def _submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Hands a call to the pool, which is made for the first."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.size, multiprocessing.get_context("spawn"), _start_worker
            )
        with _interrupts_held():
            return self._pool.submit(function, *arguments)


def _nothing() -> None:
    """A task that has the processes started."""


def run_task(
    function: Callable[[Path, Item], None], work: Path, item: Item, description: str
) -> None:
    """Does one item; a file says so for as long as it takes."""
    path = work / RUNNING_NAME / f"{socket.gethostname()}-{os.getpid()}"
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(description, encoding="utf-8", errors="backslashreplace")
    except OSError as err:
        raise output_error(path, err) from err
    function(work, item)
    path.unlink(missing_ok=True)


def was_running(work: Path) -> list[str]:
    """What tasks were being done when their workers ended, in words."""
    paths = sorted((work / RUNNING_NAME).glob("*"))
    found = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    return [description for description in found if description]


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Holds Ctrl-C back; processes started meanwhile never see it: it is the parent's business.

    The mask is what the processes inherit. It holds for one thread only: a signal that another
    thread takes would still interrupt the main thread half-way through starting a process, so the
    handler is exchanged too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if held:
            signal.raise_signal(signal.SIGINT)


def _start_worker() -> None:
    """Makes a spawned process end with its parent, and imports what tasks need."""
    return_large_blocks()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for module in ("data_prep.stages.map_stage", "data_prep.stages.reduce_stage"):
        import_module(module)


def _end_with_parent() -> None:
    """Ends this process once its parent is gone, also when the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def mpi_size(environ: Mapping[str, str]) -> int:
    """Number of ranks the launcher started; 1 where there is none."""
    return max(int(environ.get(name, "1")) for name in _MPI_SIZES)


def make_executor(processes: int | None, environ: Mapping[str, str] = os.environ) -> Executor:
    """The executor for this process.

    Args:
        processes: as the user asked with -j; None takes every usable core.
        environ: environment variables, which tell of MPI.

    Raises:
        UsageError: MPI without `mpi4py`, or with -j; -j below 1.
    """
    if processes is not None and processes < 1:
        raise UsageError(f"-j {processes}: must be at least 1.")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return_large_blocks()
    if mpi_size(environ) > 1:
        return _mpi_executor(processes, environ)
    size = processes or len(os.sched_getaffinity(0))
    return ProcessExecutor(size) if size > 1 else SerialExecutor()


def _mpi_executor(processes: int | None, environ: Mapping[str, str]) -> Executor:
    """The executor of a rank; UsageError where it cannot be."""
    if processes is not None and processes > 1:
        raise UsageError(
            f"-j {processes} under MPI: each of the {mpi_size(environ)} ranks is one worker; "
            "leave -j out and start more ranks."
        )
    if "OMPI_COMM_WORLD_SIZE" in environ:  # a wheel of mpi4py may find MPICH first
        os.environ.setdefault("MPI4PY_MPIABI", "openmpi")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as err:
        raise UsageError(
            f"started by MPI with {mpi_size(environ)} ranks, but mpi4py does not load ({err}); "
            "pip install mpi4py, or start it without MPI and with -j."
        ) from err
    if MPI.COMM_WORLD.Get_size() != mpi_size(environ):
        raise UsageError(
            f"the launcher started {mpi_size(environ)} ranks, mpi4py sees "
            f"{MPI.COMM_WORLD.Get_size()}: it uses another MPI library than mpiexec; start it "
            "with that library's mpiexec."
        )
    from data_prep.running.mpi_executor import MpiExecutor

    return MpiExecutor(MPI.COMM_WORLD)
