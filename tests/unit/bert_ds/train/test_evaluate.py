"""Held-out evaluation: exact counts however ranks share it, and the same masks every time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from bert_ds.config.loading import load_run_config
from bert_ds.config.recipe import RunConfig
from bert_ds.distributed.communicator import Communicator
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.train import setup
from bert_ds.train.evaluate import HeldOutResult, evaluate_held_out
from data_prep.contract.format import concatenate_blocks
from tests.support.datasets import make_dataset
from tests.support.recipes import write_recipe


def opened(
    folder: Path, *overrides: str, is_masked: bool = True, is_paired: bool = True
) -> tuple[RunConfig, setup.PhaseData]:
    make_dataset(folder / "data" / "seq32", num_valid=40, is_masked=is_masked, is_paired=is_paired)
    config = load_run_config(write_recipe(folder / "recipe"), overrides)
    return config, setup.open_phase_data(config, folder / "data", config.phases[:1])[0]


def result_of(
    config: RunConfig,
    data: setup.PhaseData,
    model: BertForPreTraining,
    *,
    world_size: int = 1,
    max_sequences: int | None = None,
) -> HeldOutResult:
    """What all ranks together find, one after the other in this process."""
    sums: list[torch.Tensor] = []

    def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
        sums.append(tensor)
        return torch.stack(sums).sum(dim=0)

    settings = config.evaluation.model_copy(
        update={"micro_batch_size": 3, "max_sequences": max_sequences}
    )
    config = config.model_copy(update={"evaluation": settings})
    ranks = [
        SimpleNamespace(
            world=SimpleNamespace(rank=rank, world_size=world_size),
            device=torch.device("cpu"),
            all_reduce=sum_over_ranks,
        )
        for rank in range(world_size)
    ]
    return [evaluate_held_out(config, data, model, cast("Communicator", rank)) for rank in ranks][
        -1
    ]


@pytest.mark.parametrize("max_sequences", [None, 20, 16, 1])
@pytest.mark.parametrize("is_masked", [True, False])
def test_ranks_that_share_the_rows_find_what_one_rank_finds(
    tmp_path: Path, max_sequences: int | None, is_masked: bool
) -> None:
    config, data = opened(tmp_path, is_masked=is_masked)
    model = setup.build_model(config, torch.device("cpu"))
    alone = result_of(config, data, model, max_sequences=max_sequences)
    assert alone.sequences == (max_sequences or 40)
    assert alone.figures["predictions"] > 0
    assert alone.figures["nsp_accuracy"] is not None
    for world_size in (2, 3):
        shared = result_of(config, data, model, world_size=world_size, max_sequences=max_sequences)
        assert shared.as_dict() == pytest.approx(alone.as_dict(), rel=1e-6)


def test_rows_are_masked_by_their_number_in_the_split(tmp_path: Path) -> None:
    config, data = opened(tmp_path, is_masked=False)
    reader, masks = setup.open_held_out(config, data)
    assert masks is not None
    blocks = [reader.read(number) for number in range(len(reader.block_counts))]
    reader.close()
    assert len(blocks) > 1
    rows = np.arange(40)
    whole = masks.applied_to(concatenate_blocks(blocks), np.zeros(40, np.int64), rows)
    result = result_of(config, data, setup.build_model(config, torch.device("cpu")))
    commonest = int(np.bincount(whole.masked_lm_ids).max())
    assert result.figures["predictions"] == len(whole.masked_lm_ids)
    assert result.figures["unigram_accuracy"] == commonest / result.figures["predictions"]


def test_rows_that_are_masked_as_they_are_read_give_the_same_result_under_every_seed(
    tmp_path: Path,
) -> None:
    config, data = opened(tmp_path, is_masked=False)
    model = setup.build_model(config, torch.device("cpu"))
    other = config.model_copy(update={"seed": 7})
    assert result_of(config, data, model) == result_of(other, data, model)
    whole_word = config.model_copy(update={"dynamic_masking": "whole_word"})
    assert (
        result_of(whole_word, data, model).figures["mlm_loss"]
        != result_of(config, data, model).figures["mlm_loss"]
    )


def test_rows_of_one_segment_have_no_nsp_accuracy(tmp_path: Path) -> None:
    config, data = opened(tmp_path, is_paired=False)
    result = result_of(config, data, setup.build_model(config, torch.device("cpu")))
    assert result.figures["nsp_accuracy"] is None
    assert result.as_dict()["nsp_accuracy"] is None
    assert result.figures["mlm_loss"] > 0
