"""Turn facts about hosts into findings: each host alone, and compared with the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from bert_ds.config.recipe import RunConfig
from bert_ds.doctor.findings import Finding
from bert_ds.doctor.host_facts import HostFacts
from bert_ds.plan import num_parameters

T = TypeVar("T")

CLOCK_WARNING_S = 2.0
MUNGE_S = 300.0
"""Slurm's munge refuses what is older or newer than this."""
_MUST_BE_EQUAL = ("python", "bert_ds", "torch", "deepspeed", "numpy", "tokenizers", "safetensors")
_BYTES_OF_A_PARAMETER = 12
"""In a checkpoint: weight, exp_avg and exp_avg_sq in float32."""
_OPEN_FILES = 1024
_SHARED_MEMORY = 1 << 30
_GIB = 1 << 30


def judge(
    hosts: Sequence[HostFacts],
    slots: Mapping[str, int],
    clock_offsets: Mapping[str, float],
    config: RunConfig | None,
) -> list[Finding]:
    """Return all findings.

    Args:
        hosts: facts about all hosts; the others are compared with the first one.
        slots: ranks that are to run on each host, by its name.
        clock_offsets: seconds that each host's clock is ahead of the first's.
        config: the recipe, where one was given.
    """
    return [
        *_versions(hosts),
        *_devices(hosts, slots),
        *_precisions(hosts),
        *_lamb(hosts),
        *_network(hosts),
        *_clocks(clock_offsets),
        *_folders(hosts, config),
        *_datasets(hosts),
        *_limits(hosts, sum(slots.values())),
    ]


def _by_value(values: Iterable[tuple[str, T]]) -> dict[T, list[str]]:
    """Group hosts by their value; `values` holds pairs of host and value."""
    found: dict[T, list[str]] = defaultdict(list)
    for host, value in values:
        found[value].append(host)
    return dict(found)


def _spelled(values: Mapping[T, Sequence[str]]) -> str:
    return "; ".join(f"{value} on {_named(names)}" for value, names in values.items())


def _named(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:6]) + (f" and {len(hosts) - 6} more" if len(hosts) > 6 else "")


def _versions(hosts: Sequence[HostFacts]) -> list[Finding]:
    names = sorted({name for host in hosts for name in host.versions})
    findings = []
    for name in names:
        values = _by_value((host.host, host.versions.get(name, "missing")) for host in hosts)
        if len(values) > 1:
            must = name in _MUST_BE_EQUAL
            message = f"{name} differs: {_spelled(values)}"
            way_out = "install the same version on every host, or one environment that all share"
            findings.append(Finding("error" if must else "warning", "versions", message, way_out))
    if not findings:
        first = hosts[0].versions
        named = ", ".join(f"{name} {first[name]}" for name in _MUST_BE_EQUAL if name in first)
        findings.append(Finding("ok", "versions", f"{named} on {_named([h.host for h in hosts])}"))
    return findings


def _devices(hosts: Sequence[HostFacts], slots: Mapping[str, int]) -> list[Finding]:
    findings = []
    kinds = _by_value((h.host, " and ".join(sorted(set(h.devices))) or "CPU") for h in hosts)
    if len(kinds) > 1:
        message = f"hosts differ: {_spelled(kinds)}"
        way_out = "all ranks wait for the slowest; leave the others out of the hostfile"
        findings.append(Finding("warning", "devices", message, way_out))
    for host in hosts:
        wanted = slots.get(host.host, 0)
        if host.devices and wanted > len(host.devices):
            message = f"{host.host} is to run {wanted} ranks and has {len(host.devices)} GPUs"
            way_out = f"write slots={len(host.devices)} or fewer for it"
            findings.append(Finding("error", "slots", message, way_out))
        elif not host.devices and wanted > host.cores:
            message = f"{host.host} is to run {wanted} ranks on {host.cores} CPU cores"
            findings.append(Finding("warning", "slots", message, "ranks share cores and wait"))
        if host.cores == 1 < host.all_cores:
            message = f"a rank on {host.host} may use one of its {host.all_cores} CPU cores"
            way_out = (
                "unbind it (mpirun --bind-to none): all its threads and readers share the core"
            )
            findings.append(Finding("warning", "cores", message, way_out))
    if not findings:
        kinds = _by_value((host.host, _device(host)) for host in hosts)
        findings.append(Finding("ok", "devices", _spelled(kinds)))
    return findings


def _device(host: HostFacts) -> str:
    number = f"{len(host.devices)} GPUs ({host.devices[0]})" if host.devices else "CPU"
    memory = f"{host.memory_bytes / _GIB:.0f} GiB"
    return f"{number}, {host.cores} cores, {memory}, DeepSpeed's accelerator {host.accelerator}"


def _precisions(hosts: Sequence[HostFacts]) -> list[Finding]:
    findings = []
    for precision in hosts[0].precisions:
        without = [host.host for host in hosts if not host.precisions.get(precision)]
        if without:
            message = f"DeepSpeed does not compute in {precision} on {_named(without)}"
            way_out = f"--set deepspeed.{precision}.enabled=false trains in float32"
            findings.append(Finding("error", "precision", message, way_out))
    return findings or [Finding("ok", "precision", f"{', '.join(hosts[0].precisions)} on all")]


def _lamb(hosts: Sequence[HostFacts]) -> list[Finding]:
    findings = []
    kernels = _by_value((host.host, host.lamb) for host in hosts)
    slow = [host.host for host in hosts if host.lamb.startswith("plain")]
    if slow:
        message = f"no fused LAMB on {_named(slow)}: {_spelled(kernels)}"
        way_out = "install a C compiler (CPU) or triton (GPU); updates are slower without"
        findings.append(Finding("warning", "LAMB", message, way_out))
    else:
        findings.append(Finding("ok", "LAMB", _spelled(kernels)))
    fused = _by_value((host.host, _fused_paths(host)) for host in hosts)
    findings.append(Finding("ok", "fused paths", _spelled(fused)))
    other = [host.host for host in hosts if host.apex == "another package of that name"]
    if other:
        message = f"the package apex on {_named(other)} is not NVIDIA's"
        way_out = "pip uninstall apex; NVIDIA's is built from its repository, and is not needed"
        findings.append(Finding("warning", "apex", message, way_out))
    return findings


def _fused_paths(host: HostFacts) -> str:
    """Return what could compute parts of a step there, whether it is needed or not."""
    packages = (f"{name} {host.versions.get(name, 'missing')}" for name in ("triton", "flash-attn"))
    return ", ".join((f"apex: {host.apex}", *packages, f"C compiler {host.compiler or 'missing'}"))


def _network(hosts: Sequence[HostFacts]) -> list[Finding]:
    findings = []
    for host in hosts:
        named = [name for name in host.interface.lstrip("^=").split(",") if name]
        present = {name for name, _ in host.addresses}
        if named and not host.interface.startswith("^"):
            if not any(name in present or name == "lo" for name in named):
                message = (
                    f"GLOO_SOCKET_IFNAME is {host.interface} on {host.host}, which has "
                    f"{', '.join(sorted(present)) or 'none'}"
                )
                way_out = "unset it: the interface that leads to the other hosts is found"
                findings.append(Finding("error", "network", message, way_out))
        if len(hosts) > 1 and not host.addresses:
            message = f"{host.host} has no address but the loopback"
            findings.append(Finding("error", "network", message, "connect it: ip address"))
    if not findings:
        named_addresses = [
            f"{host.host} " + " ".join(f"{name}={address}" for name, address in host.addresses)
            for host in hosts[:6]
        ]
        findings.append(Finding("ok", "network", "; ".join(named_addresses)))
    return findings


def _clocks(offsets: Mapping[str, float]) -> list[Finding]:
    if len(offsets) < 2:
        return []
    off = {host: value for host, value in offsets.items() if abs(value) > CLOCK_WARNING_S}
    if not off:
        largest = max(abs(value) for value in offsets.values())
        return [Finding("ok", "clocks", f"at most {largest:.1f} s apart")]
    first = next(iter(offsets))
    message = ", ".join(
        f"{host} is {abs(value):.0f} s {'ahead of' if value > 0 else 'behind'} {first}"
        for host, value in off.items()
    )
    way_out = (
        "run an NTP client (chrony) on every host: times in logs cannot be compared, and Slurm "
        f"refuses hosts that are more than {MUNGE_S:.0f} s off"
    )
    return [Finding("warning", "clocks", message, way_out)]


def _folders(hosts: Sequence[HostFacts], config: RunConfig | None) -> list[Finding]:
    findings = []
    blind = [host.host for host in hosts if host.sees_probe is False]
    if blind:
        first = hosts[0].host
        message = f"{_named(blind)} does not see what {first} writes to the run folder's disk"
        way_out = "mount the same file system at the same path on every host"
        findings.append(Finding("error", "shared folder", message, way_out))
    elif len(hosts) > 1 and all(host.sees_probe for host in hosts):
        findings.append(Finding("ok", "shared folder", "every host sees what the first one writes"))
    for host in hosts:
        if host.unwritable:
            message = f"{host.unwritable} cannot be written on {host.host}"
            findings.append(Finding("error", "run folder", message, "choose another --output-dir"))
    known = [host for host in hosts if host.free_bytes is not None]
    if config is not None and known:
        findings.append(_disk(known[0], config))
    return findings


def _disk(host: HostFacts, config: RunConfig) -> Finding:
    """Compare the free space with the checkpoints: the newest stays while the next is written."""
    free = host.free_bytes or 0
    one = num_parameters(config.model) * _BYTES_OF_A_PARAMETER
    kept = config.checkpoint.keep_last + 1 + int(config.checkpoint.keep_best)
    message = (
        f"{free / _GIB:.1f} GiB free for the run folder; a checkpoint takes {one / _GIB:.2f} GiB, "
        f"{kept} of them {kept * one / _GIB:.2f} GiB"
    )
    way_out = "choose an --output-dir with more room, or a lower checkpoint.keep_last"
    if free < 2 * one:
        return Finding("error", "disk", message, way_out)
    return Finding("warning", "disk", message, way_out) if free < kept * one else Finding(
        "ok", "disk", message
    )  # fmt: skip


def _datasets(hosts: Sequence[HostFacts]) -> list[Finding]:
    findings = []
    for name in sorted({name for host in hosts for name in host.datasets}):
        complaints = _by_value((h.host, h.datasets.get(name, {}).get("wrong", "")) for h in hosts)
        for wrong, names in complaints.items():
            if wrong:
                message = f"{wrong} (on {_named(names)})"
                way_out = "prepare it with bert-prep shards, or give the folder that has it"
                findings.append(Finding("error", f"dataset {name}", message, way_out))
        whole = [host for host in hosts if "fingerprint" in host.datasets.get(name, {})]
        for what in ("fingerprint", "vocabulary"):
            values = _by_value((host.host, host.datasets[name][what][:12]) for host in whole)
            if len(values) > 1:
                message = f"hosts have different data, {what} {_spelled(values)}"
                way_out = "give every host the same dataset: copy it, or share the folder"
                findings.append(Finding("error", f"dataset {name}", message, way_out))
            elif what == "fingerprint" and len(whole) == len(hosts):
                message = f"fingerprint {next(iter(values))}, the same on every host"
                findings.append(Finding("ok", f"dataset {name}", message))
        warned = [warning for host in hosts for warning in host.data_warnings.get(name, ())]
        for subject, measured, fix in dict.fromkeys(warned):
            findings.append(Finding("warning", f"rows of {name}", f"{subject}: {measured}", fix))
    return findings


def _limits(hosts: Sequence[HostFacts], num_ranks: int) -> list[Finding]:
    findings = []
    # each rank has a socket to every other one in each of three process groups
    needed = max(_OPEN_FILES, 4 * num_ranks)
    few = {h.host: h.open_files for h in hosts if 0 <= h.open_files < needed}
    if few:
        message = ", ".join(f"{host} allows {limit} open files" for host, limit in few.items())
        message += f", {needed} may be needed"
        way_out = "ulimit -n 65536 (sockets to all ranks, shards, logs)"
        findings.append(Finding("warning", "open files", message, way_out))
    small = {h.host: h.shared_memory_bytes for h in hosts if h.shared_memory_bytes < _SHARED_MEMORY}
    if small:
        message = ", ".join(f"{host} has {size >> 20} MiB" for host, size in small.items())
        way_out = "NCCL uses /dev/shm: docker run --shm-size=8g, or --ipc=host"
        findings.append(Finding("warning", "shared memory", message, way_out))
    if not findings:
        first = hosts[0]
        shared_mib = first.shared_memory_bytes >> 20
        message = f"{first.open_files} open files, {shared_mib} MiB in /dev/shm"
        findings.append(Finding("ok", "limits", message))
    return findings
