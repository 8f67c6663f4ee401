"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bert_ds.errors import ConfigError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    """What `add_subparsers` returns."""


def add_recipe(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """Add `--recipe` and `--set`."""
    parser.add_argument(
        "--recipe", type=Path, required=is_required, metavar="RECIPE",
        help="a folder, or the name of a shipped recipe such as bert-large",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE",
        help="change a setting: model.hidden_dropout_prob=0, phases.0.total_steps=20, "
        "deepspeed.zero_optimization.stage=1 (every phase), phases.1.deepspeed.... (one)",
    )  # fmt: skip


def add_data(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """Add `--data`, the folder of datasets."""
    parser.add_argument(
        "--data", type=Path, required=is_required, metavar="DIR",
        help="folder with one dataset per sequence length: DIR/seq128, DIR/seq512",
    )  # fmt: skip


def add_run(parser: argparse.ArgumentParser, help_text: str = "a run folder of pretrain") -> None:
    """Add `--run`."""
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help=help_text)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add `--checkpoint`."""
    parser.add_argument(
        "--checkpoint", choices=["latest", "best"], default="latest",
        help="of a run: the newest weights (default), or those that checkpoint.keep_best has kept",
    )  # fmt: skip


def add_repeats(parser: argparse.ArgumentParser, default: int) -> None:
    """Add `--repeats`."""
    parser.add_argument(
        "--repeats", type=int, default=default, metavar="N",
        help=f"number of measurements (default {default})",
    )  # fmt: skip


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add `--threads`."""
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")


def add_json_file(parser: argparse.ArgumentParser) -> None:
    """Add `--json FILE`."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


def add_json_output(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, which prints JSON instead of text."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def check_at_least_1(flag: str, value: int) -> None:
    """Raise ConfigError where the value of a flag is below 1."""
    if value < 1:
        raise ConfigError(f"{flag} must be at least 1, it is {value}")
