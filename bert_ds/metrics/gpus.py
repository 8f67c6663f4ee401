"""What GPUs can do, of NVIDIA's data sheets: for MFU in logs and for `bert-ds plan`. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        name: as `bert-ds plan --gpu` takes it.
        family: part of the device's name.
        memory_tag: part of the device's name that tells sizes of a family apart; "" for none.
        memory_gib: that programs can use, GiB: some per cent less than the size it is sold as.
        memory_gb_per_s: bandwidth of its memory, 10^9 bytes a second.
        half_tflop_per_s: dense peak in fp16 (and bf16), 10^12 FLOP/s.
        single_tflop_per_s: peak in float32 without TF32, 10^12 FLOP/s.
        link_gb_per_s: to the other GPUs of its host in one direction, 10^9 bytes a second: NVLink,
            else PCIe.
        has_bf16: whether it computes in bf16.
    """

    name: str
    family: str
    memory_tag: str
    memory_gib: float
    memory_gb_per_s: float
    half_tflop_per_s: float
    single_tflop_per_s: float
    link_gb_per_s: float
    has_bf16: bool = True

    def peak_tflop_per_s(self, precision: str) -> float:
        """Dense peak, 10^12 FLOP/s."""
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
"""A family whose name holds another one's comes before it. Peaks, bandwidths and links are those of
NVIDIA's data sheets, of the SXM form where there is one: a sheet's NVLink figure counts both
directions, the one here is half of it. Usable memory is what CUDA reports for the device, which no
sheet says; it differs by some tenths with the driver."""


def peak_tflop_per_s(device_name: str, precision: str) -> float | None:
    """Published dense peak of a device, 10^12 FLOP/s; None where it is not known, as of CPUs.

    Args:
        device_name: as `torch.cuda.get_device_name` says.
        precision: of the model.
    """
    for gpu in GPUS:
        if gpu.family in device_name:
            return gpu.peak_tflop_per_s(precision)
    return None


def gpu_of_device(device_name: str) -> Gpu | None:
    """The kind of a device with this name, its memory included; None where it is not known."""
    for gpu in GPUS:
        if gpu.family in device_name and gpu.memory_tag in device_name:
            return gpu
    return None
