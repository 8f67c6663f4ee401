"""Which hosts a run continues on when some are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_ds.commands import lost_hosts
from bert_ds.commands.lost_hosts import on_hosts_left, value_of
from bert_ds.errors import ConfigError
from tests.support.recipes import tiny_deepspeed, tiny_recipe, write_recipe


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Batches of 16 in micro batches of 2: 1, 2, 4 or 8 ranks."""
    return write_recipe(tmp_path / "recipe", tiny_recipe(), tiny_deepspeed(16, 2))


def command(hostfile: Path, recipe: Path, *more: str) -> list[str]:
    return [
        "deepspeed", "--hostfile", str(hostfile), *more, "--module", "bert_ds", "pretrain",
        f"--recipe={recipe}", "--output-dir", "run",
    ]  # fmt: skip


def lose(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    monkeypatch.setattr(
        lost_hosts, "unreachable_hosts", lambda *_: dict.fromkeys(hosts, "no route")
    )


def hostfile_of(folder: Path, num_hosts: int) -> Path:
    path = folder / "given"
    path.write_text("".join(f"node{n + 1} slots=2\n" for n in range(num_hosts)))
    return path


def test_a_command_stays_as_it_is_where_all_hosts_answer(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(monkeypatch)
    given = command(hostfile_of(tmp_path, 4), recipe)
    assert on_hosts_left(given, tmp_path) == given


def test_as_many_hosts_are_taken_as_the_batch_divides_over(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Of four hosts three are left, six ranks, over which 16 does not divide; over four it does."""
    lose(monkeypatch, "node1")
    given = command(hostfile_of(tmp_path, 4), recipe, "--master_addr=node1")
    found = on_hosts_left(given, tmp_path)
    assert (tmp_path / "hosts").read_text() == "node2 slots=2\nnode3 slots=2\n"
    assert value_of(found, "--hostfile") == str(tmp_path / "hosts")
    assert value_of(found, "--master_addr") == "node2"
    assert [word for word in found if word not in given] == [
        str(tmp_path / "hosts"), "--master_addr", "node2"
    ]  # fmt: skip
    printed = capsys.readouterr().err
    assert "lost hosts (node1: no route); training on node2, node3" in printed


def test_where_no_host_answers_all_are_tried_again(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    lose(monkeypatch, "node1", "node2")
    given = command(hostfile_of(tmp_path, 2), recipe)
    assert on_hosts_left(given, tmp_path / "not there yet") == given
    assert "no host answers ssh; trying all of them again" in capsys.readouterr().err


def test_a_single_host_that_is_left_is_not_taken_for_this_one(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(monkeypatch, "node1")
    found = on_hosts_left(command(hostfile_of(tmp_path, 2), recipe), tmp_path / "not there yet")
    assert found[:2] == ["deepspeed", "--force_multi"]
    assert (tmp_path / "not there yet" / "hosts").read_text() == "node2 slots=2\n"


def test_where_no_number_of_hosts_will_do_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(monkeypatch, "node1")
    recipe = write_recipe(tmp_path / "recipe", tiny_recipe(), tiny_deepspeed(16, 8))
    path = tmp_path / "given"
    path.write_text("node1 slots=2\nnode2 slots=3\n")  # three ranks of 8 make no 16
    with pytest.raises(ConfigError, match=r"hosts are lost \(node1: no route.*divides over no"):
        on_hosts_left(command(path, recipe), tmp_path)
    assert not (tmp_path / "hosts").exists()
