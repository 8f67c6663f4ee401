"""What a preparation says of its time and memory."""

from __future__ import annotations

import json
import subprocess
import sys

_SMALL = """
import json
from data_prep.running.timings import StageClock
print(json.dumps(StageClock().to_json()))
"""
_PARENT = """
import subprocess, sys
held = bytearray({megabytes} << 20)
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""


def peak_of_a_small_program(megabytes_of_parent: int) -> float:
    """The peak of a program that does nothing, started by a process of that size."""
    parent = _PARENT.format(megabytes=megabytes_of_parent)
    done = subprocess.run(
        [sys.executable, "-c", parent, _SMALL],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return float(json.loads(done.stdout)["peak_mib"])


def test_the_peak_is_that_of_the_program_and_not_of_what_started_it() -> None:
    assert peak_of_a_small_program(400) < peak_of_a_small_program(1) + 50
