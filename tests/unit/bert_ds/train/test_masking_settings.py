"""Who masks: the preparation or the reader, never both and never neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_ds.config.loading import load_run_config
from bert_ds.errors import ConfigError
from bert_ds.train import setup
from tests.support.datasets import make_dataset
from tests.support.recipes import write_recipe


def open_data(folder: Path, *overrides: str, is_masked: bool) -> str | None:
    """How the training rows are masked as they are read."""
    make_dataset(folder / "data" / "seq32", is_masked=is_masked)
    config = load_run_config(write_recipe(folder / "recipe"), overrides)
    phase = config.phases[0]
    data = setup.open_phase_data(config, folder / "data", [phase])[0]
    batch = phase.plan_batch(1)
    return setup.stream_spec(config, data, batch, 0).dynamic_masking


@pytest.mark.parametrize(
    ("override", "is_masked", "expected"),
    [
        ("dynamic_masking=null", False, "token"),
        ("dynamic_masking=token", False, "token"),
        ("dynamic_masking=whole_word", False, "whole_word"),
        ("dynamic_masking=null", True, None),
    ],
)
def test_rows_are_masked_once(
    tmp_path: Path, override: str, is_masked: bool, expected: str | None
) -> None:
    assert open_data(tmp_path, override, is_masked=is_masked) == expected


def test_masking_what_is_masked_already_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_data(tmp_path, "dynamic_masking=whole_word", is_masked=True)
    message = str(caught.value)
    assert "dynamic_masking is 'whole_word'" in message
    assert f"the rows of {tmp_path / 'data' / 'seq32'} were masked" in message
    assert "(--masking token)" in message
    assert "Leave dynamic_masking out" in message
    assert "--masking none" in message


def test_an_unknown_kind_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dynamic_masking.*'token' or 'whole_word'"):
        load_run_config(write_recipe(tmp_path), ["dynamic_masking=words"])
