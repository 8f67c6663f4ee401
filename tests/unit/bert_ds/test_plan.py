"""The arithmetic that `bert-ds plan` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_ds.config.loading import load_run_config
from bert_ds.config.model import ModelConfig
from bert_ds.model import BertForPreTraining
from bert_ds.plan import num_parameters, plan_run, scaled

LARGE = Path(__file__).parents[3] / "ds_configs" / "bert-large"


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(hidden_size=24, num_attention_heads=2, num_hidden_layers=3, vocab_size=101),
        ModelConfig(hidden_size=8, num_attention_heads=1, num_hidden_layers=1, type_vocab_size=3),
        ModelConfig(hidden_size=8, num_attention_heads=1, layer_norm_position="pre"),
    ],
)
def test_the_number_of_parameters_is_the_models_own(config: ModelConfig) -> None:
    model = BertForPreTraining(config)
    assert num_parameters(config) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (0, "tokens", "0 tokens"),
        (999, "tokens", "999 tokens"),
        (24_600, "tokens", "24.6 k tokens"),
        (999_600, "tokens", "1 M tokens"),
        (336_226_108, "parameters", "336 M parameters"),
        (1.11e20, "FLOP", "111 EFLOP"),
        (5e21, "FLOP", "5e+03 EFLOP"),
    ],
)
def test_large_and_small_numbers_are_for_people(number: float, unit: str, text: str) -> None:
    assert scaled(number, unit) == text


def test_a_plan_by_hand() -> None:
    first, second = plan_run(load_run_config(LARGE), world_size=256)
    assert (first.gradient_accumulation_steps, second.gradient_accumulation_steps) == (4, 8)
    assert first.sequences == 65536 * 7038
    assert first.tokens_at_most == 65536 * 7038 * 128
    # recipes of NVIDIA: 2.406e11 FLOPs a row of 128 with 20 predictions, V = 30,528
    assert first.flops_at_most / first.sequences == pytest.approx(2.406e11, rel=1e-3)
    assert second.flops_at_most / second.sequences == pytest.approx(1.0205e12, rel=1e-3)
