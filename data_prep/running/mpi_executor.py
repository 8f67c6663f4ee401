"""The ranks of an MPI job as workers; see `data_prep.running.executor`."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from data_prep.contract.errors import DataPrepError
from data_prep.running.executor import CLAIMS_NAME, Item, JobT, Result, Stage, run_task
from data_prep.running.files import make_folder, output_error

_DONE, _FAILED = ".done", "failed"  # names of files among the claims


class MpiExecutor:
    """Runs tasks on all ranks of an MPI job; a rank that is free takes the next item.

    An item is taken by creating a file in the work folder, which only one rank can; so no rank
    serves the others, and none waits while another is at work.

    Args:
        communicator: an `mpi4py` communicator.
    """

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.size = int(communicator.Get_size())
        self.is_root = communicator.Get_rank() == 0

    def __enter__(self) -> MpiExecutor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all ranks where one has an error that the others do not know of."""
        if isinstance(error, KeyboardInterrupt):
            self._communicator.Abort(130)
        elif error is not None and not isinstance(error, DataPrepError):
            traceback.print_exception(error)
            sys.stderr.flush()
            self._communicator.Abort(1)

    def on_root(self, function: Callable[[], Result]) -> Result:
        """Call `function` on rank 0; every rank gets the result or the error."""
        answer: tuple[Any, DataPrepError | None] = (None, None)
        if self.is_root:
            try:
                answer = (function(), None)
            except DataPrepError as err:
                answer = (None, err)
        result, error = self._communicator.bcast(answer, root=0)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # a broadcast carries any type

    def gather(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[Item], None],
    ) -> list[Result]:
        """Divide the items among the ranks in turn; each rank does its own.

        See `Executor.gather`.

        Raises:
            DataPrepError: on all ranks, the error of one of them.
        """
        shares = [items[rank :: self.size] for rank in range(self.size)] if self.is_root else None
        results: list[Result] = []
        error: DataPrepError | None = None
        try:
            for item in self._communicator.scatter(shares, root=0):
                results.append(function(item))
                if self.is_root:
                    done(item)
        except DataPrepError as err:
            error = err
        self._raise_of_any(error)
        gathered = self._communicator.gather(results, root=0)
        if not self.is_root:
            return []
        return [gathered[number % self.size][number // self.size] for number in range(len(items))]

    def _raise_of_any(self, error: DataPrepError | None) -> None:
        """Raise the error of the first rank that has one, on all ranks."""
        errors = [err for err in self._communicator.allgather(error) if err is not None]
        if errors:
            raise errors[0]

    def run(self, stage: Stage[JobT, Item]) -> None:
        """Do items until none is left; an error on any rank ends the others after their item.

        Raises:
            DataPrepError: on all ranks, the error of one of them.
        """
        # Any rank may take any item, and the only thing they share is the work folder. A claim is
        # a file created with O_EXCL, so exactly one rank gets an item; the folder of the claims
        # has a new name each time, so that claims of a killed run count for nothing. A rank that
        # fails leaves a file, too: the others look for it before each item. Then all ranks must
        # come to the collective call below, or the ranks that wait there never return.
        claims = stage.job.work / CLAIMS_NAME / self.on_root(lambda: uuid.uuid4().hex)
        self.on_root(lambda: make_folder(claims))
        reported: set[int] = set()
        error: DataPrepError | None = None
        try:
            for number, item in enumerate(stage.items):
                if (claims / _FAILED).exists():
                    break
                if not _create(claims / str(number)):
                    continue
                run_task(stage.function, stage.job, item, stage.describe(item))
                _create(claims / f"{number}{_DONE}")
                if self.is_root:
                    self._report(claims, stage, reported)
        except DataPrepError as err:
            _create(claims / _FAILED)
            error = err
        self._raise_of_any(error)
        if self.is_root:
            self._report(claims, stage, reported)
            shutil.rmtree(claims, ignore_errors=True)

    def _report(self, claims: Path, stage: Stage[JobT, Item], reported: set[int]) -> None:
        """Call `stage.done` for the items that any rank has done since the last report."""
        finished = {int(path.stem) for path in claims.glob(f"*{_DONE}")}
        for number in sorted(finished - reported):
            stage.done(stage.items[number])
        reported |= finished


def _create(path: Path) -> bool:
    """Make an empty file; return False where it exists already.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    except OSError as err:
        raise output_error(path, err) from err
    return True
