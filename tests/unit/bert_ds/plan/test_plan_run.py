"""The plan that `bert-ds plan` prints: by hand, against published figures, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_ds.bench.step import Measurement, StepBench
from bert_ds.config.loading import load_run_config
from bert_ds.config.recipe import RunConfig
from bert_ds.errors import ConfigError
from bert_ds.metrics.gpus import GPUS
from bert_ds.plan import PlanOptions, RunPlan, plan_as_text, plan_run, scaled
from bert_ds.plan.memory import GIB, largest_micro_batch, phase_memory

LARGE = Path(__file__).parents[4] / "ds_configs" / "bert-large"
STAGE_1 = "phases.1.deepspeed.zero_optimization.stage=1"
A100 = PlanOptions(gpu="a100-80")


def large(*overrides: str) -> RunConfig:
    return load_run_config(LARGE, overrides)


def planned(world_size: int, options: PlanOptions = A100, *overrides: str) -> RunPlan:
    return plan_run(large(*overrides), world_size, options)


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


def test_batches_and_work_by_hand() -> None:
    first, second = plan_run(large(), world_size=256).phases
    assert (first.gradient_accumulation_steps, second.gradient_accumulation_steps) == (4, 8)
    assert first.sequences == 65536 * 7038
    assert first.tokens_at_most == 65536 * 7038 * 128
    # recipes of NVIDIA: 2.406e11 FLOPs a row of 128 with 20 predictions, V = 30,528
    assert first.flops_at_most / first.sequences == pytest.approx(2.406e11, rel=1e-3)
    assert second.flops_at_most / second.sequences == pytest.approx(1.0205e12, rel=1e-3)


def test_without_a_gpu_there_is_memory_but_no_limit_and_no_time() -> None:
    plan = plan_run(large(), world_size=64)
    assert plan.machine is None and plan.total_s is None
    for phase in plan.phases:
        assert phase.memory_bytes.total > 8 * GIB
        assert phase.largest_micro_batch is None and phase.time is None
    text = plan_as_text(plan)
    assert "memory a GPU in fp16 at ZeRO 1, full rows: 10.6 GiB\n" in text
    assert "time" not in text and "assumed" not in text


def test_memory_of_bert_large_by_hand() -> None:
    memory = planned(64).phases[0].memory_bytes
    n, tokens = 336_226_108, 64 * 128
    assert (memory.weights, memory.gradients) == (2 * n, 2 * n)
    assert memory.optimizer == 12 * 5_253_533  # n / 64, rounded up
    assert memory.buffers == 10**9
    layers = 24 * tokens * (34 * 1024 + 80)
    embeddings = tokens * (3 * 1024 + 32)
    assert memory.activations == layers + embeddings
    assert memory.heads == pytest.approx(64 * 20 * (30528 + 4096) * 2 + 30528 * 2050, rel=0.01)
    assert memory.peak_at == "micro batch"
    tensors = memory.total - memory.allowance
    assert memory.allowance == pytest.approx(1.3 * GIB + 0.05 * tensors, rel=1e-6)


@pytest.mark.parametrize(
    ("gpu", "world_size", "phase", "published", "tolerance"),
    [
        # NVIDIA DeepLearningExamples, fp16, sequences/s; the first one is what the MFU is from
        ("a100-80", 1, 0, 580, 0.02),
        ("a100-80", 8, 0, 4591, 0.05),
        ("a100-80", 256, 0, 138_294, 0.10),
        # DeepSpeed bing_bert, 52% and 42% of the peak where 45% is assumed
        ("v100-32", 1, 0, 272, 0.16),
        ("v100-32", 1, 1, 52, 0.10),
    ],
)
def test_predicted_throughput_is_near_the_published(
    gpu: str, world_size: int, phase: int, published: float, tolerance: float
) -> None:
    # DGX A100 hosts have eight ports of 200 Gbit/s
    plan = planned(world_size, PlanOptions(gpu=gpu, network_gbit_per_s=1600.0), STAGE_1)
    time = plan.phases[phase].time
    assert time is not None
    assert time.sequences_per_s == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize(
    ("world_size", "minutes"), [(16, 33 * 60 + 13), (64, 8 * 60 + 41), (256, 144), (1024, 44)]
)
def test_predicted_runs_take_about_as_long_as_deepspeeds(world_size: int, minutes: float) -> None:
    # bing_bert on DGX-2 hosts: about 6,150 and 610 updates of these batches, and more GPUs lose
    # time that no prediction has. Measured: 9% more than published to 16% less.
    options = PlanOptions(gpu="v100-32", gpus_per_host=16, network_gbit_per_s=800.0)
    steps = ("phases.0.total_steps=6150", "phases.1.total_steps=610")
    total_s = planned(world_size, options, STAGE_1, *steps).total_s
    assert total_s is not None
    assert total_s / 60 == pytest.approx(minutes, rel=0.18)


def test_an_update_is_the_sum_of_its_parts() -> None:
    for phase in planned(64).phases:
        time = phase.time
        assert time is not None
        computing = phase.gradient_accumulation_steps * time.micro_batch_s
        assert time.update_s == pytest.approx(
            computing + time.optimizer_s + time.exposed_exchange_s
        )
        assert time.phase_s == phase.total_steps * time.update_s


def test_stage_2_exchanges_in_every_micro_batch() -> None:
    first, second = (planned(64, A100, *s).phases[1].time for s in ((STAGE_1,), ()))
    assert first is not None and second is not None
    once = 2 * 63 / 64 * 2 * 336_226_108 / (0.8 * 25e9)  # 200 Gbit/s
    gather = once / 2
    assert first.exchange_s == pytest.approx(once + gather)
    assert second.exchange_s == pytest.approx(32 * once + gather)
    assert second.exposed_exchange_s == second.exchange_s  # nothing overlaps as configured


def test_overlap_hides_all_but_the_last_bucket() -> None:
    zero = "phases.1.deepspeed.zero_optimization"
    overlap = f"{zero}.overlap_comm=true"
    useless = planned(64, A100, overlap).phases[1].time
    small = planned(64, A100, overlap, f"{zero}.reduce_bucket_size=33622611").phases[1].time
    assert useless is not None and small is not None
    assert useless.exposed_exchange_s == useless.exchange_s  # the bucket takes the whole model
    once = 2 * 63 / 64 * 2 * 336_226_108 / (0.8 * 25e9)
    assert small.exposed_exchange_s == pytest.approx(32 * once / 10 + once / 2, rel=1e-3)


def test_a_single_host_exchanges_over_its_own_links() -> None:
    inside, outside = planned(8, A100).phases[0].time, planned(16, A100).phases[0].time
    assert inside is not None and outside is not None
    assert inside.exchange_s == pytest.approx(3 * 7 / 8 * 2 * 336_226_108 / (0.8 * 300e9))
    assert outside.exchange_s == pytest.approx(3 * 15 / 16 * 2 * 336_226_108 / (0.8 * 25e9))


def test_recomputation_takes_less_memory_and_up_to_a_third_more_time() -> None:
    plain, again = (
        planned(64, A100, f"execution.recompute_every={every}").phases[0] for every in (0, 1)
    )
    assert again.memory_bytes.total < plain.memory_bytes.total / 2
    assert plain.time is not None and again.time is not None
    assert 1.25 < again.time.micro_batch_s / plain.time.micro_batch_s < 1.34
    assert plain.largest_micro_batch is not None and again.largest_micro_batch is not None
    assert again.largest_micro_batch.fits > plain.largest_micro_batch.fits


def test_offload_is_host_memory_of_a_full_host() -> None:
    offload = 'deepspeed.zero_optimization.offload_optimizer={"device": "cpu"}'
    phase = planned(64, A100, offload).phases[0]
    assert phase.memory_bytes.optimizer == 0
    assert phase.host_memory_bytes == 8 * phase.memory_bytes.host_per_rank > 0
    assert "memory a host, offloaded: 1.17 GiB" in plan_as_text(planned(64, A100, offload))
    few = planned(4, PlanOptions(gpus_per_host=2), offload).phases[0]
    assert few.host_memory_bytes == 2 * few.memory_bytes.host_per_rank


@settings(max_examples=60, deadline=None)
@given(
    gpu=st.sampled_from(GPUS),
    ranks=st.sampled_from([1, 2, 8, 24, 64]),
    phase=st.integers(0, 1),
    stage=st.integers(1, 3),
    every=st.integers(0, 3),
)
def test_the_largest_micro_batch_fits_and_one_more_does_not(
    gpu: Any, ranks: int, phase: int, stage: int, every: int
) -> None:
    config = large(
        f"execution.recompute_every={every}", f"deepspeed.zero_optimization.stage={stage}"
    )
    chosen = config.phases[phase]
    limit = gpu.memory_gib * GIB

    def total(micro: int) -> int:
        return phase_memory(config.model, chosen, config.execution, ranks, micro, 2).total

    found = largest_micro_batch(config.model, chosen, config.execution, ranks, limit)
    rows = chosen.deepspeed.train_batch_size // ranks
    assert found.fits == 0 or total(found.fits) <= limit
    assert found.fits == rows or total(found.fits + 1) > limit
    assert found.divides <= found.fits
    dividing = [
        micro
        for micro in range(1, found.fits + 1)
        if chosen.deepspeed.train_batch_size % (micro * ranks) == 0
    ]
    assert found.divides == max(dividing, default=0)


def test_what_does_not_fit_is_said() -> None:
    text = plan_as_text(planned(1, PlanOptions(gpu="t4"), "phases.0.deepspeed."
                                "train_micro_batch_size_per_gpu=512"))  # fmt: skip
    assert "of 14.6 GiB (t4), too much" in text
    assert "largest micro batch that fits" in text
    tiny = planned(1, PlanOptions(gpu="t4"), "model.num_hidden_layers=120")
    assert tiny.phases[0].largest_micro_batch is not None
    assert tiny.phases[0].largest_micro_batch.fits == 0
    assert "no micro batch fits" in plan_as_text(tiny)


def test_json_is_plain_values_and_whole() -> None:
    plan = planned(64)
    found = json.loads(json.dumps(plan.as_dict()))
    assert found["machine"]["gpu"]["name"] == "a100-80"
    assert found["assumed_mfu"] == 0.45
    assert found["phases"][0]["memory_bytes"]["weights"] == 2 * 336_226_108
    assert found["phases"][1]["largest_micro_batch"]["divides"] == 128
    assert found["total_s"] == sum(phase["time"]["phase_s"] for phase in found["phases"])
    assert any("45% of the peak" in line for line in found["assumptions"])


def test_a_plan_needs_neither_torch_nor_deepspeed() -> None:
    program = (
        "import sys; from bert_ds.cli import main; "
        f"main(['plan', '--recipe', {str(LARGE)!r}, '--world-size', '8', '--gpu', 'h100']); "
        "sys.exit(bool({'torch', 'deepspeed', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "all phases:" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (PlanOptions(gpu="a100"), r"--gpu a100 is not known; known are b200, h200, .*a100-80"),
        (PlanOptions(gpu="h100", mfu=1.2), r"--mfu must be above 0 and at most 1, it is 1\.2"),
        (PlanOptions(gpu="h100", mfu=0.0), r"--mfu must be above 0"),
        (PlanOptions(gpus_per_host=0), r"--gpus-per-host must be at least 1, it is 0"),
        (PlanOptions(gpu="h100", network_gbit_per_s=0.0), r"--network-gbit-per-s must be above 0"),
        (PlanOptions(mfu=0.5), r"--mfu predicts time, .*: add --gpu"),
        (PlanOptions(network_gbit_per_s=100.0), r"--network-gbit-per-s predicts time"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: PlanOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_run(large(), 64, options)


def test_bf16_is_refused_on_gpus_without_it() -> None:
    bf16 = ("deepspeed.fp16.enabled=false", "deepspeed.bf16.enabled=true")
    with pytest.raises(ConfigError, match=r"phase1 asks for bf16, which v100-16 does not have"):
        planned(64, PlanOptions(gpu="v100-16"), *bf16)
    assert planned(64, A100, *bf16).phases[0].precision == "bf16"


def measured_file(path: Path, **changes: Any) -> Path:
    """What `bert-ds bench step --json` writes of phase 1."""
    config = large()
    bench = StepBench(
        recipe="bert-large",
        model=config.model.model_dump(),
        phase="phase1",
        sequence_length=128,
        micro_batch_size=64,
        accumulation=2,
        real_tokens_share=0.8,
        precision="fp16",
        device="NVIDIA A100-SXM4-80GB",
        num_threads=1,
        repeats=5,
        execution=config.execution.model_dump(),
        measurements=(Measurement("bert_ds", 0.21, 128 / 0.21, 120.0, 9000.0),),
        ratio=None,
        memory_ratio=None,
        agreement=None,
    )
    path.write_text(json.dumps(bench.as_dict() | changes))
    return path


def test_a_measurement_takes_the_place_of_the_assumption(tmp_path: Path) -> None:
    file = measured_file(tmp_path / "step.json")
    plan = planned(64, PlanOptions(measured=(file,)))
    assert plan.machine is not None and plan.machine.gpu.name == "a100-80"
    first, second = (phase.time for phase in plan.phases)
    assert first is not None and second is not None
    assert first.is_measured and not second.is_measured
    lamb_s = 64 * 336_226_108 / (0.8 * 2039e9)  # of the measured update, on one GPU
    assert first.micro_batch_s == pytest.approx((0.21 - lamb_s) / 2)
    flops = 16 * 120e12 * 0.21 / 2
    assert first.mfu == pytest.approx(flops / first.update_s / 312e12)
    text = plan_as_text(plan)
    assert "phase1's micro batch was measured on NVIDIA A100-SXM4-80GB" in text
    assert "other phases compute full rows at 45% of the peak" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_length": 512}, r"measured with sequence_length 512 and not 128 of phase1"),
        ({"micro_batch_size": 32}, r"train_micro_batch_size_per_gpu 32 and not 64"),
        ({"precision": "bf16"}, r"precision 'bf16' and not 'fp16'"),
        ({"execution": {"recompute_every": 1}}, r"execution\.recompute_every 1 and not 0"),
        ({"phase": "other"}, r"measured in phase 'other', and the recipe has phase1, phase2"),
        ({"device": "CPU"}, r"measured on CPU, which is none of the GPUs that are known"),
        ({"accumulation": 0}, r"is not what bert-ds bench step --json writes: accumulation"),
        ({"measurements": []}, r"is not what bert-ds bench step --json writes: measurements"),
        (
            {"measurements": [{"name": "transformers", "update_s": 1.0, "tflop_per_s": 1.0}]},
            r"no measurement of bert_ds in it",
        ),
    ],
)
def test_a_measurement_of_something_else_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = measured_file(tmp_path / "step.json", **changes)
    with pytest.raises(ConfigError, match=message):
        planned(64, PlanOptions(measured=(file,)))


def test_a_measurement_of_another_model_or_gpu_or_none_is_refused(tmp_path: Path) -> None:
    file = measured_file(tmp_path / "step.json")
    with pytest.raises(ConfigError, match=r"model\.num_hidden_layers 24 and not 12"):
        planned(64, PlanOptions(measured=(file,)), "model.num_hidden_layers=12")
    with pytest.raises(ConfigError, match=r"measured on NVIDIA A100.* and not on h100"):
        planned(64, PlanOptions(gpu="h100", measured=(file,)))
    with pytest.raises(ConfigError, match=r"are both of phase1; leave one out"):
        planned(64, PlanOptions(measured=(file, file)))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"it does not name its model"):
        planned(64, PlanOptions(measured=(tmp_path / "other.json",)))
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.json"):
        planned(64, PlanOptions(measured=(tmp_path / "absent.json",)))
