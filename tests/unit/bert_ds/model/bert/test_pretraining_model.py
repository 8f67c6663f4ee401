"""The model against Hugging Face's, and its own contract: sums, float32 losses, padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from bert_ds.batch import PretrainingBatch
from bert_ds.config.loading import load_run_config
from bert_ds.config.model import ModelConfig
from bert_ds.errors import DataError
from bert_ds.model.bert.init import init_weights
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.model.dropout import Dropout
from bert_ds.objectives import PRETRAINING
from bert_ds.plan import num_parameters
from tests.support.logits import logits_of

# float32, 3 layers, values near 1: the two sum in a different order, about 1e-6 apart.
LOGIT_TOLERANCE = 1e-5

TIED = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}


def hugging_face_twin(model: BertForPreTraining):
    """Hugging Face's model with the same weights, in evaluation mode."""
    transformers = pytest.importorskip("transformers")
    fields = model.config.model_dump(exclude={"architecture", "layer_norm_position"})
    if fields["hidden_act"] == "gelu_tanh":
        fields["hidden_act"] = "gelu_pytorch_tanh"
    twin = transformers.BertForPreTraining(transformers.BertConfig(**fields))
    unloaded = twin.load_state_dict(model.state_dict(), strict=False)
    assert set(unloaded.missing_keys) == TIED
    assert not unloaded.unexpected_keys
    twin.tie_weights()
    return twin.eval()


def hugging_face_logits(twin, batch: PretrainingBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """(MLM logits [P, V], NSP logits [B, 2])."""
    output = twin(
        input_ids=batch.input_ids,
        token_type_ids=batch.token_type_ids,
        attention_mask=batch.attention_mask.long(),
    )
    mlm = output.prediction_logits.flatten(0, 1)[batch.masked_lm_positions]
    return mlm, output.seq_relationship_logits


def own_logits(model: BertForPreTraining, batch: PretrainingBatch):
    return logits_of(model, *batch[:4])


def test_parameter_names_and_shapes_are_hugging_faces(tiny_model: BertForPreTraining) -> None:
    twin = hugging_face_twin(tiny_model)
    theirs = {name: t.shape for name, t in twin.state_dict().items() if name not in TIED}
    ours = {name: t.shape for name, t in tiny_model.state_dict().items()}
    assert ours == theirs


@pytest.mark.parametrize(
    ("recipe", "num_published"), [("bert-base", 110_106_428), ("bert-large", 336_226_108)]
)
def test_the_published_shapes_have_hugging_faces_names_shapes_and_size(
    recipe: str, num_published: int
) -> None:
    transformers = pytest.importorskip("transformers")
    config = load_run_config(Path(__file__).parents[5] / "ds_configs" / recipe).model
    with torch.device("meta"):
        model = BertForPreTraining(config)
        fields = config.model_dump(exclude={"architecture", "layer_norm_position"})
        twin = transformers.BertForPreTraining(transformers.BertConfig(**fields))
    theirs = {name: t.shape for name, t in twin.state_dict().items() if name not in TIED}
    assert {name: t.shape for name, t in model.state_dict().items()} == theirs
    assert sum(p.numel() for p in model.parameters()) == num_published == num_parameters(config)


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_tanh"])
def test_logits_equal_hugging_faces_on_padded_rows(
    tiny_config: ModelConfig, padded_batch: PretrainingBatch, hidden_act: str
) -> None:
    config = tiny_config.model_copy(update={"hidden_act": hidden_act, "initializer_range": 0.2})
    model = BertForPreTraining(config).eval()
    init_weights(model, seed=4)
    ours = own_logits(model, padded_batch)
    mlm, nsp = hugging_face_logits(hugging_face_twin(model), padded_batch)
    assert mlm.abs().max() > 1.0
    torch.testing.assert_close(ours.mlm, mlm, rtol=0, atol=LOGIT_TOLERANCE)
    torch.testing.assert_close(ours.nsp, nsp, rtol=0, atol=LOGIT_TOLERANCE)


def test_with_one_segment_type_segments_are_not_looked_at(
    tiny_config: ModelConfig, padded_batch: PretrainingBatch
) -> None:
    config = tiny_config.model_copy(update={"type_vocab_size": 1, "initializer_range": 0.2})
    model = BertForPreTraining(config).eval()
    init_weights(model, seed=4)
    assert padded_batch.token_type_ids.any()
    ours = own_logits(model, padded_batch)
    single = padded_batch._replace(token_type_ids=torch.zeros_like(padded_batch.token_type_ids))
    mlm, nsp = hugging_face_logits(hugging_face_twin(model), single)
    torch.testing.assert_close(ours.mlm, mlm, rtol=0, atol=LOGIT_TOLERANCE)
    torch.testing.assert_close(ours.nsp, nsp, rtol=0, atol=LOGIT_TOLERANCE)


def test_gradients_equal_hugging_faces(
    tiny_model: BertForPreTraining, padded_batch: PretrainingBatch
) -> None:
    twin = hugging_face_twin(tiny_model)
    output = tiny_model(padded_batch)
    PRETRAINING.loss_of(output, {"mlm": 1, "nsp": 1}).backward()
    mlm, nsp = hugging_face_logits(twin, padded_batch)
    loss = F.cross_entropy(mlm, padded_batch.masked_lm_ids, reduction="sum")
    (loss + F.cross_entropy(nsp, padded_batch.next_sentence_label, reduction="sum")).backward()
    theirs = dict(twin.named_parameters())
    for name, parameter in tiny_model.named_parameters():
        # Sums over 3 x 24 tokens of terms near 1, in another order.
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=2e-5)


def test_every_parameter_learns(
    tiny_model: BertForPreTraining, padded_batch: PretrainingBatch
) -> None:
    output = tiny_model(padded_batch)
    PRETRAINING.loss_of(output, {"mlm": 1, "nsp": 1}).backward()
    for name, parameter in tiny_model.named_parameters():
        assert parameter.grad is not None, name
        # A constant added to all keys moves no softmax: exactly 0 but for rounding.
        if not name.endswith("attention.self.key.bias"):
            assert parameter.grad.abs().max() > 1e-4, name


def test_a_padded_row_gives_the_same_as_alone(
    tiny_model: BertForPreTraining, padded_batch: PretrainingBatch
) -> None:
    together = own_logits(tiny_model, padded_batch)
    alone = logits_of(
        tiny_model,
        padded_batch.input_ids[1:2, :7],
        padded_batch.token_type_ids[1:2, :7],
        torch.ones(1, 7, dtype=torch.bool),
        torch.tensor([2, 6]),
    )
    torch.testing.assert_close(together.mlm[2:4], alone.mlm, rtol=0, atol=LOGIT_TOLERANCE)
    torch.testing.assert_close(together.nsp[1:2], alone.nsp, rtol=0, atol=LOGIT_TOLERANCE)


def test_padding_ids_change_nothing(
    tiny_model: BertForPreTraining, padded_batch: PretrainingBatch
) -> None:
    garbage = padded_batch.input_ids.masked_fill(~padded_batch.attention_mask, 33)
    changed = padded_batch._replace(input_ids=garbage)
    assert torch.equal(
        tiny_model(changed)["mlm"].loss_sum, tiny_model(padded_batch)["mlm"].loss_sum
    )


def test_output_is_sums_and_counts(
    tiny_model: BertForPreTraining, padded_batch: PretrainingBatch
) -> None:
    logits = own_logits(tiny_model, padded_batch)
    # Two of five positions are made right, one of three labels.
    best = logits.mlm.argmax(-1)
    ids = torch.stack([best[0], best[1] ^ 1, best[2], best[3] ^ 1, best[4] ^ 1])
    label = logits.nsp.argmax(-1) ^ torch.tensor([0, 1, 1])
    output = tiny_model(padded_batch._replace(masked_lm_ids=ids, next_sentence_label=label))

    log_p = logits.mlm.double().log_softmax(-1)
    expected = -sum(log_p[row, ids[row]].item() for row in range(5))
    assert output["mlm"].loss_sum.item() == pytest.approx(expected, rel=1e-6)
    log_p = logits.nsp.double().log_softmax(-1)
    expected = -sum(log_p[row, label[row]].item() for row in range(3))
    assert output["nsp"].loss_sum.item() == pytest.approx(expected, rel=1e-6)
    assert (output["mlm"].num_correct.item(), output["nsp"].num_correct.item()) == (2, 1)
    assert output["mlm"].loss_sum.dtype == output["nsp"].loss_sum.dtype == torch.float32
    assert output["mlm"].num_correct.dtype == output["nsp"].num_correct.dtype == torch.int64
    assert all(value.shape == () for term in output.values() for value in term)


def test_rows_without_a_pair_label_add_nothing_to_loss_counts_and_gradients(
    tiny_model: BertForPreTraining, padded_batch: PretrainingBatch
) -> None:
    label = own_logits(tiny_model, padded_batch).nsp.argmax(-1)
    partly = label.clone()
    partly[1] = -100
    whole = tiny_model(padded_batch._replace(next_sentence_label=label))
    some = tiny_model(padded_batch._replace(next_sentence_label=partly))
    assert (whole["nsp"].num_correct.item(), some["nsp"].num_correct.item()) == (3, 2)
    log_p = own_logits(tiny_model, padded_batch).nsp.double().log_softmax(-1)
    expected = -sum(log_p[row, label[row]].item() for row in (0, 2))
    assert some["nsp"].loss_sum.item() == pytest.approx(expected, rel=1e-6)
    none = tiny_model(padded_batch._replace(next_sentence_label=torch.full_like(label, -100)))
    assert (none["nsp"].loss_sum.item(), none["nsp"].num_correct.item()) == (0.0, 0)
    tiny_model.zero_grad()
    none["nsp"].loss_sum.backward()
    gradients = [p.grad for p in tiny_model.parameters() if p.grad is not None]
    assert gradients
    assert all(not gradient.any() for gradient in gradients)


def test_losses_of_a_bfloat16_model_are_computed_in_float32(
    tiny_model: BertForPreTraining, padded_batch: PretrainingBatch
) -> None:
    model = tiny_model.to(torch.bfloat16)
    logits = own_logits(model, padded_batch)
    assert logits.mlm.dtype == torch.bfloat16
    output = model(padded_batch)
    assert output["mlm"].loss_sum.dtype == torch.float32
    log_p = logits.mlm.double().log_softmax(-1)
    expected = -log_p.gather(1, padded_batch.masked_lm_ids[:, None]).sum().item()
    # bfloat16 anywhere in the loss would be 4e-3 off.
    assert output["mlm"].loss_sum.item() == pytest.approx(expected, rel=1e-6)


def test_a_batch_without_predictions_has_loss_0_and_gradient_0(
    tiny_model: BertForPreTraining, padded_batch: PretrainingBatch
) -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    output = tiny_model(padded_batch._replace(masked_lm_positions=nothing, masked_lm_ids=nothing))
    assert output["mlm"].loss_sum.item() == 0.0
    assert output["mlm"].num_correct.item() == 0
    output["mlm"].loss_sum.backward()
    for name, parameter in tiny_model.named_parameters():
        assert parameter.grad is None or not parameter.grad.any(), name


def test_mlm_head_runs_on_masked_positions_alone(
    tiny_model: BertForPreTraining, padded_batch: PretrainingBatch
) -> None:
    shapes = []
    tiny_model.cls.predictions.transform.register_forward_pre_hook(
        lambda module, inputs: shapes.append(tuple(inputs[0].shape))
    )
    tiny_model(padded_batch)
    assert shapes == [(5, 32)]


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_dropout_prob", 0.3), ("attention_probs_dropout_prob", 0.3)],
)
def test_each_dropout_acts_in_training_and_not_in_evaluation(
    tiny_config: ModelConfig, padded_batch: PretrainingBatch, field: str, value: float
) -> None:
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    plain = BertForPreTraining(tiny_config.model_copy(update=none)).train()
    dropping = BertForPreTraining(tiny_config.model_copy(update={**none, field: value}))
    init_weights(plain, seed=5)
    dropping.load_state_dict(plain.state_dict())
    expected = plain(padded_batch)["mlm"].loss_sum
    assert torch.equal(dropping.eval()(padded_batch)["mlm"].loss_sum, expected)
    torch.manual_seed(0)
    first = dropping.train()(padded_batch)["mlm"].loss_sum
    assert not torch.equal(first, expected)
    assert not torch.equal(dropping(padded_batch)["mlm"].loss_sum, first)
    torch.manual_seed(0)
    assert torch.equal(dropping(padded_batch)["mlm"].loss_sum, first)


def test_hidden_dropout_acts_on_embeddings_and_on_both_sublayers(
    tiny_config: ModelConfig, padded_batch: PretrainingBatch
) -> None:
    model = BertForPreTraining(tiny_config)
    probabilities = {
        name: module.p for name, module in model.named_modules() if isinstance(module, Dropout)
    }
    layers = range(tiny_config.num_hidden_layers)
    assert probabilities == {
        "bert.embeddings.dropout": 0.1,
        **{f"bert.encoder.layer.{i}.attention.output.dropout": 0.1 for i in layers},
        **{f"bert.encoder.layer.{i}.output.dropout": 0.1 for i in layers},
    }


def test_rows_beyond_the_position_embeddings_are_refused(tiny_model: BertForPreTraining) -> None:
    ids = torch.ones(1, 25, dtype=torch.int64)
    with pytest.raises(DataError, match=r"25 tokens exceed max_position_embeddings \(24\)"):
        logits_of(tiny_model, ids, ids, ids.bool(), torch.tensor([0]))
