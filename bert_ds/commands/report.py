"""`bert-ds report`."""

from __future__ import annotations

import argparse

from bert_ds.report import summary_table, write_report


def run(arguments: argparse.Namespace) -> None:
    """Write the page and print the table."""
    page = write_report(arguments.run, arguments.output)
    print(summary_table(arguments.run))
    if arguments.output is not None:
        print(f"page            {page}")
