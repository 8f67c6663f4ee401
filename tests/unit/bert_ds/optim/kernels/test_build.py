"""The C library: built once, by one of many processes, kept where nobody else can write."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bert_ds.optim.kernels import build

SOURCE = "int answer(void) { return 42; }\n"
BUILD_AND_ASK = """
import sys
from pathlib import Path
from bert_ds.optim.kernels.build import load_library
library, how = load_library(Path(sys.argv[1]))
print(library.answer(), how)
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    path = tmp_path / "answer.c"
    path.write_text(SOURCE)
    return path


def counting_compiler(folder: Path, log: Path, before: str = "") -> Path:
    """A C compiler that writes a line to a log for each file it compiles."""
    script = folder / "counting-cc"
    script.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version*) ;; *) echo compiled >> "{log}"; sleep 0.3 ;; esac\n'
        f'{before}\nexec cc "$@"\n'
    )
    script.chmod(0o755)
    return script


def test_many_processes_at_once_build_once(source: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler = counting_compiler(tmp_path, log)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD_AND_ASK, str(source)],
            env={**os.environ, "CC": str(compiler)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    answers = [process.communicate(timeout=120)[0] for process in processes]
    assert all(answer.startswith("42 counting-cc, OpenMP") for answer in answers)
    assert log.read_text().splitlines() == ["compiled"]
    assert len(list((tmp_path / "cache" / "bert_ds").glob("*.so"))) == 1


def test_the_library_is_found_again_and_rebuilt_for_another_source(source: Path) -> None:
    build.load_library(source)
    (first,) = build.cache_folder().glob("*.so")
    before = first.stat().st_mtime_ns
    build.load_library(source)
    assert first.stat().st_mtime_ns == before
    source.write_text(SOURCE.replace("42", "43"))
    library, _ = build.load_library(source)
    assert library.answer() == 43
    assert len(list(build.cache_folder().glob("*.so"))) == 2


def test_a_build_that_was_killed_does_not_stop_the_next(source: Path) -> None:
    folder = build.cache_folder()
    (folder / "answer-half.so.incomplete").write_bytes(b"half")
    compiler = build.find_compiler()
    flags = build.flag_choices("x86_64")[0][0]
    build._cached_path(source, compiler, flags).with_suffix(".lock").touch()  # nobody holds it
    library, _ = build.load_library(source)
    assert library.answer() == 42


def test_a_compiler_without_openmp_gives_one_thread(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = 'case "$*" in *-fopenmp*) echo "error: no OpenMP" >&2; exit 1 ;; esac'
    monkeypatch.setenv("CC", str(counting_compiler(tmp_path, tmp_path / "log", refuse)))
    library, how = build.load_library(source)
    assert library.answer() == 42
    assert how == "counting-cc, one thread, for this processor"


def test_a_compiler_that_fails_is_reported_with_its_message(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write_text("int answer(void) { return forty_two; }\n")
    with pytest.raises(build.BuildError, match=r"failed: .*error: .*forty_two"):
        build.load_library(source)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(build.BuildError, match=r"no C compiler \(no-such-compiler\)"):
        build.load_library(source)


@pytest.mark.parametrize(
    "content", ["not a program", "#!/bin/sh\nexit 3\n"], ids=["no program", "fails"]
)
def test_a_compiler_that_is_none_is_reported_and_never_raised_as_something_else(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "broken-cc").write_text(content)
    (tmp_path / "broken-cc").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "broken-cc"))
    with pytest.raises(build.BuildError, match="broken-cc failed: "):
        build.load_library(source)


def test_a_compiler_may_be_a_command_of_several_words(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\nexec "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", f"{wrapper} cc -DUNUSED=1")
    library, how = build.load_library(source)
    assert library.answer() == 42
    assert how.startswith("wrapper, OpenMP")


def test_a_library_that_is_broken_on_the_disk_is_built_again(source: Path) -> None:
    build.load_library(source)
    (path,) = build.cache_folder().glob("*.so")
    path.unlink()
    path.write_bytes(b"")
    # in another process: this one has the library in memory
    command = [sys.executable, "-c", BUILD_AND_ASK, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("42 cc, OpenMP, for this processor")
    assert path.stat().st_size > 0


def test_without_a_home_a_private_temporary_folder_is_used(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made below it
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = build.cache_folder()
    assert folder == tmp_path / f"bert_ds-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_to_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))
    for folder in (tmp_path / "cache" / "bert_ds", tmp_path / f"bert_ds-{os.getuid()}"):
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    with pytest.raises(build.BuildError, match="is a folder of ours to write to"):
        build.cache_folder()
