"""`bert-ds plan`."""

from __future__ import annotations

import argparse
import json

from bert_ds.config.loading import load_run_config
from bert_ds.errors import ConfigError
from bert_ds.plan import PlanOptions, plan_as_text, plan_run


def run(arguments: argparse.Namespace) -> None:
    """Print what a recipe means at a world size and, with a kind of GPU, on such GPUs."""
    if arguments.world_size < 1:
        raise ConfigError(f"--world-size must be at least 1, it is {arguments.world_size}")
    config = load_run_config(arguments.recipe, arguments.set)
    options = PlanOptions(
        gpu=arguments.gpu,
        gpus_per_host=arguments.gpus_per_host,
        network_gbit_per_s=arguments.network_gbit_per_s,
        mfu=arguments.mfu,
        measured=tuple(arguments.measured),
    )
    plan = plan_run(config, arguments.world_size, options)
    print(json.dumps(plan.as_dict(), indent=2) if arguments.json else plan_as_text(plan))
