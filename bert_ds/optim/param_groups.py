"""Parameter groups: all are decayed but biases and LayerNorm weights (Devlin et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from bert_ds.errors import ConfigError


def param_groups(
    model: nn.Module, weight_decay: float, unused: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Sort the trainable parameters of a model into the two groups of an optimizer.

    Args:
        model: Any module. A tied parameter is taken once, under its first name.
        weight_decay: Decay of the first group.
        unused: Names of parameters that no loss depends on. They are not decayed: with gradients
            of zero LAMB's update is the decay alone, and its trust ratio makes that a step of `lr`
            times the weight, which would bring them to zero. Without decay they stay as they are.

    Returns:
        The decayed group, then the one without decay (biases, LayerNorm weights, unused ones);
        each has `params`, `names` (as long as `params`) and `weight_decay`, in the order of
        `model.named_parameters()`, which is the order of construction. A group without parameters
        is left out.

    Raises:
        ConfigError: The model has no trainable parameter.
    """
    layer_norm_weights = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.LayerNorm)
    }
    decayed: dict[str, Any] = {"params": [], "names": [], "weight_decay": weight_decay}
    exempt: dict[str, Any] = {"params": [], "names": [], "weight_decay": 0.0}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_exempt = id(parameter) in layer_norm_weights or name.rpartition(".")[2] == "bias"
        is_exempt |= name in unused
        group = exempt if is_exempt else decayed
        group["params"].append(parameter)
        group["names"].append(name)
    groups = [group for group in (decayed, exempt) if group["params"]]
    check_every_parameter_is_in_one_group(model, groups)
    return groups


def check_every_parameter_is_in_one_group(
    model: nn.Module, groups: Sequence[dict[str, Any]]
) -> None:
    """Refuse groups, from whatever source, that would not train exactly the model's parameters.

    Raises:
        ConfigError: A trainable parameter is in no group (it would never learn) or in two (it
            would be updated twice), or a group holds one that is not the model's.
    """
    times_held: dict[int, int] = {}
    for group in groups:
        for parameter in group["params"]:
            times_held[id(parameter)] = times_held.get(id(parameter), 0) + 1
    trainable = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ConfigError("the model has no trainable parameter; every requires_grad is False")
    missing = [name for key, name in trainable.items() if key not in times_held]
    repeated = [name for key, name in trainable.items() if times_held.get(key, 0) > 1]
    num_foreign = len(times_held.keys() - trainable.keys())
    if missing:
        raise ConfigError(
            f"trainable parameters in no optimizer group, they would never learn: "
            f"{', '.join(missing)}; add them to a group or set requires_grad to False"
        )
    if repeated:
        raise ConfigError(
            f"parameters in more than one optimizer group: {', '.join(repeated)}; "
            "list each of them once"
        )
    if num_foreign:
        raise ConfigError(
            f"{num_foreign} parameters in the optimizer groups are frozen or not the model's; "
            "build the groups from this model's trainable parameters"
        )
