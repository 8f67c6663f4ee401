"""Peaks of GPUs by NVIDIA's data sheets, for MFU in logs and for `bert-ds plan`; without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    """Name for `bert-ds plan --gpu`."""
    family: str
    """Part of the device's name."""
    memory_tag: str
    """Part of the device's name that distinguishes memory sizes of a family; "" for one size."""
    memory_gib: float
    """Memory that programs can use, GiB: some per cent less than the nominal size."""
    memory_gb_per_s: float
    """Bandwidth of the memory, 10^9 bytes/s."""
    half_tflop_per_s: float
    """Dense peak in fp16 (and bf16), 10^12 FLOP/s."""
    single_tflop_per_s: float
    """Peak in float32 without TF32, 10^12 FLOP/s."""
    link_gb_per_s: float
    """Bandwidth to the other GPUs of its host, one direction, 10^9 bytes/s: NVLink, else PCIe."""
    has_bf16: bool = True
    """Whether it computes in bf16."""

    def peak_tflop_per_s(self, precision: str) -> float:
        """Return the dense peak in a precision, 10^12 FLOP/s."""
        return self.single_tflop_per_s if precision == "fp32" else self.half_tflop_per_s


GPUS: tuple[Gpu, ...] = (
    Gpu("b200", "B200", "", 178.0, 8000.0, 2250.0, 75.0, 900.0),
    Gpu("h200", "H200", "", 139.8, 4800.0, 989.0, 67.0, 450.0),
    Gpu("h100-pcie", "H100 PCIe", "", 79.1, 2000.0, 756.0, 51.0, 64.0),
    Gpu("h100", "H100", "", 79.1, 3350.0, 989.0, 67.0, 450.0),
    Gpu("a100-80", "A100", "80GB", 79.1, 2039.0, 312.0, 19.5, 300.0),
    Gpu("a100-40", "A100", "40GB", 39.4, 1555.0, 312.0, 19.5, 300.0),
    Gpu("a800", "A800", "", 79.1, 2039.0, 312.0, 19.5, 200.0),
    Gpu("l40s", "L40S", "", 44.4, 864.0, 362.0, 91.6, 32.0),
    Gpu("v100-32", "V100", "32GB", 31.7, 900.0, 125.0, 15.7, 150.0, has_bf16=False),
    Gpu("v100-16", "V100", "16GB", 15.7, 900.0, 125.0, 15.7, 150.0, has_bf16=False),
    Gpu("t4", "T4", "", 14.6, 320.0, 65.0, 8.1, 16.0, has_bf16=False),
)
"""A family whose name contains another one's comes before it. Peaks, bandwidths and links are those
of NVIDIA's data sheets, for the SXM form where there is one. A sheet's NVLink figure counts both
directions; the one here is half of it. Usable memory is what CUDA reports for the device, which no
sheet lists; it differs by some tenths with the driver."""


def peak_tflop_per_s(device_name: str, precision: str) -> float | None:
    """Return the published dense peak of a device, 10^12 FLOP/s; None if unknown, as for CPUs.

    Args:
        device_name: the result of `torch.cuda.get_device_name`.
        precision: precision of the computation.
    """
    for gpu in GPUS:
        if gpu.family in device_name:
            return gpu.peak_tflop_per_s(precision)
    return None


def gpu_of_device(device_name: str) -> Gpu | None:
    """Return the kind of a device by its name, including its memory size; None if unknown."""
    for gpu in GPUS:
        if gpu.family in device_name and gpu.memory_tag in device_name:
            return gpu
    return None
