"""The facts about one host that decide whether and how a run works there; reads only."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from bert_ds import __version__
from bert_ds.config.recipe import PhaseConfig, RunConfig
from bert_ds.distributed.master_address import free_port
from bert_ds.doctor.shared_file_probe import SharedFileProbe
from bert_ds.engine import accelerator_support
from bert_ds.errors import CheckpointError, ConfigError, DataError
from bert_ds.optim.kernels import choose_kernel
from bert_ds.train.setup import open_phase_data
from data_prep.contract.manifest import dataset_folder
from data_prep.contract.quality import judge_dataset

_PACKAGES = (
    "torch", "deepspeed", "numpy", "tokenizers", "safetensors", "triton", "flash-attn", "mpi4py",
)  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """What a run needs of its hosts, as far as it is known."""

    config: RunConfig | None = None
    """Settings, or None where no recipe was given."""
    data: Path | None = None
    """The folder of datasets, or None."""
    output_dir: Path | None = None
    """The run folder, or None."""
    probe: SharedFileProbe | None = None
    """A file that was just written into the shared folder, or None."""


@dataclass(frozen=True)
class HostFacts:
    """The facts about a host."""

    host: str
    """Its name."""
    versions: dict[str, str]
    """Versions of Python and packages; a missing package is left out."""
    executable: str
    """The Python interpreter's path."""
    devices: list[str]
    """Names of its GPUs; none on a CPU host."""
    cores: int
    """CPU cores that this process may use."""
    all_cores: int
    """The host's cores, whatever this process is bound to."""
    memory_bytes: int
    """The host's memory."""
    accelerator: str
    """DeepSpeed's name of the accelerator."""
    precisions: dict[str, bool]
    """Whether DeepSpeed computes in each precision that the recipe asks for."""
    lamb: str
    """The kernel that LAMB would use, and why."""
    apex: str
    """`NVIDIA apex`, `another package of that name` or `missing`."""
    compiler: str
    """The C compiler's path, or empty."""
    addresses: list[tuple[str, str]]
    """Pairs of interface and address, without loopback and link-local ones; IPv4 first."""
    interface: str
    """GLOO_SOCKET_IFNAME, empty where it is not set."""
    free_port: int
    """A TCP port that is free."""
    clock: float
    """Seconds since 1970 by the host's clock when it was asked last."""
    open_files: int
    """A process's limit of open files."""
    shared_memory_bytes: int
    """Free bytes in /dev/shm."""
    datasets: dict[str, dict[str, str]] = field(default_factory=dict)
    """Fingerprint and vocabulary of each dataset by folder name, or what is wrong with it, also
    where a whole dataset does not fit the recipe."""
    data_warnings: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    """Weak points of each dataset by folder name: the share that was judged, its measured value
    with the cause, and the fix."""
    sees_probe: bool | None = None
    """Whether the shared folder holds the file that was just written; None where there is none to
    look for."""
    free_bytes: int | None = None
    """Free bytes on the run folder's disk, or None."""
    unwritable: str = ""
    """Why the run folder cannot be written, or empty."""

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain values for JSON."""
        return asdict(self)


def facts_from(values: dict[str, Any]) -> HostFacts:
    """Return the facts that another host has sent as JSON."""
    addresses = [(name, address) for name, address in values["addresses"]]
    warnings = {
        name: [(subject, measured, fix) for subject, measured, fix in entries]
        for name, entries in values["data_warnings"].items()
    }
    return HostFacts(**{**values, "addresses": addresses, "data_warnings": warnings})


def look_at_this_host(wanted: Wanted) -> HostFacts:
    """Collect the facts about this host."""
    has_gpus = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"
    num_devices = torch.cuda.device_count() if has_gpus else 0
    accelerator, supports = accelerator_support()
    asked = _precisions_of(wanted.config)
    folder = _existing(wanted.output_dir)
    datasets, data_warnings = _datasets(wanted)
    return HostFacts(
        host=socket.gethostname(),
        versions=_versions(),
        executable=sys.executable,
        devices=[torch.cuda.get_device_name(number) for number in range(num_devices)],
        cores=len(os.sched_getaffinity(0)),
        all_cores=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        accelerator=accelerator,
        precisions={name: supports[name] for name in asked},
        lamb=_lamb("cuda" if has_gpus else "cpu"),
        apex=_apex(),
        compiler=next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "") or "",
        addresses=_addresses(),
        interface=os.environ.get("GLOO_SOCKET_IFNAME", ""),
        free_port=free_port(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        shared_memory_bytes=_free_in("/dev/shm"),
        datasets=datasets,
        data_warnings=data_warnings,
        sees_probe=wanted.probe.is_seen() if wanted.probe else None,
        free_bytes=shutil.disk_usage(folder).free if folder else None,
        unwritable="" if folder is None or os.access(folder, os.W_OK) else f"{folder}",
        clock=time.time(),
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "bert_ds": __version__}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _precisions_of(config: RunConfig | None) -> list[str]:
    if config is None:
        return ["fp32", "fp16", "bf16"]
    return sorted({phase.deepspeed.precision for phase in config.phases})


def _lamb(device: str) -> str:
    choice = choose_kernel("auto", torch.device(device), torch.float32)
    return f"{choice.kernel.name} ({choice.reason})"


def _apex() -> str:
    """Return whose apex is installed: NVIDIA's is known by its extension, PyPI's is another."""
    if importlib.util.find_spec("amp_C") is not None:
        return "NVIDIA apex"
    is_there = importlib.util.find_spec("apex") is not None
    return "another package of that name" if is_there else "missing"


def _addresses() -> list[tuple[str, str]]:
    found = [
        (entry.family, name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
        and not entry.address.startswith(("127.", "::1", "fe80"))
    ]
    return [(name, address) for _, name, address in sorted(found, key=lambda entry: entry[0])]


def _free_in(path: str) -> int:
    return shutil.disk_usage(path).free if os.path.isdir(path) else 0


def _existing(folder: Path | None) -> Path | None:
    """Return the folder, or the nearest one above it that exists."""
    if folder is None:
        return None
    return next(place for place in (folder, *folder.absolute().parents) if place.is_dir())


def _datasets(
    wanted: Wanted,
) -> tuple[dict[str, dict[str, str]], dict[str, list[tuple[str, str, str]]]]:
    """Return `datasets` and `data_warnings` of `HostFacts`."""
    found: dict[str, dict[str, str]] = {}
    warnings: dict[str, list[tuple[str, str, str]]] = {}
    if wanted.config is None or wanted.data is None:
        return found, warnings
    fitting: list[PhaseConfig] = []  # phases are held against each other, too
    for phase in wanted.config.phases:
        name = dataset_folder(Path(), phase.sequence_length).name
        try:
            *_, opened = open_phase_data(wanted.config, wanted.data, [*fitting, phase])
        except (DataError, ConfigError, CheckpointError) as err:
            found[name] = {"wrong": str(err)}
            continue
        fitting.append(phase)
        manifest = opened.manifest
        vocabulary = manifest.vocabulary.sha256
        found.setdefault(name, {"fingerprint": manifest.fingerprint, "vocabulary": vocabulary})
        warnings[name] = [
            (entry.subject, ": ".join(filter(None, (entry.measured, entry.cause))), entry.fix)
            for entry in judge_dataset(manifest)
        ]
    return found, warnings
