#!/usr/bin/env bash
# What must run on a GPU, in under 8 minutes: bash tests/gpu/check.sh [python with the packages]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python="${1:-python3}"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
"$python" -c 'import torch, deepspeed; print("torch", torch.__version__, "deepspeed", deepspeed.__version__)'
timeout 480 "$python" -m pytest tests/gpu -m gpu -v -s
