"""The scripts in launchers/: what they would run, what they refuse, and one of them for real."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from bert_ds.cli import build_parser
from bert_ds.distributed.master_address import free_port
from tests.support.commands import BIN, ROOT, run
from tests.support.run_folders import rows_of

pytestmark = pytest.mark.slow

PLACES = {"RECIPE": "recipe folder", "DATA": "/data", "RUN": "/run"}
WITHOUT_RESTART = "-m bert_ds supervise --max-restarts 0 --"
SUPERVISE = f"python3 {WITHOUT_RESTART}"
PYTHON = BIN / "python3"
TRAINS = "pretrain --recipe 'recipe folder' --data /data --output-dir /run --dry-run"


def closed(required: list[str], **properties: object) -> dict[str, object]:
    """The schema of an object that has no other fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_REPLICAS = closed(
    ["template"],
    replicas={"type": "integer", "minimum": 1},
    restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
    template={"type": "object"},
)
# The fields that the training operator's resource definition gives the kind (version v1, in its
# repository's manifests/base/crds/kubeflow.org_pytorchjobs.yaml), pods left out.
PYTORCH_JOB = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "kubeflow.org/v1"},
    kind={"const": "PyTorchJob"},
    metadata={"type": "object", "required": ["name"]},
    spec=closed(
        ["pytorchReplicaSpecs"],
        nprocPerNode={"type": "string"},
        elasticPolicy={"type": "object"},
        runPolicy={"type": "object"},
        pytorchReplicaSpecs=closed(["Master", "Worker"], Master=_REPLICAS, Worker=_REPLICAS),
    ),
)


def start_script(name: str, *arguments: str, **variables: str):
    return run("bash", ROOT / "launchers" / name, *arguments, env=variables)


@pytest.mark.parametrize(
    ("name", "variables", "expected"),
    [
        ("local.sh", {}, f"deepspeed --quiet --module bert_ds {TRAINS}"),
        (
            "local.sh",
            {"RANKS": "2", "MASTER_PORT": "7"},
            f"deepspeed --quiet --num_accelerators 2 --master_port 7 --module bert_ds {TRAINS}",
        ),
        (
            "hostfile.sh",
            {"HOSTFILE": "launchers/hosts.example", "MASTER_ADDR": "node1"},
            f"{SUPERVISE} deepspeed --quiet --hostfile "
            "launchers/hosts.example --launcher pdsh --master_addr node1 --module bert_ds "
            f"{TRAINS}",
        ),
        (
            "mpi.sh",
            {"RANKS": "4"},
            f"{PYTHON} {WITHOUT_RESTART} mpiexec -n 4 {PYTHON} -m bert_ds {TRAINS}",
        ),
        (
            "torchrun.sh",
            {"RANKS": "8", "HOSTS": "2", "RENDEZVOUS": "node1:29500"},
            f"{SUPERVISE} torchrun --nproc_per_node 8 --nnodes 2 --rdzv_backend c10d "
            f"--rdzv_id bert_ds --rdzv_endpoint node1:29500 -m bert_ds {TRAINS}",
        ),
        (
            "slurm.sbatch",
            {},
            f"{SUPERVISE} srun --kill-on-bad-exit=0 --wait=45 python3 -m bert_ds {TRAINS}",
        ),
    ],
)
def test_a_dry_run_prints_the_command(name: str, variables: dict[str, str], expected: str) -> None:
    done = start_script(name, "--dry-run", DRY_RUN="1", **PLACES, **variables)
    assert done.returncode == 0, done.stderr
    assert shlex.split(done.stdout) == shlex.split(expected)


def test_a_wrong_hostfile_is_reported_before_anything_starts(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("node1 slots=4\nnode1 slots=4\n")
    places = {**PLACES, "RECIPE": "ds_configs/bert-base", "RUN": str(tmp_path / "run")}
    done = start_script("hostfile.sh", HOSTFILE=str(hostfile), PYTHON=sys.executable, **places)
    assert done.returncode == 2
    assert "names node1 twice; add its slots up in one line" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_kubernetes_manifest_is_valid_and_its_command_is_one_of_ours() -> None:
    manifest = yaml.safe_load((ROOT / "launchers" / "kubernetes.yaml").read_text())
    jsonschema.validate(manifest, PYTORCH_JOB)
    replicas = manifest["spec"]["pytorchReplicaSpecs"]
    for spec in replicas.values():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, **spec["template"]}
        kubernetes_validate.validate(pod, "1.30", strict=True)
        (container,) = pod["spec"]["containers"]
        words = container["command"]
        assert words[:4] == ["torchrun", "-m", "bert_ds", "pretrain"]
        build_parser().parse_args(words[3:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": {"nprocPerNode": "8"}}, "'pytorchReplicaSpecs' is a required property"),
        ({"kind": "PytorchJob"}, "'PyTorchJob' was expected"),
    ],
)
def test_the_schema_of_the_job_sees_faults(change: dict[str, object], message: str) -> None:
    manifest = yaml.safe_load((ROOT / "launchers" / "kubernetes.yaml").read_text())
    with pytest.raises(jsonschema.ValidationError, match=message):
        jsonschema.validate(manifest | change, PYTORCH_JOB)


def test_what_is_not_said_is_asked_for() -> None:
    done = start_script("local.sh", RECIPE="r", DATA="d")
    assert done.returncode != 0
    assert "RUN: the run folder" in done.stderr


def test_a_rendezvous_without_a_port_is_refused() -> None:
    variables = {"RANKS": "1", "HOSTS": "2", "RENDEZVOUS": "node1"}
    done = start_script("torchrun.sh", DRY_RUN="1", **PLACES, **variables)
    assert done.returncode == 2
    assert "RENDEZVOUS is node1; write host:port, such as node1:29500" in done.stderr


def test_local_trains(tiny_recipe_folder: Path, tiny_data: Path, tmp_path: Path) -> None:
    places = {"RECIPE": str(tiny_recipe_folder), "DATA": str(tiny_data), "RUN": str(tmp_path / "r")}
    settings = ["--set", "phases.0.total_steps=2", "phases.1.total_steps=1"]
    done = start_script("local.sh", *settings, RANKS="2", MASTER_PORT=str(free_port()), **places)
    assert done.returncode == 0, done.stderr
    assert len(rows_of(tmp_path / "r")) == 3
