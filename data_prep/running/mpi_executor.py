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
from data_prep.running.executor import CLAIMS_NAME, Item, Result, run_task
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
        """Ends all ranks where one meets what the others do not know of."""
        if isinstance(error, KeyboardInterrupt):
            self._communicator.Abort(130)
        elif error is not None and not isinstance(error, DataPrepError):
            traceback.print_exception(error)
            sys.stderr.flush()
            self._communicator.Abort(1)

    def on_root(self, function: Callable[[], Result]) -> Result:
        """Calls `function` on rank 0; every rank gets the result or the error."""
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
        """Share the items out in turn; each rank does its own.

        Raises:
            DataPrepError: on all ranks, what one of them met.
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

    def run(
        self,
        function: Callable[[Path, Item], None],
        work: Path,
        items: Sequence[Item],
        done: Callable[[Item], None],
        describe: Callable[[Item], str] = str,
    ) -> None:
        """Does items until none is left; an error on any rank ends the others after their item.

        Raises:
            DataPrepError: on all ranks, what one of them met.
        """
        claims = work / CLAIMS_NAME / self.on_root(lambda: uuid.uuid4().hex)
        self.on_root(lambda: make_folder(claims))
        reported: set[int] = set()
        error: DataPrepError | None = None
        try:
            for number, item in enumerate(items):
                if (claims / _FAILED).exists():
                    break
                if not _create(claims / str(number)):
                    continue
                run_task(function, work, item, describe(item))
                _create(claims / f"{number}{_DONE}")
                if self.is_root:
                    self._report(claims, items, reported, done)
        except DataPrepError as err:
            _create(claims / _FAILED)
            error = err
        self._raise_of_any(error)
        if self.is_root:
            self._report(claims, items, reported, done)
            shutil.rmtree(claims, ignore_errors=True)

    def _report(
        self, claims: Path, items: Sequence[Item], reported: set[int], done: Callable[[Item], None]
    ) -> None:
        """Call `done` for the items that any rank has done since the last report."""
        finished = {int(path.stem) for path in claims.glob(f"*{_DONE}")}
        for number in sorted(finished - reported):
            done(items[number])
        reported |= finished


def _create(path: Path) -> bool:
    """Makes an empty file; False where it is there already.

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
