"""`bert-ds plan`."""

from __future__ import annotations

import argparse
import json

from bert_ds.config.deepspeed import check_run
from bert_ds.config.loading import load_run_config
from bert_ds.errors import ConfigError
from bert_ds.plan import plan_as_json, plan_as_text


def run(arguments: argparse.Namespace) -> None:
    """Print the batch arithmetic of a recipe at a world size."""
    if arguments.world_size < 1:
        raise ConfigError(f"--world-size must be at least 1, it is {arguments.world_size}")
    config = load_run_config(arguments.recipe, arguments.set)
    check_run(config)
    if arguments.json:
        print(json.dumps(plan_as_json(config, arguments.world_size), indent=2))
    else:
        print(plan_as_text(config, arguments.world_size))
