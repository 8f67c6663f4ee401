"""The parser of `bert-ds`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bert_ds.cli import build_parser

COMMANDS = [
    "pretrain", "supervise", "doctor", "plan", "evaluate", "fill-mask", "export-hf", "import-hf",
    "report", "bench",
]  # fmt: skip


def test_help_imports_neither_torch_nor_numpy_nor_pydantic() -> None:
    program = (
        "import sys; from bert_ds.cli import build_parser; print(build_parser().format_help()); "
        "sys.exit(bool({'torch', 'deepspeed', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(f"\n    {command}" in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", [*([name] for name in COMMANDS), ["bench", "step"]])
def test_every_command_explains_its_arguments(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args([*command, "--help"])
    assert caught.value.code == 0
    assert f"usage: bert-ds {' '.join(command)}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "is_training"),
    [
        (["pretrain", "--recipe", "R", "--data", "D", "--output-dir", "O"], True),
        (["supervise", "--", "pretrain"], True),
        (["report", "--run", "R"], False),
        (["bench", "data", "--data", "D"], False),
    ],
)
def test_commands_that_train_are_marked(words: list[str], is_training: bool) -> None:
    arguments = build_parser().parse_args(words)
    assert arguments.is_training is is_training
    assert callable(arguments.execute)
