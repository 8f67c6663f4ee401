#!/usr/bin/env bash
# By mpiexec, of Open MPI or MPICH; the ranks find MASTER_ADDR by themselves (mpi4py, built for
# the same MPI, must be installed).
#   RANKS=16 RECIPE=... DATA=... RUN=... bash launchers/mpi.sh [more arguments]
# HOSTS=node1:8,node2:8 for several hosts, which are checked first (bert-ds doctor; DOCTOR=0 leaves
# it out). A run that fails is started again up to MAX_RESTARTS times (default 0). MPIEXEC names
# another mpiexec, PYTHON another Python than the first of PATH. DRY_RUN=1 prints the command.
set -euo pipefail

: "${RANKS:?how many ranks}"
: "${RECIPE:?the recipe folder}" "${DATA:?the folder with seq128 and seq512}" "${RUN:?the run folder}"

mpiexec="${MPIEXEC:-mpiexec}"
launch=("$mpiexec" -n "$RANKS")
is_open_mpi=0
if "$mpiexec" --version 2>&1 | grep -qi "open mpi\|openrte"; then
  is_open_mpi=1
  launch+=(--bind-to none) # else all threads of a rank, and its readers, share one core
fi
if [[ -n "${HOSTS:-}" ]]; then
  if [[ $is_open_mpi == 1 ]]; then
    launch+=(--host "$HOSTS" -x PATH)
  else
    launch+=(-hosts "$HOSTS")
  fi
fi
python="${PYTHON:-$(command -v python3)}" # Open MPI may put its own folder before those of PATH
launch+=("$python" -m bert_ds)
supervise=("$python" -m bert_ds supervise --max-restarts "${MAX_RESTARTS:-0}" --)
places=(--recipe "$RECIPE" --data "$DATA" --output-dir "$RUN")
command=("${supervise[@]}" "${launch[@]}" pretrain "${places[@]}" "$@")

if [[ -n "${DRY_RUN:-}" ]]; then
  printf '%q ' "${command[@]}"
  echo
else
  if [[ -n "${HOSTS:-}" && "${DOCTOR:-1}" != 0 ]]; then
    "${launch[@]}" doctor "${places[@]}" "$@"
  fi
  exec "${command[@]}"
fi
