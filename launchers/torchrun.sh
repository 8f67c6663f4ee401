#!/usr/bin/env bash
# By torchrun, started once on every host with the same arguments.
#   RANKS=8 RECIPE=... DATA=... RUN=... bash launchers/torchrun.sh [more arguments]
# HOSTS=2 RENDEZVOUS=node1:29500 for several hosts, which are checked first (bert-ds doctor, on the
# port after that one; DOCTOR=0 leaves it out). A run that fails is started again up to MAX_RESTARTS times
# (default 0; the same on every host). DRY_RUN=1 prints the command.
set -euo pipefail

: "${RANKS:?ranks on each host, such as its GPUs}"
: "${RECIPE:?the recipe folder}" "${DATA:?the folder with seq128 and seq512}" "${RUN:?the run folder}"

launch=(torchrun --nproc_per_node "$RANKS")
look=()
if [[ "${HOSTS:-1}" -gt 1 ]]; then
  : "${RENDEZVOUS:?host:port of one of the hosts}"
  if [[ ! "$RENDEZVOUS" =~ :[0-9]+$ ]]; then
    echo "RENDEZVOUS is $RENDEZVOUS; write host:port, such as node1:29500" >&2
    exit 2
  fi
  launch+=(--nnodes "$HOSTS" --rdzv_backend c10d --rdzv_id bert_ds)
  look=("${launch[@]}" --rdzv_endpoint "${RENDEZVOUS%:*}:$((${RENDEZVOUS##*:} + 1))" -m bert_ds doctor)
  launch+=(--rdzv_endpoint "$RENDEZVOUS")
elif [[ -n "${MASTER_PORT:-}" ]]; then
  launch+=(--master_port "$MASTER_PORT")
fi
supervise=("${PYTHON:-python3}" -m bert_ds supervise --max-restarts "${MAX_RESTARTS:-0}" --)
arguments=(--recipe "$RECIPE" --data "$DATA" --output-dir "$RUN" "$@")
command=("${supervise[@]}" "${launch[@]}" -m bert_ds pretrain "${arguments[@]}")

if [[ -n "${DRY_RUN:-}" ]]; then
  printf '%q ' "${command[@]}"
  echo
else
  if [[ ${#look[@]} -gt 0 && "${DOCTOR:-1}" != 0 ]]; then
    "${look[@]}" "${arguments[@]}"
  fi
  exec "${command[@]}"
fi
