"""The errors of `data_prep` that a user can correct.

Every message holds what is wrong, the values, the rule, and how to fix it. Anything that is not one
of these classes is a fault of `data_prep` itself.
"""


class DataPrepError(Exception):
    """Base of all errors that a user can correct. `exit_code` is what the command exits with."""

    exit_code = 1


class UsageError(DataPrepError):
    """The command was asked for something it cannot do."""

    exit_code = 2


class InputError(DataPrepError):
    """The text that was given cannot be used."""


class DataError(DataPrepError):
    """A dataset folder is broken, or a shard does not match its manifest."""


class OutputError(DataPrepError):
    """The output cannot be written."""
