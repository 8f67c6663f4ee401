"""Executors run the tasks: in this process, in worker processes, or on the ranks of an MPI job.

A task is a module-level function of a job and an item; it leaves its result in files, so every
executor gives the same bytes and a task may be run again. Processes are spawned, never forked: a
fork after the tokeniser's thread pool started hangs. While a task runs, a file describes it, so
that the next run can name what was running where this one was killed.
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
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from data_prep.contract.errors import DataPrepError, UsageError
from data_prep.running.files import output_error
from data_prep.running.memory import return_large_blocks

RUNNING_NAME = "running"
"""Folder in the work folder: a file for every task that is running, with its description."""
CLAIMS_NAME = "claims"
"""Folder in the work folder: what the ranks of an MPI job have taken and done."""


class Job(Protocol):
    """What the tasks of a preparation share, besides their items.

    A job is sent to worker processes with every task, so it pickles to little; equal jobs are those
    of the same preparation.
    """

    @property
    def work(self) -> Path:
        """The work folder."""
        ...


JobT = TypeVar("JobT", bound=Job)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Stage(Generic[JobT, Item]):
    """Tasks that an executor runs, in any order and on any worker."""

    function: Callable[[JobT, Item], None]
    """The function that does one item; defined in a module, so that other processes find it."""
    job: JobT
    """What the tasks share; the same in every process."""
    items: Sequence[Item]
    """What is to be done, the same list on all ranks."""
    done: Callable[[Item], None]
    """The function that the root process calls with each item that any worker has done."""
    describe: Callable[[Item], str] = str
    """The function that names an item, for the message where its worker died."""


# Sizes of the job as Open MPI, MPICH (Hydra) and Slurm's srun announce it.
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")


class Executor(Protocol):
    """Runs functions on workers; a context manager."""

    is_root: bool
    """Whether this process reports to the user."""
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
        """Call `function` in one process; all get its result or its error."""
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

    def run(self, stage: Stage[Any, Any]) -> None:
        """Do all items of a stage."""
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
        """Call `function`."""
        return function()

    def gather(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[Item], None],
    ) -> list[Result]:
        """Call `function` for one item after the other; see `Executor.gather`."""
        results = []
        for item in items:
            results.append(function(item))
            done(item)
        return results

    def run(self, stage: Stage[Any, Any]) -> None:
        """Do one item after the other."""
        for item in stage.items:
            run_task(stage.function, stage.job, item, stage.describe(item))
            stage.done(item)


class ProcessExecutor(SerialExecutor):
    """Runs tasks in spawned processes, which end with this one.

    Args:
        size: number of processes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool: ProcessPoolExecutor | None = None
        self._others = {child.pid for child in multiprocessing.active_children()}

    def __enter__(self) -> ProcessExecutor:
        """Start the processes, which import what they need while this one plans."""
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

    def run(self, stage: Stage[Any, Any]) -> None:
        """Give items to the processes that are free.

        Raises:
            DataPrepError: a process died.
        """
        with self._deaths_reported(lambda: was_running(stage.job.work)):
            futures = {
                self._submit(
                    _run_in_worker, stage.function, stage.job, item, stage.describe(item)
                ): item
                for item in stage.items
            }
            for future in as_completed(futures):
                future.result()
                stage.done(futures[future])

    def gather(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[Item], None],
    ) -> list[Result]:
        """Give items to the processes that are free; do a single one here, at once.

        See `Executor.gather`.

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
        """Raise DataPrepError where a process dies; `at_work` returns what was running."""
        try:
            yield
        except BrokenProcessPool as err:
            running = at_work()
            tasks = f" at work on: {'; '.join(running)}" if running else ""
            raise DataPrepError(
                f"a worker process died: it was killed, perhaps because memory ran out, with "
                f"{self.size} processes{tasks}. Finished tasks are kept: run the same command "
                "again, with a smaller -j if memory is short."
            ) from err

    def _submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Give a call to the pool, which is made for the first one."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.size, multiprocessing.get_context("spawn"), _start_worker
            )
        with _interrupts_held():
            return self._pool.submit(function, *arguments)


def _nothing() -> None:
    """Do nothing: a task whose only effect is that the processes start."""


def run_task(
    function: Callable[[JobT, Item], None], job: JobT, item: Item, description: str
) -> None:
    """Do one item; a file describes it for as long as it takes.

    Args:
        function: does the item.
        job: what all items share.
        item: what is to be done.
        description: what the file holds.
    """
    path = job.work / RUNNING_NAME / f"{socket.gethostname()}-{os.getpid()}"
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(description, encoding="utf-8", errors="backslashreplace")
    except OSError as err:
        raise output_error(path, err) from err
    function(job, item)
    path.unlink(missing_ok=True)


class _Worker:
    """The copy of the job that a worker process keeps between tasks.

    Every task brings a fresh copy of the job, in which nothing is loaded. The first one of a
    preparation stays, with the plan and the encoder that tasks have loaded into it.
    """

    job: Job | None = None


def _run_in_worker(
    function: Callable[[JobT, Item], None], job: JobT, item: Item, description: str
) -> None:
    """Do one item in a worker process, with the copy of the job that is kept there."""
    if _Worker.job != job:
        _Worker.job = job
    assert _Worker.job is not None
    run_task(function, _Worker.job, item, description)


def was_running(work: Path) -> list[str]:
    """Return the descriptions of the tasks that were running when their workers ended."""
    paths = sorted((work / RUNNING_NAME).glob("*"))
    found = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    return [description for description in found if description]


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back; processes that are started inside never get it, only their parent does.

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
    """Make a spawned process end with its parent, and import what tasks need."""
    return_large_blocks()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for module in ("data_prep.stages.map_stage", "data_prep.stages.reduce_stage"):
        import_module(module)


def _end_with_parent() -> None:
    """End this process once its parent is gone, also when the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def mpi_size(environ: Mapping[str, str]) -> int:
    """Return the number of ranks the launcher started; 1 where there is none."""
    return max(int(environ.get(name, "1")) for name in _MPI_SIZES)


def make_executor(processes: int | None, environ: Mapping[str, str] = os.environ) -> Executor:
    """Return the executor for this process.

    Args:
        processes: as the user asked with -j; None takes every usable core.
        environ: environment variables, by which MPI is found.

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
    """Return the executor of a rank; raise UsageError where MPI cannot be used."""
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
