"""The datasets that other tests are run on keep the data contract themselves."""

from __future__ import annotations

from pathlib import Path

from data_prep.inspect.verify import verify_folder
from tests.support.datasets import make_dataset


def test_a_made_dataset_passes_verify(tmp_path: Path) -> None:
    make_dataset(tmp_path, num_train=50)
    assert verify_folder(tmp_path).totals("train").rows == 50
