"""Put the `execution` settings of a recipe into effect: how a model's step is computed."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch

from bert_ds.config.recipe import ExecutionConfig
from bert_ds.errors import ConfigError
from bert_ds.model.families import PretrainingModel
from bert_ds.model.layer_norm import LayerNorm, apex_kernel

_CXX_COMPILERS = ("g++", "clang++", "c++")


def prepare_process(execution: ExecutionConfig) -> None:
    """Apply what holds for the whole process; call it before the first computation on a GPU.

    `deterministic` has torch use operations that give the same bits every time, where it has two
    of them, and cuBLAS a workspace of its own for each stream.
    """
    if execution.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        settings: Any = torch.utils.deterministic
        settings.fill_uninitialized_memory = False  # nothing reads it before it is written


def check_execution(execution: ExecutionConfig, device: torch.device) -> None:
    """Refuse settings that this machine cannot fulfil, before anything is built.

    Raises:
        ConfigError: a kernel or compiler is missing; the message has the way out.
    """
    if execution.layer_norm == "apex":
        if device.type != "cuda":
            raise ConfigError(
                f"execution.layer_norm is 'apex', which has kernels for GPUs alone, and this run "
                f"is on a {device.type}; leave it out"
            )
        try:
            apex_kernel()
        except ImportError as err:
            raise ConfigError(
                f"execution.layer_norm is 'apex', and NVIDIA's apex cannot be imported ({err}); "
                "build it with its CUDA extensions (the package called apex on PyPI is another "
                "project), or leave the setting out"
            ) from err
    if execution.compile and device.type == "cpu" and not _cxx_compiler():
        raise ConfigError(
            f"execution.compile needs a C++ compiler on CPUs: none of {', '.join(_CXX_COMPILERS)} "
            "was found; install one, name one in CXX, or leave the setting out"
        )


def apply_execution(model: PretrainingModel, execution: ExecutionConfig) -> None:
    """Make a model compute as the settings ask; weights and names stay as they are.

    Args:
        model: on its device, before an engine takes it.
        execution: settings that `check_execution` let pass.
    """
    model.encoder.recompute_every = execution.recompute_every
    if execution.layer_norm == "apex":
        kernel = apex_kernel()
        for module in model.modules():
            if isinstance(module, LayerNorm):
                module.kernel = kernel
    if execution.compile:
        for layer in model.encoder.layer:
            layer.compile()


def _cxx_compiler() -> str | None:
    named = os.environ.get("CXX")
    return next(filter(None, map(shutil.which, (named,) if named else _CXX_COMPILERS)), None)
