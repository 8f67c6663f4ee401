"""What DeepSpeed keeps and sends, by hand for BERT-large; `tests/distributed` asks DeepSpeed."""

from __future__ import annotations

from typing import Any

import pytest

from bert_ds.plan.zero import Traffic, Zero, ZeroMemory, zero_memory, zero_traffic
from tests.support.plan_memory import phase_of

N = 336_226_108
"""Parameters of BERT-large."""
LARGEST = 30522 * 1024
OWN = 84_056_527
"""A quarter of them."""


def of(zero: dict[str, Any], precision: str = "fp16", **deepspeed: Any) -> Zero:
    phase = phase_of(precision, zero, world_size=4)
    return Zero.of(phase.with_deepspeed(**deepspeed))


def memory(
    zero: dict[str, Any], precision: str = "fp16", ranks: int = 4, **deepspeed: Any
) -> ZeroMemory:
    return zero_memory(of(zero, precision, **deepspeed), N, LARGEST, ranks, accumulation=8)


def test_two_two_and_twelve_bytes_a_parameter_on_one_rank() -> None:
    for stage in (1, 2):
        found = memory({"stage": stage}, ranks=1)
        assert (found.weights, found.gradients, found.optimizer) == (2 * N, 2 * N, 12 * N)
        assert found.buffers == 10**9  # 500 million elements of two bytes
        assert found.host == 0


def test_float32_without_zero_is_16_bytes_a_parameter() -> None:
    found = memory({"stage": 0}, "fp32")
    assert found == ZeroMemory(4 * N, 4 * N, 8 * N, 0, 4 * N, 4 * N, 0)
    assert memory({"stage": 0}, "fp32", ranks=1).exchange == 0


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer"),
    [
        (1, 2 * N, 2 * N, 12 * OWN),
        (2, 2 * N, 2 * OWN, 12 * OWN),
        (3, 2 * N + 2 * OWN, 2 * OWN, 12 * OWN),  # n <= 5e8: all stay gathered
    ],
)
def test_stages_share_out_optimizer_gradients_and_weights(
    precision: str, stage: int, weights: int, gradients: int, optimizer: int
) -> None:
    found = memory({"stage": stage}, precision)
    assert (found.weights, found.gradients, found.optimizer) == (weights, gradients, optimizer)


def test_float32_under_zero_has_a_second_copy_of_the_own_weights() -> None:
    found = memory({"stage": 1}, "fp32")
    assert (found.weights, found.gradients, found.optimizer) == (4 * N, 4 * N, 12 * OWN)
    assert found.buffers == 2 * 10**9


def test_stage_3_gathers_as_far_as_parameters_are_used_again() -> None:
    found = memory({"stage": 3, "max_reuse_distance": 0, "prefetch_bucket_size": 10**7})
    assert found.weights == 2 * (10**7 + LARGEST) + 2 * OWN
    longer = memory({"stage": 3, "stage3_max_reuse_distance": 2e8, "prefetch_bucket_size": 0})
    assert longer.weights == 2 * (10**8 + LARGEST) + 2 * OWN


def test_buckets_are_of_the_configured_size_and_two_with_overlap() -> None:
    assert memory({"stage": 2, "reduce_bucket_size": 4 * 10**8}).buffers == 8 * 10**8
    two = memory({"stage": 2, "reduce_bucket_size": 4e8, "overlap_comm": True})
    assert two.buffers == 16 * 10**8
    assert memory({"stage": 1, "contiguous_gradients": False}).buffers == 0
    assert memory({"stage": 2, "contiguous_gradients": False}).buffers == 2 * N
    small = memory({"stage": 2, "reduce_bucket_size": 5e7})  # sent in between: with its copy
    assert small.buffers == 2 * 5 * 10**7 * 2
    assert memory({"stage": 1, "reduce_bucket_size": "auto"}).buffers == 10**9


def test_gradients_may_be_added_up_in_float32() -> None:
    types = {"grad_accum_dtype": "fp32"}
    assert memory({"stage": 2}, data_types=types).gradients == 4 * OWN
    assert memory({"stage": 1}, data_types=types).gradients == 4 * N


def test_offload_moves_the_optimizer_to_the_host() -> None:
    cpu = {"device": "cpu"}
    first = memory({"stage": 1, "offload_optimizer": cpu})
    assert (first.optimizer, first.gradients) == (0, 2 * N)
    assert first.host == (4 + 8 + 4 + 2) * OWN + 2 * LARGEST
    second = memory({"stage": 2, "offload_optimizer": cpu})
    assert (second.optimizer, second.gradients) == (0, 0)
    assert second.host == (4 + 8 + 4 + 2 + 2) * OWN + 2 * LARGEST
    third = memory({"stage": 3, "offload_optimizer": cpu, "offload_param": cpu})
    assert third.weights == 2 * N  # gathered
    assert third.host == (4 + 8 + 4 + 2 + 2) * OWN
    assert memory({"stage": 2, "offload_optimizer": {"device": "none"}}).host == 0


def test_stage_1_sends_gradients_and_weights_once_an_update() -> None:
    # a ring over 4 sends 3/4 of 2 bytes for each of reduce-scatter, all-gather, all-gather
    part = round(0.75 * 2 * N)
    assert zero_traffic(of({"stage": 1}), N, 4) == Traffic(2 * part, False, part, 0, 1.0)
    owners = of({"stage": 1, "use_multi_rank_bucket_allreduce": False})
    assert zero_traffic(owners, N, 4).gradients == part
    whole = of({"stage": 1, "use_multi_rank_bucket_allreduce": False, "reduce_scatter": False})
    assert zero_traffic(whole, N, 4).gradients == 2 * part
    assert zero_traffic(of({"stage": 1}), N, 1) == Traffic(0, False, 0, 0, 1.0)


def test_stages_2_and_3_send_in_each_micro_batch() -> None:
    part = round(0.75 * 2 * N)
    assert zero_traffic(of({"stage": 2}), N, 4) == Traffic(2 * part, True, part, 0, 1.0)
    assert zero_traffic(of({"stage": 3}), N, 4) == Traffic(part, True, 0, part, 1.0)
    forgetful = of({"stage": 3, "max_reuse_distance": 0})
    assert zero_traffic(forgetful, N, 4).gathered == 2 * part
    single = of({"stage": 0}, "fp32")
    assert zero_traffic(single, N, 4) == Traffic(4 * part, False, 0, 0, 1.0)


def test_only_buckets_before_the_last_can_overlap() -> None:
    assert zero_traffic(of({"stage": 2, "overlap_comm": True}), N, 4).last_share == 1.0
    small = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e7}
    assert zero_traffic(of(small), N, 4).last_share == pytest.approx(5e7 / N)
    assert zero_traffic(of({**small, "overlap_comm": False}), N, 4).last_share == 1.0


def test_gradients_may_be_sent_in_another_precision() -> None:
    half = of({"stage": 1}, communication_data_type="fp32")
    assert zero_traffic(half, N, 4).gradients == 2 * round(0.75 * 4 * N)
