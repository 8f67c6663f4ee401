"""Reports of a run folder: one HTML page with plots, and a short table for a terminal.

`record` reads the folder, `curves` thins and smooths, `figures` draws (and alone uses matplotlib),
`page` writes HTML, `terminal` writes plain text, `formats` formats numbers. Nothing here imports
torch or changes the run.
"""

from bert_ds.report.page import write_report
from bert_ds.report.terminal import summary_table

__all__ = ["summary_table", "write_report"]
