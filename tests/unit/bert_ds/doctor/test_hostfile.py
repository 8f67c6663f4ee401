"""Hostfiles, and the ssh command that asks a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_ds.doctor.hostfile import read_hostfile, ssh_command
from bert_ds.errors import ConfigError


def test_hosts_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\nnode2 slots=8\n\nnode1   slots=4  # small\n")
    assert list(read_hostfile(path).items()) == [("node2", 8), ("node1", 4)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing; it has a line a host, such as 'node1 slots=8'"),
        ("", "names no host"),
        ("# none\n", "names no host"),
        ("node1 slots=8\nnode2\n", "line 2: a line must be like 'node1 slots=8'.*'node2'"),
        ("node1 slots=0\n", "with at least one slot; this is 'node1 slots=0'"),
        ("node1 slots=4\n# old\nnode1 slots=4\n", "line 3 names node1 twice; add its slots up"),
    ],
)
def test_a_wrong_hostfile_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "hosts"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_hostfile(path)


def test_ssh_takes_the_options_of_pdsh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "-F my.cfg -p 2222")
    command = ssh_command("node1", "true")
    assert command[-6:] == ["-F", "my.cfg", "-p", "2222", "node1", "true"]
    assert "BatchMode=yes" in command
