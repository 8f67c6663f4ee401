"""The errors that a user of `bert_ds` can cause and repair.

Every message has what is wrong, the values, the rule, and the way out. Anything that is not one of
these classes (an `AssertionError`, a `KeyError`) is a fault of `bert_ds` itself.
"""

import contextlib
from collections.abc import Iterator


class BertDsError(Exception):
    """The base of all errors that a user can repair."""

    exit_code = 1
    """Exit code of the command."""


class ConfigError(BertDsError):
    """A recipe, a `--set`, a DeepSpeed JSON or a combination of them is wrong."""

    exit_code = 2


class DataError(BertDsError):
    """A dataset folder does not fit the run, or a shard does not match its manifest."""


class CheckpointError(BertDsError):
    """A checkpoint or a run folder cannot be used as asked."""


@contextlib.contextmanager
def as_wrong_settings() -> Iterator[None]:
    """Give errors about data and checkpoints the exit code of wrong settings.

    What is refused before training begins is not repaired by starting the same command again.
    """
    try:
        yield
    except (CheckpointError, DataError) as err:
        err.exit_code = ConfigError.exit_code
        raise


class LaunchError(BertDsError):
    """The processes of the run could not be brought together."""


class TrainingError(BertDsError):
    """Training cannot continue, for example because the loss is not a number."""


class DivergedError(TrainingError):
    """The loss is not a number, or the gradients overflow whatever the loss scale."""


class PeerError(BertDsError):
    """Another rank has failed and reports why; this one leaves the report to it."""

    def __init__(self, failed_rank: int, why: str = "", exit_code: int = 1) -> None:
        super().__init__(f"rank {failed_rank} has failed{': ' if why else ''}{why}")
        self.failed_rank = failed_rank
        self.exit_code = exit_code


class StopRequested(BertDsError):
    """The run was asked to stop, has saved its state, and resumes when started again."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: "try again later"
