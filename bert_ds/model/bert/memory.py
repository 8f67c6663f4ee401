"""Bytes that one micro batch takes on a GPU between its forward pass and the end of its backward.

The figures hold for rows of full length (shorter ones take less under `unpadded`; `packed` always
takes as much as full rows), for the kernels of GPUs and without `compile`. They count what autograd
keeps, in elements of the model's precision unless a type is given. They were derived from the
modules of this folder; `tests/unit/bert_ds/model/bert/test_memory.py` compares them with what
autograd really keeps, so a change of a module shows there.

Embeddings, a token:

    input_ids, token_type_ids, position_ids   3, int64       what the embeddings were looked up by
    sum of the three                          H              LayerNorm's input
    mean and 1 / deviation                    2, float32
    dropout                                   H, one byte    which elements stay

A layer, a token; an output that is the next one's input counts once:

    input                          H            of query, key and value (pre-LN: of LayerNorm)
    query, key, value              3 H          of the attention
    context                        H            the attention's output, input of its dense
    log of the softmax's sum       N, float32   a fused kernel keeps no probabilities
    first residual sum             H            LayerNorm's input
    LayerNorm's output             H            input of the feed-forward
    before and after GELU          2 I
    second residual sum            H            LayerNorm's input (pre-LN: instead of it, the first
                                                LayerNorm's output)
    mean and 1 / deviation, twice  4, float32
    two dropouts                   2 H, one byte each

so 8 H + 2 I elements, 2 H bytes and 4 N + 16 more: with I = 4 H and two bytes an element 34 H, the
figure of Korthikanti et al. 2022 (arXiv:2205.05198, equation 1) without its term of probabilities.

MLM head, a masked position: 4 H (the state, before and after GELU, after LayerNorm) and the scores
of the vocabulary, V rounded up to 64, in whose place their gradient is written. Where V is no
multiple of 64 the rounded decoder matrix is a copy. NSP head, a row: [CLS] and the pooler's output;
`padded` keeps the whole last output for [CLS], a view of it.

With `recompute_every` k a group of k layers keeps its input alone, and one group at a time has its
layers' activations while it is computed again.

The backward pass works in memory besides: at the head the scores' gradient, in float32 some rows at
a time, and the decoder's; in a layer the gradients of I and 2 H a token. The gradient of a tied
decoder waits for that of the word embeddings, which comes last.

Legend: T tokens, B rows, P masked positions of a micro batch, H hidden_size, I intermediate_size,
N heads, V vocab_size.
"""

from __future__ import annotations

from bert_ds.config.deepspeed import Precision
from bert_ds.config.model import ModelConfig
from bert_ds.config.recipe import ExecutionConfig, PhaseConfig
from bert_ds.model.family import ELEMENT_BYTES, MicroBatchMemory

VOCABULARY_MULTIPLE = 64
"""The value of `BertMaskedLMHead.vocabulary_multiple` on GPUs."""
_LOSS_CHUNK_BYTES = 32 * 2**20
"""Bytes of the scores that are in float32 at a time; see `bert_ds.objectives.cross_entropy`."""


def micro_batch_memory(
    model: ModelConfig,
    phase: PhaseConfig,
    execution: ExecutionConfig,
    precision: Precision,
    micro_batch_size: int,
) -> MicroBatchMemory:
    """Return what a micro batch of full rows takes at its peak, in the head or the last layer.

    Args:
        model: shape of the network.
        phase: gives the lengths of rows and the masked positions in them.
        execution: layout and recomputation; `compile` is not accounted for.
        precision: precision of weights and activations.
        micro_batch_size: rows.
    """
    size = ELEMENT_BYTES[precision]
    tokens = micro_batch_size * phase.sequence_length
    every, layers = execution.recompute_every, model.num_hidden_layers
    state = tokens * model.hidden_size * size
    one_layer = layer_bytes(model, tokens, size)
    kept = embedding_bytes(model, tokens, size)
    recomputed = 0
    if every:
        kept += -(-layers // every) * state
        recomputed = min(every, layers) * one_layer - state
    else:
        kept += layers * one_layer
    if model.layer_norm_position == "pre":
        kept += state + 8 * tokens
    head = head_bytes(model, phase, execution, micro_batch_size, size)
    decoder = _padded_vocabulary(model) * model.hidden_size * size
    scores = micro_batch_size * phase.max_predictions_per_seq * _padded_vocabulary(model) * 4
    copies = 1 if size == 4 else 2  # of the conversion, and within logsumexp
    head_work = max(state, decoder, copies * min(_LOSS_CHUNK_BYTES, scores))
    layer_work = decoder + tokens * (model.intermediate_size + 2 * model.hidden_size) * size
    if head + head_work >= recomputed + layer_work:
        return MicroBatchMemory(kept, head, head_work)
    return MicroBatchMemory(kept + recomputed, 0, layer_work)


def embedding_bytes(model: ModelConfig, tokens: int, size: int) -> int:
    """Return the bytes that the embeddings keep for the backward pass.

    Args:
        model: shape of the network.
        tokens: tokens of the micro batch.
        size: bytes of an element.
    """
    masks = model.hidden_size if model.hidden_dropout_prob else 0
    return tokens * (model.hidden_size * size + masks + 3 * 8 + 8)


def layer_bytes(model: ModelConfig, tokens: int, size: int) -> int:
    """Return the bytes that a layer keeps for the backward pass, its input included.

    Args:
        model: shape of the network.
        tokens: tokens of the micro batch.
        size: bytes of an element.
    """
    elements = 8 * model.hidden_size + 2 * model.intermediate_size
    masks = 2 * model.hidden_size if model.hidden_dropout_prob else 0
    return tokens * (elements * size + masks + 4 * model.num_attention_heads + 16)


def head_bytes(
    model: ModelConfig, phase: PhaseConfig, execution: ExecutionConfig, rows: int, size: int
) -> int:
    """Return the bytes that both heads and the losses keep for the backward pass.

    Args:
        model: shape of the network.
        phase: gives the lengths of rows and the masked positions in them.
        execution: gives the layout.
        rows: rows of the micro batch.
        size: bytes of an element.
    """
    hidden, columns = model.hidden_size, _padded_vocabulary(model)
    predictions = rows * phase.max_predictions_per_seq
    vocabulary = predictions * ((4 * hidden + columns) * size + 8 + 4 + 2 * 8)
    padded_decoder = (hidden + 1) * columns * size if columns != model.vocab_size else 0
    first_of = phase.sequence_length if execution.batch_layout == "padded" else 1
    pairs = rows * (first_of * hidden + hidden + 2) * size
    return vocabulary + padded_decoder + pairs


def _padded_vocabulary(model: ModelConfig) -> int:
    return -(-model.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
