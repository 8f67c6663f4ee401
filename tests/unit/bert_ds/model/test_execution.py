"""How a step is computed changes nothing of what comes out: compiled, or by other kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch.nn import functional as F

from bert_ds.batch import Batch, PackedBatch, PretrainingBatch
from bert_ds.config.model import ModelConfig
from bert_ds.config.recipe import ExecutionConfig
from bert_ds.errors import ConfigError
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.model.execution import apply_execution, check_execution
from bert_ds.model.layer_norm import LayerNorm
from bert_ds.objectives import PRETRAINING
from tests.unit.bert_ds.model.conftest import random_model, unpadded

CPU = torch.device("cpu")


def outcome(model: BertForPreTraining, batch: Batch) -> dict[str, torch.Tensor]:
    """Losses, counts and gradients of a batch, with the same dropout every time."""
    model.zero_grad()
    torch.manual_seed(1)
    output = model.train()(batch)
    PRETRAINING.loss_of(output, {"mlm": 1, "nsp": 1}).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"sums": PRETRAINING.flatten(output).detach(), **gradients}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # torch's compiler has warnings about itself
@pytest.mark.parametrize(("position", "recompute_every"), [("post", 0), ("pre", 2)])
def test_compiled_layers_give_the_same_also_with_dropout(
    tiny_config: ModelConfig, padded_batch: PretrainingBatch, position: str, recompute_every: int
) -> None:
    model = random_model(tiny_config.model_copy(update={"layer_norm_position": position}))
    shorter = padded_batch._replace(attention_mask=padded_batch.attention_mask.clone())
    shorter.attention_mask[0, 20:] = False  # 42 tokens instead of 46, longest 20 instead of 24
    shorter.masked_lm_positions[1] = 19
    batches: list[Batch] = [unpadded(padded_batch), unpadded(shorter), padded_batch]

    def outcomes() -> Iterator[dict[str, torch.Tensor]]:
        for batch in batches:
            # a compiler draws the dropout within torch's own attention, of padded rows, its way
            is_torchs = isinstance(batch, PretrainingBatch)
            for layer in model.bert.encoder.layer:
                layer.attention.self.attention_probs_dropout_prob = 0.0 if is_torchs else 0.1
            yield outcome(model, batch)

    expected = list(outcomes())
    names = list(model.state_dict())
    apply_execution(model, ExecutionConfig(compile=True, recompute_every=recompute_every))
    torch._dynamo.reset()
    compiled = torch._dynamo.utils.counters
    compiled.clear()
    for found, values in zip(outcomes(), expected, strict=True):
        assert_same(found, values)
    assert not compiled["graph_break"]
    assert compiled["stats"]["unique_graphs"] >= 2  # rows end to end, and padded ones
    assert list(model.state_dict()) == names


def test_compiled_layers_need_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    check_execution(ExecutionConfig(), CPU)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"execution\.compile needs a C\+\+ compiler on CPUs"):
        check_execution(ExecutionConfig(compile=True), CPU)
    monkeypatch.setenv("CXX", sys.executable)
    check_execution(ExecutionConfig(compile=True), CPU)


def stand_in_apex(calls: list[tuple[int, ...]]) -> dict[str, ModuleType]:
    """Modules with the names of apex's, whose LayerNorm is torch's behind apex's signature."""

    def fused_layer_norm_affine(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        normalized_shape: tuple[int, ...],
        eps: float = 1e-6,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        calls.append(normalized_shape)
        return F.layer_norm(input, normalized_shape, weight, bias, eps)

    modules = {
        name: ModuleType(name)
        for name in (
            "fused_layer_norm_cuda",
            "apex",
            "apex.normalization",
            "apex.normalization.fused_layer_norm",
        )
    }
    function = {"fused_layer_norm_affine": fused_layer_norm_affine}
    vars(modules["apex.normalization.fused_layer_norm"]).update(function)
    return modules


@pytest.mark.parametrize("position", ["post", "pre"])
def test_every_layer_norm_is_apexs_where_it_is_asked_for(
    tiny_config: ModelConfig,
    packed_batch: PackedBatch,
    monkeypatch: pytest.MonkeyPatch,
    position: str,
) -> None:
    model = random_model(tiny_config.model_copy(update={"layer_norm_position": position}))
    expected = outcome(model, packed_batch)
    calls: list[tuple[int, ...]] = []
    for name, module in stand_in_apex(calls).items():
        monkeypatch.setitem(sys.modules, name, module)
    apply_execution(model, ExecutionConfig(layer_norm="apex"))
    assert_same(outcome(model, packed_batch), expected)
    num_norms = sum(isinstance(module, torch.nn.LayerNorm) for module in model.modules())
    assert calls == [(32,)] * num_norms
    assert all(isinstance(m, LayerNorm) for m in model.modules() if "LayerNorm" in str(type(m)))


def test_apex_is_refused_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    execution = ExecutionConfig(layer_norm="apex")
    with pytest.raises(ConfigError, match="has kernels for GPUs alone"):
        check_execution(execution, CPU)
    monkeypatch.setitem(sys.modules, "apex", ModuleType("apex"))  # the namesake on PyPI
    with pytest.raises(ConfigError, match="the package called apex on PyPI is another project"):
        check_execution(execution, torch.device("cuda"))
    with pytest.raises(ValueError, match="compile fuses torch's LayerNorm itself"):
        ExecutionConfig(layer_norm="apex", compile=True)


def test_deterministic_is_torchs_setting_and_cublas_workspace() -> None:
    """In a process of its own: it holds for a whole process."""
    program = (
        "import os, torch\n"
        "from bert_ds.config.recipe import ExecutionConfig\n"
        "from bert_ds.model.execution import prepare_process\n"
        "prepare_process(ExecutionConfig())\n"
        "assert not torch.are_deterministic_algorithms_enabled()\n"
        "assert 'CUBLAS_WORKSPACE_CONFIG' not in os.environ\n"
        "prepare_process(ExecutionConfig(deterministic=True))\n"
        "assert torch.are_deterministic_algorithms_enabled()\n"
        "assert os.environ['CUBLAS_WORKSPACE_CONFIG'] == ':4096:8'\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "CUBLAS_WORKSPACE_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
