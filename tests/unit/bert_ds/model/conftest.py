"""A tiny model and random batches for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bert_ds.batch import PackedBatch, PretrainingBatch
from bert_ds.config.model import ModelConfig
from bert_ds.model.bert.init import init_weights
from bert_ds.model.bert.pretraining import BertForPreTraining


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and bitwise comparisons want one order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny_config() -> ModelConfig:
    return ModelConfig(
        vocab_size=67,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=24,
    )


@pytest.fixture
def tiny_model(tiny_config: ModelConfig) -> BertForPreTraining:
    return random_model(tiny_config)


def random_model(config: ModelConfig) -> BertForPreTraining:
    """In evaluation mode, every tensor random: biases and LayerNorms would hide a swap."""
    model = BertForPreTraining(config)
    init_weights(model, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.fixture
def padded_batch(tiny_config: ModelConfig) -> PretrainingBatch:
    """Rows of 24, 7 and 15 tokens, padded to 24, with 5 masked positions."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([24, 7, 15])
    attention_mask = torch.arange(24) < lengths[:, None]
    ids = torch.randint(5, tiny_config.vocab_size, (3, 24), generator=generator)
    segment_b = (torch.arange(24) >= 4) & attention_mask
    return PretrainingBatch(
        input_ids=ids * attention_mask,
        token_type_ids=segment_b.long(),
        attention_mask=attention_mask,
        masked_lm_positions=torch.tensor([1, 23, 24 + 2, 24 + 6, 48 + 14]),
        masked_lm_ids=torch.tensor([9, 66, 5, 31, 40]),
        next_sentence_label=torch.tensor([0, 1, 1]),
    )


@pytest.fixture
def packed_batch(padded_batch: PretrainingBatch) -> PackedBatch:
    """The rows of `padded_batch` end to end."""
    return unpadded(padded_batch)


def unpadded(batch: PretrainingBatch) -> PackedBatch:
    """The same rows without padding, worked out from the mask alone."""
    is_real = batch.attention_mask
    lengths = is_real.sum(dim=1)
    place_of = is_real.flatten().long().cumsum(0) - 1
    return PackedBatch(
        input_ids=batch.input_ids[is_real],
        token_type_ids=batch.token_type_ids[is_real],
        position_ids=torch.arange(is_real.shape[1]).expand(is_real.shape)[is_real],
        cu_seqlens=torch.cat([torch.zeros(1), lengths.cumsum(0)]).int(),
        max_seqlen=int(lengths.max()),
        masked_lm_positions=place_of[batch.masked_lm_positions],
        masked_lm_ids=batch.masked_lm_ids,
        next_sentence_label=batch.next_sentence_label,
    )
