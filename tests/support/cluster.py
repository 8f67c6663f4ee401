"""Several hosts on one machine, out of namespaces: network, mounts, names, processes.

Each host has one interface, eth0, on a common bridge, an sshd with throw-away keys, its own /run,
/dev/shm and /etc/hosts, and sees the files of this machine as hosts see a shared folder. A host is
the process tree below one `unshare`: when that dies, or this process does, nothing of it is left.
Needs root, and Debian's iproute2, openssh-server and pdsh.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import ROOT, environment

NEEDED = ("ip", "sshd", "ssh-keygen", "pdsh", "unshare", "nsenter", "setpriv")
_UNSHARE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child")


def why_not() -> str | None:
    """What keeps this machine from making hosts, or None."""
    if os.geteuid() != 0:
        return "needs root: hosts are made out of namespaces"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    return (
        f"needs {', '.join(missing)}: apt-get install iproute2 openssh-server pdsh" * bool(missing)
        or None
    )


@dataclass
class Host:
    """One host.

    Attributes:
        name: of the host, which all hosts resolve.
        address: on the common network.
        port: the name of its end at the switch.
        init: the process, as this machine counts, that all others of the host are below.
    """

    name: str
    address: str
    port: str
    init: int

    def inside(self, *arguments: str | Path) -> list[str]:
        """A command line that runs a command on the host, by no network."""
        return [
            "nsenter", "--target", str(self.init), "--net", "--mount", "--uts", "--ipc", "--pid",
            f"--wd={ROOT}", *map(str, arguments),
        ]  # fmt: skip


class Cluster:
    """Hosts node1, node2, ... on one network; a context manager that ends them."""

    def __init__(self, num_hosts: int, folder: Path) -> None:
        """Args: how many; an empty folder that they share."""
        self.folder = folder
        self.num_hosts = num_hosts
        self.hosts: list[Host] = []
        self._holders: list[subprocess.Popen[bytes]] = []
        self._started: list[subprocess.Popen[str]] = []
        self._switch = 0

    def __enter__(self) -> Cluster:
        try:
            self._build()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    def start(
        self, host: Host, *arguments: str | Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command on a host, in a session of its own; stdout and stderr are text."""
        process = subprocess.Popen(
            host.inside(*arguments),
            cwd=ROOT,
            env=_environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(
        self,
        host: Host,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 150,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end."""
        process = self.start(host, *arguments, env=env)
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as err:
            os.killpg(process.pid, signal.SIGKILL)
            printed = process.communicate()
            raise AssertionError(f"not done after {timeout_s} s: {printed}") from err
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def hostfile(self, slots: int = 1, hosts: Sequence[Host] | None = None) -> Path:
        """A hostfile of these hosts, or of all."""
        chosen = self.hosts if hosts is None else hosts
        path = self.folder / f"hosts-{slots}-{len(chosen)}"
        path.write_text("".join(f"{host.name} slots={slots}\n" for host in chosen))
        return path

    def cut(self, host: Host) -> None:
        """Pull a host's cable: nothing comes to it and nothing leaves it."""
        self._at_switch("ip", "link", "set", host.port, "down")

    def cut_what_it_sends(self, host: Host) -> None:
        """Nothing that a host sends arrives any more; it still gets what is sent to it.

        It takes a hardware address for the others' that nobody has.
        """
        for other in self.hosts:
            if other is not host:
                nowhere = ("lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
                _do(*host.inside("ip", "neighbour", "replace", other.address, *nowhere))

    def stop_sshd(self, host: Host) -> None:
        """End a host's sshd; what it has started goes on."""
        _do(*host.inside("sh", "-c", "kill $(cat /run/sshd.pid)"))

    def start_sshd(self, host: Host, *options: str) -> None:
        """Start a host's sshd."""
        config = self.folder / "sshd_config"
        _do(*host.inside("/usr/sbin/sshd", "-f", config, "-E", self.folder / f"{host.name}.sshd",
                         *options))  # fmt: skip

    def end(self, host: Host) -> None:
        """The host loses its power: all its processes and its end of the cable are gone."""
        os.kill(host.init, signal.SIGKILL)

    def processes(self, host: Host, word: str) -> list[int]:
        """Processes of a host with a word in their command line, as this machine counts them."""
        namespace = os.stat(f"/proc/{host.init}/ns/pid").st_ino
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    is_there = os.stat(folder / "ns" / "pid").st_ino == namespace
                except OSError:
                    continue  # it has ended meanwhile
                if is_there and word in words:
                    found.append(int(folder.name))
        return sorted(found)

    def _build(self) -> None:
        self._switch = self._hold("--net")
        self._at_switch("ip", "link", "add", "br0", "type", "bridge")
        self._at_switch("ip", "link", "set", "br0", "up")
        names = [f"node{number + 1}" for number in range(self.num_hosts)]
        addresses = {name: f"10.77.0.{number + 1}" for number, name in enumerate(names)}
        self._write_settings(addresses)
        for name in names:
            init = self._hold("--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc")
            host = Host(name, addresses[name], f"to-{name}", init)
            self.hosts.append(host)
            self._at_switch(
                "ip", "link", "add", host.port, "type", "veth",
                "peer", "name", "eth0", "netns", str(init),
            )  # fmt: skip
            self._at_switch("ip", "link", "set", host.port, "master", "br0", "up")
            _do(*host.inside("sh", "-ec", _SET_UP_A_HOST, "sh", name, host.address, self.folder))
            self.start_sshd(host)

    def _write_settings(self, addresses: Mapping[str, str]) -> None:
        for key in ("host_key", "user_key"):
            _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key)
        shutil.copy(self.folder / "user_key.pub", self.folder / "authorized_keys")
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/authorized_keys\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\nPidFile /run/sshd.pid\n"
            "MaxStartups 100\n"
        )
        (self.folder / "ssh_config").write_text(
            f"Host *\n  IdentityFile {self.folder}/user_key\n  StrictHostKeyChecking no\n"
            "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
        )
        for own in addresses:  # as Debian writes it: a host's own name is on the loopback
            lines = ["127.0.0.1 localhost", f"127.0.1.1 {own}"]
            lines += [f"{address} {name}" for name, address in addresses.items() if name != own]
            (self.folder / f"{own}.hosts").write_text("\n".join(lines) + "\n")

    def _hold(self, *namespaces: str) -> int:
        """Start a process in namespaces of its own; the first process inside, as we count."""
        holder = subprocess.Popen(
            [*_UNSHARE, *namespaces, "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self._holders.append(holder)
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        for _ in range(500):
            found = children.read_text().split()
            if found and Path(f"/proc/{found[0]}/comm").read_text().strip() == "sleep":
                return int(found[0])
            time.sleep(0.01)
        raise AssertionError("the namespaces were not made")

    def _at_switch(self, *arguments: str) -> None:
        _do("nsenter", "--target", str(self._switch), "--net", *arguments)

    def _end(self) -> None:
        for holder in self._holders:
            holder.kill()
        for holder in self._holders:
            holder.wait()
        for process in self._started:
            if process.returncode is None:
                process.communicate()  # a test has failed before it asked
        for host in self.hosts:
            for _ in range(500):
                if not Path(f"/proc/{host.init}").exists():
                    break
                time.sleep(0.01)


_SET_UP_A_HOST = """
hostname "$1"
ip link set lo up
ip address add "$2/24" dev eth0
ip link set eth0 up
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir /run/sshd
mount --bind "$3/$1.hosts" /etc/hosts
mount --bind "$3/ssh_config" /etc/ssh/ssh_config
"""


def _environment(changes: Mapping[str, str] | None) -> dict[str, str]:
    return environment({"PDSH_RCMD_TYPE": "ssh", **(changes or {})})


def _do(*arguments: str | Path) -> None:
    """Run a short command that must succeed."""
    done = subprocess.run(
        [str(argument) for argument in arguments], capture_output=True, text=True, timeout=30,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.args}: {done.stderr}"


def start_slurm(cluster: Cluster) -> dict[str, str]:
    """Start munge and Slurm: a controller on the first host, a slurmd on each.

    Returns:
        The variables that Slurm's commands need.
    """
    folder = cluster.folder / "slurm"
    folder.mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    nodes = "".join(
        f"NodeName={host.name} NodeAddr={host.address} CPUs={os.cpu_count()} State=UNKNOWN\n"
        for host in cluster.hosts
    )
    config.write_text(
        "ClusterName=test\n"
        f"SlurmctldHost={cluster.hosts[0].name}({cluster.hosts[0].address})\n"
        "SlurmUser=root\nAuthType=auth/munge\nCredType=cred/munge\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n"
        "SchedulerParameters=sched_interval=5,bf_interval=5\nReturnToService=2\nMpiDefault=none\nKillWait=5\nSlurmdSpoolDir=/run/slurmd\n"
        f"StateSaveLocation={folder}/state\nSlurmctldPidFile=/run/slurmctld.pid\n"
        f"SlurmdPidFile=/run/slurmd.pid\nSlurmctldLogFile={folder}/slurmctld.log\n"
        f"SlurmdLogFile={folder}/slurmd-%h.log\n{nodes}"
        "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4\n"
    )
    (folder / "state").mkdir()
    env = {"SLURM_CONF": str(config)}
    for host in cluster.hosts:
        munge = f"mkdir -p /run/munge && munged --force --key-file {key} --socket " \
            f"/run/munge/munge.socket.2 --pid-file /run/munge/pid --log-file /run/munge/log " \
            "--seed-file /run/munge/seed"  # fmt: skip
        _do(*host.inside("sh", "-ec", munge))
        daemons = "slurmctld; slurmd" if host is cluster.hosts[0] else "slurmd"
        done = cluster.run(host, "sh", "-ec", daemons, env=env)
        assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        printed = cluster.run(cluster.hosts[0], "sinfo", "--noheader", "-o", "%D %t", env=env)
        if printed.stdout.split() == [str(len(cluster.hosts)), "idle"]:
            return env
        time.sleep(0.5)
    raise AssertionError(f"Slurm's nodes are not ready: {printed.stdout} {printed.stderr}")
