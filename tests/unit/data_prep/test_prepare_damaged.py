"""What a power cut or a stranger has damaged in a work folder is made again, with equal bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.data_prep.conftest import StoppingExecutor

Prepare = Callable[..., list[Path]]
FolderBytes = Callable[[Path], dict[str, bytes]]

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut off": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "another byte": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "kind",
    [
        "work/map/*.spill",
        "work/map/*.json",
        "work/reduce/*.counts",
        "work/reduce/*.json",
        "*/*.tar",
    ],
)
def test_what_a_power_cut_has_damaged_is_made_again(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path, kind: str, damage: str
) -> None:
    if kind.endswith(".json") and damage == "another byte":
        damage = "zeros"  # disks lose blocks; JSON with a wrong digit in it is not looked for
    counting = StoppingExecutor(1000)
    prepare(tmp_path / "whole", task_bytes=4000, executor=counting)
    last = StoppingExecutor(counting.finished - 1)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "D", task_bytes=4000, executor=last)
    paths = sorted((tmp_path / "D").glob(kind))
    assert paths
    for path in paths:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    prepare(tmp_path / "D")
    assert folder_bytes(tmp_path / "D") == folder_bytes(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["work/map/*.spill", "work/reduce/*.counts", "seq64/*.tar"])
def test_a_task_whose_result_is_lost_is_done_again(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path, kind: str
) -> None:
    prepare(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "D", executor=StoppingExecutor(2))
    next((tmp_path / "D").glob(kind)).unlink()
    prepare(tmp_path / "D")
    assert folder_bytes(tmp_path / "D") == folder_bytes(tmp_path / "whole")
