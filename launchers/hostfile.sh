#!/usr/bin/env bash
# Several hosts, by the deepspeed launcher over pdsh or ssh; a hostfile names them, a line each:
#   node1 slots=8
# RECIPE, DATA and RUN are the same folders on every host.
#   HOSTFILE=hosts RECIPE=... DATA=... RUN=... bash launchers/hostfile.sh [more arguments]
# LAUNCHER=pdsh (default), openmpi, mpich or slurm, as deepspeed has them. DRY_RUN=1 prints the command.
set -euo pipefail

: "${HOSTFILE:?the hostfile}"
: "${RECIPE:?the recipe folder}" "${DATA:?the folder with seq128 and seq512}" "${RUN:?the run folder}"

# deepspeed trains on this host alone where the file is missing, and says nothing.
if [[ ! -s "$HOSTFILE" ]]; then
  echo "hostfile.sh: $HOSTFILE is missing or empty; a line a host: node1 slots=8" >&2
  exit 2
fi
hosts="$(sed 's/#.*//' "$HOSTFILE" | awk 'NF')"
wrong="$(grep -vE '^[[:space:]]*[^[:space:]]+[[:space:]]+slots=[1-9][0-9]*[[:space:]]*$' <<<"$hosts" || true)"
if [[ -n "$wrong" ]]; then
  echo "hostfile.sh: $HOSTFILE: a line must be like 'node1 slots=8'; this is not: ${wrong%%$'\n'*}" >&2
  exit 2
fi
twice="$(awk '{print $1}' <<<"$hosts" | sort | uniq -d)"
if [[ -n "$twice" ]]; then
  echo "hostfile.sh: $HOSTFILE names ${twice%%$'\n'*} twice; add its slots up in one line" >&2
  exit 2
fi

command=(deepspeed --quiet --hostfile "$HOSTFILE" --launcher "${LAUNCHER:-pdsh}")
if [[ -n "${MASTER_ADDR:-}" ]]; then
  command+=(--master_addr "$MASTER_ADDR")
fi
if [[ -n "${MASTER_PORT:-}" ]]; then
  command+=(--master_port "$MASTER_PORT")
fi
command+=(--module bert_ds pretrain --recipe "$RECIPE" --data "$DATA" --output-dir "$RUN" "$@")

if [[ -n "${DRY_RUN:-}" ]]; then
  printf '%q ' "${command[@]}"
  echo
else
  exec "${command[@]}"
fi
