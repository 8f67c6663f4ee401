"""The loss formula, the counts it divides by, and the figures that are made from the terms."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from bert_ds.data.collate import collate, pack
from bert_ds.objectives import PRETRAINING, ObjectiveSet, TermSums
from bert_ds.objectives.masked_lm import MASKED_LM
from tests.support.datasets import random_block


def sums(mlm: float, nsp: float) -> dict[str, TermSums]:
    return {
        "mlm": TermSums(torch.tensor(mlm), torch.tensor(3)),
        "nsp": TermSums(torch.tensor(nsp), torch.tensor(1)),
    }


def test_the_loss_is_the_weighted_sum_of_sums_by_global_counts() -> None:
    loss = PRETRAINING.loss_of(sums(12.0, 3.0), {"mlm": 8, "nsp": 4})
    assert loss.item() == 12 / 8 + 3 / 4
    heavy = replace(MASKED_LM, terms=(replace(MASKED_LM.terms[0], weight=2.5),))
    objectives = ObjectiveSet((heavy, *PRETRAINING.objectives[1:]))
    assert objectives.loss({"mlm": 12.0, "nsp": 3.0}, {"mlm": 8, "nsp": 4}) == 2.5 * 1.5 + 0.75


def test_shares_of_micro_batches_add_up_to_the_loss_of_the_batch() -> None:
    counts = {"mlm": 7, "nsp": 4}
    shares = [PRETRAINING.loss_of(sums(mlm, 1.0), counts) for mlm in (2.0, 5.0)]
    assert sum(shares).item() == pytest.approx(7 / 7 + 2 / 4)


@pytest.mark.parametrize("make", [collate, pack])
def test_answers_are_masked_positions_and_rows_with_a_label(make) -> None:
    blocks = [random_block(3, 16, 64, 1), random_block(2, 16, 64, 2, is_paired=False)]
    found = PRETRAINING.count(make(block) for block in blocks)
    assert found == {"mlm": sum(len(block.masked_lm_ids) for block in blocks), "nsp": 3}
    filled = pack(blocks[0], num_tokens=64, longest=16)  # rows of padding have no label
    assert PRETRAINING.count([filled])["nsp"] == 3


def test_figures_of_terms_without_an_answer_are_unknown() -> None:
    flat = PRETRAINING.flatten(sums(12.0, 0.0)).tolist()
    assert flat == [12.0, 0.0, 3.0, 1.0]
    figures = PRETRAINING.figures(flat, {"mlm": 8, "nsp": 0})
    assert figures == {
        "loss": 1.5, "mlm_loss": 1.5, "nsp_loss": None, "mlm_accuracy": 3 / 8,
        "nsp_accuracy": None,
    }  # fmt: skip
    assert tuple(figures) == PRETRAINING.columns


def test_held_out_figures_have_counts_and_the_trivial_guess() -> None:
    found = PRETRAINING.held_out([12.0, 3.0, 4.0, 2.0], {"mlm": 8, "nsp": 4}, {"mlm": 2.0})
    assert found == {
        "predictions": 8, "mlm_loss": 1.5, "mlm_accuracy": 0.5, "nsp_accuracy": 0.5,
        "unigram_accuracy": 0.25,
    }  # fmt: skip
    assert PRETRAINING.held_out_text(found) == "mlm_loss 1.500  mlm_acc 0.5000  nsp_acc 0.5000"


def test_names_and_settings_are_known_without_torch() -> None:
    code = "import sys, bert_ds.config.recipe, bert_ds.report; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
