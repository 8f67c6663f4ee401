#!/usr/bin/env bash
# One host, by the deepspeed launcher: a rank a GPU, or RANKS of them.
#   RECIPE=ds_configs/bert-base DATA=/data RUN=/runs/base bash launchers/local.sh [more arguments]
# DRY_RUN=1 prints the command.
set -euo pipefail

: "${RECIPE:?the recipe folder}" "${DATA:?the folder with seq128 and seq512}" "${RUN:?the run folder}"

command=(deepspeed --quiet)
if [[ -n "${RANKS:-}" ]]; then
  command+=(--num_accelerators "$RANKS")
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
