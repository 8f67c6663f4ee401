"""Build a C source into a shared library, once a machine, and load it.

The library lies in a cache folder under a name made of everything that decides its code: source,
flags, compiler and processor (hosts may share a home folder and differ). It is written under
another name first and renamed, so that a process sees a whole library or none; a lock, which the
system drops with the process that holds it, lets one process build while others wait.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
COMMON_FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
SECONDS_FOR_A_BUILD = 120.0
"""How long a compiler may run, and how long a process waits for another one's build."""


class BuildError(Exception):
    """No library could be built; the message has the reason, in a few words."""


def load_library(source: Path) -> tuple[ctypes.CDLL, str]:
    """Load the library of a C source, from the cache or built now.

    Returns:
        The library, and how it was built, in a few words.

    Raises:
        BuildError: There is no compiler, or it cannot compile the source.
    """
    compiler = find_compiler()
    reasons = []
    for flags, description in flag_choices(platform.machine()):
        try:
            path = _cached_path(source, compiler, flags)
            if not path.exists():
                with _lock(path):
                    if not path.exists():
                        _compile(source, compiler, flags, path)
            return _load(source, compiler, flags, path), f"{Path(compiler[0]).name}, {description}"
        except (BuildError, OSError, subprocess.SubprocessError) as err:
            reasons.append(str(err).strip())
    raise BuildError(f"{' '.join(compiler)} failed: {reasons[0]}")


def _load(source: Path, compiler: list[str], flags: tuple[str, ...], path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # broken on the disk: build it again
        with _lock(path):
            _compile(source, compiler, flags, path)
        return ctypes.CDLL(str(path))


def find_compiler() -> list[str]:
    """Return the C compiler's command: that of CC, or the first of cc, gcc and clang found.

    Raises:
        BuildError: There is none.
    """
    named = shlex.split(os.environ.get("CC", ""))
    for name in named[:1] or COMPILERS:
        found = shutil.which(name)
        if found:
            return [found, *named[1:]]
    raise BuildError(f"no C compiler ({named[0] if named else ', '.join(COMPILERS)})")


def flag_choices(machine: str) -> list[tuple[tuple[str, ...], str]]:
    """Return flags to try in turn, best first, each with its description."""
    native = "-mcpu=native" if machine in ("aarch64", "arm64") else "-march=native"
    return [
        ((*COMMON_FLAGS, native, "-fopenmp"), "OpenMP, for this processor"),
        ((*COMMON_FLAGS, "-fopenmp"), "OpenMP, for any processor of the kind"),
        ((*COMMON_FLAGS, native), "one thread, for this processor"),
        (COMMON_FLAGS, "one thread, for any processor of the kind"),
    ]


def cache_folder() -> Path:
    """Return where libraries are kept: XDG_CACHE_HOME or ~/.cache, else a private temporary folder.

    Raises:
        BuildError: No folder can be written that other users cannot.
    """
    # Where nobody knows the home folder "~" is left as it is, and no absolute path.
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "bert_ds"
    fallback = Path(tempfile.gettempdir()) / f"bert_ds-{os.getuid()}"
    for folder in (home, fallback):
        if not folder.is_absolute():
            continue
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        seen = folder.stat()
        # What lies here is loaded and run: it must be ours, and nobody else may write to it.
        if seen.st_uid == os.getuid() and not seen.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    raise BuildError(f"neither {home} nor {fallback} is a folder of ours to write to")


def _cached_path(source: Path, compiler: list[str], flags: tuple[str, ...]) -> Path:
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False, timeout=30)
    command = " ".join([*compiler, *flags]).encode()
    parts = (source.read_bytes(), command, version.stdout, _processor())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return cache_folder() / f"{source.stem}-{digest}.so"


def _processor() -> bytes:
    """Return what the code generated for this very processor depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor().encode()
    kept = {"vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part"}
    seen = {line for line in lines if line.partition(":")[0].strip() in kept}
    return "\n".join(sorted(seen)).encode()


def _compile(source: Path, compiler: list[str], flags: tuple[str, ...], path: Path) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".so.incomplete")
    os.close(handle)
    try:
        done = subprocess.run(
            [*compiler, *flags, "-o", temporary, str(source), "-lm"],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_FOR_A_BUILD,
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            raise BuildError((lines or done.stderr.splitlines() or ["no message"])[0])
        os.replace(temporary, path)
    except subprocess.TimeoutExpired:
        raise BuildError(f"the compiler took longer than {SECONDS_FOR_A_BUILD:.0f} s") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the right to build; where locks do not work or take too long, build without it."""
    deadline = time.monotonic() + SECONDS_FOR_A_BUILD
    with path.with_suffix(".lock").open("w") as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as err:
                if err.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                    break
                time.sleep(0.05)
            else:
                break
        yield
