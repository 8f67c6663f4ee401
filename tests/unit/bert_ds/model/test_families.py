"""Every family has a network and its counts, and the counts are those of the network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from bert_ds.config.model import ModelConfig
from bert_ds.model.families import FAMILIES, family_of, family_of_folder
from bert_ds.model.shapes import SHAPES, shape_of

ARCHITECTURES = get_args(ModelConfig.model_fields["architecture"].annotation)


def test_networks_and_counts_are_known_for_every_architecture() -> None:
    assert set(FAMILIES) == set(SHAPES) == set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_counts_are_those_of_the_network(architecture: str) -> None:
    config = ModelConfig.model_validate(
        {
            "architecture": architecture, "vocab_size": 67, "hidden_size": 32,
            "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
        }
    )  # fmt: skip
    sizes = [parameter.numel() for parameter in family_of(config).build(config).parameters()]
    assert shape_of(config).num_parameters(config) == sum(sizes)
    assert shape_of(config).largest_parameter(config) == max(sizes)


@pytest.mark.parametrize("content", ['{"model_type": "bert"}', "{}", "not JSON", "[]"])
def test_a_folder_that_names_no_family_is_left_to_berts_own_checks(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    assert family_of_folder(tmp_path) is FAMILIES["bert"]


def test_counts_are_known_without_torch() -> None:
    code = "import sys, bert_ds.model.shapes; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
