"""The shape of the network. Field names and defaults are those of Hugging Face's `BertConfig`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from bert_ds.config.base import FrozenConfig


class ModelConfig(FrozenConfig):
    """BERT's architecture (Devlin et al. 2018, arXiv:1810.04805). The defaults are BERT-base."""

    architecture: Literal["bert"] = "bert"
    """The family of networks."""
    vocab_size: int = Field(default=30522, gt=4)
    """Pieces in the vocabulary."""
    hidden_size: int = Field(default=768, gt=0)
    """Width H of the residual stream."""
    num_hidden_layers: int = Field(default=12, gt=0)
    """Transformer layers."""
    num_attention_heads: int = Field(default=12, gt=0)
    """Attention heads N; must divide hidden_size."""
    intermediate_size: int = Field(default=3072, gt=0)
    """Width of the feed-forward layer."""
    hidden_act: Literal["gelu", "gelu_tanh"] = "gelu"
    """GELU by the error function, or by its tanh approximation."""
    hidden_dropout_prob: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on embeddings and on the output of each sub-layer."""
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on attention probabilities."""
    max_position_embeddings: int = Field(default=512, gt=0)
    """Longest sequence in tokens."""
    type_vocab_size: int = Field(default=2, ge=1)
    """Segment types (A and B); with 1 all tokens have the same type, as in RoBERTa."""
    tie_word_embeddings: bool = True
    """Whether the matrix that scores the vocabulary is that of the word embeddings, as published
    (Press and Wolf 2017, arXiv:1608.05859), or a parameter of its own."""
    layer_norm_position: Literal["post", "pre"] = "post"
    """Where a sub-layer is normalised: after its residual sum, as published, or before it works on
    its input, with one more LayerNorm after the last layer (Xiong et al. 2020, arXiv:2002.04745),
    which trains at higher learning rates. Hugging Face's BERT has `post` only."""
    layer_norm_eps: float = Field(default=1e-12, gt=0.0)
    """Added to the variance in every LayerNorm."""
    initializer_range: float = Field(default=0.02, gt=0.0)
    """Standard deviation of the truncated normal that weights start from."""

    @model_validator(mode="after")
    def _heads_divide_the_hidden_size(self) -> ModelConfig:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of num_attention_heads "
                f"({self.num_attention_heads}); change one of them"
            )
        return self
