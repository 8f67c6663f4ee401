#!/usr/bin/env bash
# Several hosts, by the deepspeed launcher over pdsh or ssh; a hostfile names them, a line each:
#   node1 slots=8
# RECIPE, DATA and RUN are the same folders on every host.
#   HOSTFILE=hosts RECIPE=... DATA=... RUN=... bash launchers/hostfile.sh [more arguments]
# First the hosts are checked (bert-ds doctor; DOCTOR=0 leaves it out). A run that fails is started
# again up to MAX_RESTARTS times (default 0) from its last checkpoint, on the hosts that the hostfile
# then names; DROP_LOST_HOSTS=1 leaves out those that do not answer any more.
# LAUNCHER=pdsh (default), openmpi, mpich or slurm, as deepspeed has them. DRY_RUN=1 prints the command.
set -euo pipefail

: "${HOSTFILE:?the hostfile}"
: "${RECIPE:?the recipe folder}" "${DATA:?the folder with seq128 and seq512}" "${RUN:?the run folder}"
python="${PYTHON:-python3}"

command=(deepspeed --quiet --hostfile "$HOSTFILE" --launcher "${LAUNCHER:-pdsh}")
if [[ -n "${MASTER_ADDR:-}" ]]; then
  command+=(--master_addr "$MASTER_ADDR")
fi
if [[ -n "${MASTER_PORT:-}" ]]; then
  command+=(--master_port "$MASTER_PORT")
fi
command+=(--module bert_ds pretrain --recipe "$RECIPE" --data "$DATA" --output-dir "$RUN" "$@")
supervise=("$python" -m bert_ds supervise --max-restarts "${MAX_RESTARTS:-0}")
if [[ "${DROP_LOST_HOSTS:-0}" != 0 ]]; then
  supervise+=(--drop-lost-hosts)
fi
command=("${supervise[@]}" -- "${command[@]}")

if [[ -n "${DRY_RUN:-}" ]]; then
  printf '%q ' "${command[@]}"
  echo
  exit 0
fi

# A host whose cable is cut would keep ssh, and with it the launcher, waiting for a quarter of an hour.
export PDSH_SSH_ARGS_APPEND="-o ServerAliveInterval=5 -o ServerAliveCountMax=4 ${PDSH_SSH_ARGS_APPEND:-}"

if [[ "${DOCTOR:-1}" != 0 ]]; then
  "$python" -m bert_ds doctor --hostfile "$HOSTFILE" --recipe "$RECIPE" --data "$DATA" --output-dir "$RUN" "$@"
fi
exec "${command[@]}"
