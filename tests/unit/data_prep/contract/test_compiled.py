"""Compiled code is never that of other sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import data_prep


def test_a_change_in_a_file_reaches_what_was_compiled_into_others(tmp_path: Path) -> None:
    shutil.copytree(
        Path(data_prep.__file__).parent,
        tmp_path / "data_prep",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    script = (
        "import numpy as np\n"
        "from data_prep.stages.rows import row_lengths\n"
        "from data_prep.contract.masking import _choose_tokens\n"
        "from data_prep.contract.randomness import keyed_words\n"
        "print(keyed_words(np.uint64(1), 2, np.zeros(1, np.uint32), np.zeros(1, np.uint64)))\n"
        "from data_prep.stages.totals import _hash_rows\n"
        "one, none, hashes = np.ones(1, np.uint8), np.zeros(1, np.uint8), np.zeros(1, np.uint64)\n"
        "_hash_rows(np.array([5], np.uint16), one, none, none[:0], one[:0], 1, hashes)\n"
        "print(hashes)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)

    def run() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True,
            timeout=100, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    before = run()
    assert run() == before
    folders = list((tmp_path / "data_prep" / "__pycache__").glob("compiled-*"))
    assert len(folders) == 1
    assert list(folders[0].rglob("*.nbi"))
    path = tmp_path / "data_prep" / "pieces" / "scan.py"  # what `totals` compiles into itself
    text = path.read_text(encoding="utf-8")
    assert "0xD6E8FEB86659FD93" in text
    path.write_text(text.replace("0xD6E8FEB86659FD93", "0xD6E8FEB86659FD95"), encoding="utf-8")
    after = run()
    assert after[0] == before[0]
    assert after[1] != before[1]
    left = list((tmp_path / "data_prep" / "__pycache__").glob("compiled-*"))
    assert len(left) == 1
    assert left != folders
