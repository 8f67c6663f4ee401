"""Which kernel is taken, why, and what is refused."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

import pytest
import torch

from bert_ds.config.optimizer import KernelName
from bert_ds.errors import ConfigError
from bert_ds.optim import Lamb, kernels
from bert_ds.optim.kernels import Choice, build, choose_kernel
from tests.support.lamb_cases import StandInForAmpC, rule_at

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def choose(
    name: KernelName,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    fused_kernels: tuple[str, ...] = ("triton", "cpu", "apex"),
) -> Choice:
    return choose_kernel(name, device, dtype, fused_kernels)


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "bert_ds.optim.kernels.triton_lamb", raising=False)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    build_cpu = __import__("bert_ds.optim.kernels.cpu", fromlist=["_load"])
    build_cpu._load.cache_clear()


def test_on_cpus_the_one_in_c_is_taken() -> None:
    kernel, reason = choose("auto")
    assert kernel.name == "cpu"
    assert "OpenMP" in reason


def test_without_a_compiler_the_plain_one_is_taken_and_says_why(no_compiler: None) -> None:
    kernel, reason = choose("auto")
    assert kernel.name == "plain"
    assert reason == "cpu: no C compiler (cc, gcc, clang)"
    with pytest.raises(ConfigError, match=r"'cpu' cannot be used here: no C compiler"):
        choose("cpu")


def test_on_gpus_triton_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_try_once", lambda kernel, device: None)
    assert choose("auto", GPU).kernel.name == "triton"


def test_where_triton_cannot_start_a_kernel_the_next_is_taken() -> None:
    kernel, reason = choose("auto", GPU)  # this machine has no GPU
    assert kernel.name == "plain"
    assert "triton: Triton cannot compile or start a kernel here" in reason
    assert "apex: NVIDIA apex's amp_C cannot be imported" in reason


def test_without_triton_apex_is_taken(no_triton: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amp_C", StandInForAmpC())
    kernel, reason = choose("auto", GPU)
    assert kernel.name == "apex"
    assert "NVIDIA apex" in reason


def test_apex_is_not_taken_for_what_it_cannot_do(
    no_triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "amp_C", StandInForAmpC())
    kernel, reason = choose("auto", GPU, fused_kernels=rule_at(1, beta3=1.0).fused_kernels)
    assert kernel.name == "plain"
    assert "apex: it does not compute this optimizer with these settings" in reason


@pytest.mark.parametrize(
    ("amp_c", "why"),
    [(None, "amp_C cannot be imported"), (ModuleType("amp_C"), "has no multi_tensor_lamb_stage1")],
)
def test_another_project_called_apex_is_not_taken_for_nvidias(
    no_triton: None, monkeypatch: pytest.MonkeyPatch, amp_c: ModuleType | None, why: str
) -> None:
    monkeypatch.setitem(sys.modules, "apex", ModuleType("apex"))  # as PyPI has it
    monkeypatch.setitem(sys.modules, "amp_C", amp_c)
    kernel, reason = choose("auto", GPU)
    assert kernel.name == "plain"
    assert why in reason
    with pytest.raises(ConfigError, match=why):
        choose("apex", GPU)


@pytest.mark.parametrize(
    ("name", "device", "dtype", "why"),
    [
        ("triton", CPU, torch.float32, "it works on cuda tensors, and these lie on cpu"),
        ("apex", CPU, torch.float32, "it works on cuda tensors, and these lie on cpu"),
        ("cpu", GPU, torch.float32, "it works on cpu tensors, and these lie on cuda"),
        ("cpu", CPU, torch.float64, "it works in float32, and these are torch.float64"),
    ],
)
def test_a_kernel_asked_for_by_name_is_used_or_refused(
    name: KernelName, device: torch.device, dtype: torch.dtype, why: str
) -> None:
    with pytest.raises(ConfigError, match=f"kernel '{name}' cannot be used here: {why}"):
        choose(name, device, dtype)


def test_elsewhere_and_in_float64_the_plain_one_is_taken() -> None:
    assert choose("auto", torch.device("meta")).kernel.name == "plain"
    assert choose("auto", dtype=torch.float64).kernel.name == "plain"


def test_the_choice_is_logged_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = Lamb([weight], lr=0.1, kernel="plain")
    assert optimizer.kernel_choices == ()
    with caplog.at_level(logging.INFO, logger="bert_ds"):
        for _ in range(3):
            weight.grad = torch.ones(2)
            optimizer.step()
    assert caplog.messages == ["LAMB on cpu: kernel plain (asked for by name)"]
    assert [choice.kernel.name for choice in optimizer.kernel_choices] == ["plain"]


def test_flags_for_arm_name_its_processor_in_arms_way() -> None:
    assert "-mcpu=native" in build.flag_choices("aarch64")[0][0]
    assert "-march=native" in build.flag_choices("x86_64")[0][0]
