"""Small files: read with errors that name the place, and written as a whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_ds.errors import BertDsError
from data_prep.contract.storage import replaced_file, sync


def read_json_object(path: Path, error: type[BertDsError]) -> dict[str, Any]:
    """Read a JSON file that must hold an object.

    Args:
        path: the file.
        error: class of the error where the file cannot be used.

    Raises:
        BertDsError: the file cannot be read, is not UTF-8 or JSON, or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise error(f"cannot read {path}: {err.strerror or err}") from err
    except UnicodeDecodeError as err:
        raise error(f"{path} is not UTF-8 text (byte {err.start})") from err
    except json.JSONDecodeError as err:
        raise error(f"{path}, line {err.lineno}: not valid JSON: {err.msg}") from err
    if not isinstance(value, dict):
        raise error(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by way of a temporary one: write, sync, rename, sync of the folder."""
    with replaced_file(path) as file:
        file.write(text.encode())


def share(path: Path) -> None:
    """Give a file the permissions that the umask grants, where a library has made it private."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


@contextmanager
def folder_written_at_once(output_dir: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `output_dir` if the block ends without an error.

    Its files are synced before the rename, so that a whole folder appears or none. What had the
    name moves aside first and is removed last. A kill between the two renames leaves both, whole,
    in the hidden folder next to it.
    """
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{output_dir.name}.", dir=output_dir.parent))
    new, old = scratch / "new", scratch / "old"
    try:
        new.mkdir()
        yield new
        for path in [*new.rglob("*"), new]:
            sync(path)
        if output_dir.exists():
            os.rename(output_dir, old)
        os.rename(new, output_dir)
        sync(output_dir.parent)
    finally:
        if old.exists() and not output_dir.exists():
            os.rename(old, output_dir)
        shutil.rmtree(scratch)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as indented JSON with sorted keys."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
