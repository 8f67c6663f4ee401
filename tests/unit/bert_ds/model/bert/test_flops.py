"""FLOPs against published figures and against torch's own counter."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bert_ds.batch import PretrainingBatch
from bert_ds.config.model import ModelConfig
from bert_ds.model.bert.flops import pretraining_flops
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.objectives import PRETRAINING

BERT_LARGE = ModelConfig(
    vocab_size=30528,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
)


def flops_of_one_row(config: ModelConfig, length: int, num_predictions: int) -> int:
    return pretraining_flops(
        config,
        sum_of_lengths=length,
        sum_of_squared_lengths=length**2,
        num_predictions=num_predictions,
        num_sequences=1,
    )


@pytest.mark.parametrize(
    ("length", "num_predictions", "published"), [(128, 20, 2.406e11), (512, 80, 1.0205e12)]
)
def test_bert_large_has_the_published_figure(
    length: int, num_predictions: int, published: float
) -> None:
    # Half a unit of the published last digit, and 3e-5 for the pooler that they leave out.
    assert flops_of_one_row(BERT_LARGE, length, num_predictions) == pytest.approx(
        published, rel=2.5e-4
    )


def test_flops_equal_the_published_formula_and_the_pooler() -> None:
    s, p, h, layers, v = 100, 15, 1024, 24, 30528
    published = 72 * layers * s * h**2 * (1 + s / (6 * h)) + 6 * p * (h**2 + h * v)
    assert flops_of_one_row(BERT_LARGE, s, p) == pytest.approx(
        published + 6 * (h**2 + 2 * h), rel=1e-12
    )


def test_rows_of_several_lengths_add_up() -> None:
    together = pretraining_flops(
        BERT_LARGE,
        sum_of_lengths=10 + 30 + 60,
        sum_of_squared_lengths=100 + 900 + 3600,
        num_predictions=2 + 4 + 9,
        num_sequences=3,
    )
    assert together == sum(
        flops_of_one_row(BERT_LARGE, s, p) for s, p in [(10, 2), (30, 4), (60, 9)]
    )


def test_flops_equal_torchs_counter_on_a_small_model() -> None:
    config = ModelConfig(
        vocab_size=101,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForPreTraining(config)
    num_sequences, length, num_predictions = 3, 40, 14
    ids = torch.ones(num_sequences, length, dtype=torch.int64)
    batch = PretrainingBatch(
        input_ids=ids,
        token_type_ids=ids,
        attention_mask=ids.bool(),
        masked_lm_positions=torch.arange(num_predictions),
        masked_lm_ids=torch.arange(num_predictions),
        next_sentence_label=torch.zeros(num_sequences, dtype=torch.int64),
    )
    # The counter knows plain products; the fused CPU kernel would go uncounted.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        output = model(batch)
        PRETRAINING.loss_of(output, {"mlm": 1, "nsp": 1}).backward()
    computed = pretraining_flops(
        config,
        sum_of_lengths=num_sequences * length,
        sum_of_squared_lengths=num_sequences * length**2,
        num_predictions=num_predictions,
        num_sequences=num_sequences,
    )
    assert computed == pytest.approx(counter.get_total_flops(), rel=0.01)
