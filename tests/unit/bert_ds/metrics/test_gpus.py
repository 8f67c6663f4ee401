"""The table of GPUs, by the names that torch gives devices."""

from __future__ import annotations

import pytest

from bert_ds.config.deepspeed import Precision
from bert_ds.metrics.gpus import GPUS, gpu_of_device, peak_tflop_per_s


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("Tesla V100-SXM3-32GB", "v100-32"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100 80GB PCIe", "a100-80"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("NVIDIA A100-SXM-64GB", None),
        ("CPU", None),
    ],
)
def test_a_device_is_known_by_its_name(device: str, name: str | None) -> None:
    gpu = gpu_of_device(device)
    assert (gpu.name if gpu else None) == name


@pytest.mark.parametrize(
    ("device", "precision", "peak"),
    [
        ("NVIDIA A100-SXM-64GB", "bf16", 312.0),  # of the family, whatever its memory
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("NVIDIA H100 PCIe", "fp16", 756.0),
        ("CPU", "fp16", None),
    ],
)
def test_peaks_are_those_of_the_family(
    device: str, precision: Precision, peak: float | None
) -> None:
    assert peak_tflop_per_s(device, precision) == peak


def test_names_are_unique_and_sizes_are_below_those_sold() -> None:
    assert len({gpu.name for gpu in GPUS}) == len(GPUS)
    for gpu in GPUS:
        if gpu.memory_tag:
            assert gpu.memory_gib < float(gpu.memory_tag.removesuffix("GB"))
