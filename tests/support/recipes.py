"""A recipe small enough for tests: seconds on one core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TINY_MODEL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}


def tiny_deepspeed(train_batch_size: int = 8, micro_batch_size: int = 4) -> dict[str, Any]:
    """A plain DeepSpeed JSON for LAMB at ZeRO stage 0."""
    return {
        "train_batch_size": train_batch_size,
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "Lamb", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 0},
    }


def tiny_recipe(total_steps: tuple[int, int] = (6, 4)) -> dict[str, Any]:
    """Two phases of 32 and 64 tokens, as `recipe.json` holds them."""
    lengths = (32, 64)
    return {
        "model": dict(TINY_MODEL),
        "phases": [
            {
                "name": f"phase{number}",
                "sequence_length": length,
                "max_predictions_per_seq": length // 4,
                "total_steps": steps,
                "schedule": {"kind": "polynomial", "warmup_proportion": 0.25},
                "deepspeed": f"phase{number}.json",
            }
            for number, (length, steps) in enumerate(zip(lengths, total_steps, strict=True), 1)
        ],
        "checkpoint": {"every_steps": 2, "keep_last": 2},
    }


def write_recipe(
    folder: Path,
    recipe: dict[str, Any] | None = None,
    deepspeed: dict[str, Any] | None = None,
) -> Path:
    """Write a recipe folder whose phases all use the same DeepSpeed JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = recipe or tiny_recipe()
    (folder / "recipe.json").write_text(json.dumps(recipe))
    for phase in recipe["phases"]:
        (folder / phase["deepspeed"]).write_text(json.dumps(deepspeed or tiny_deepspeed()))
    return folder
