"""The learning rate as a pure function of applied updates.

k is `global_step`, the number of updates applied before the one that is asked for (0 for the
first); T is `total_steps`, w `warmup_proportion`, W = round(w T) the warm-up in whole updates.
Overflow-skipped steps do not move k. Kinds, as multiples of the peak:

    polynomial        k < W: (k + 1) / W;   else ((T - k) / (T - W)) ^ power
    linear            polynomial of power 1
    constant          k < W: (k + 1) / W;   else 1
    nvidia_polynomial p = (k + 1) / T;      p < w: p / w;   else (1 - p) ^ power
    deepspeed_ee      x = k / T;  x < w: (x / w)^2;  else decay_rate ^ ((k - w T) / decay_steps);
                      and the offset is added to the learning rate

The first three are ours and spend no update on a learning rate of 0: the first is peak / W, the
last of the warm-up and the first after it have the peak, and the last is still above 0.

The other two are published ones, with their peculiarities. `nvidia_polynomial` (NVIDIA
DeepLearningExamples, PyTorch BERT, schedulers.py, `PolyWarmUpScheduler`) sets the rate from the
optimizer's step count plus one, hence k + 1; it falls from the peak to peak (1 - w)^power at the
end of the warm-up, and its last update has a learning rate of 0. `deepspeed_ee`
(DeepSpeedExamples, bing_bert, `warmup_exp_decay_exp`, `update_learning_rate`) counts from the
steps before the update, so that its first update has the offset alone.
"""

from __future__ import annotations

from bert_ds.config.schedule import (
    ConstantSchedule,
    DeepSpeedEESchedule,
    NvidiaPolynomialSchedule,
    PolynomialSchedule,
    ScheduleConfig,
)


def learning_rate_at(
    config: ScheduleConfig, peak_lr: float, global_step: int, total_steps: int
) -> float:
    """Return the learning rate of the next update.

    Args:
        config: The schedule.
        peak_lr: Learning rate at the peak (before the offset of `deepspeed_ee`).
        global_step: Updates applied so far, 0 <= global_step < total_steps.
        total_steps: Updates of the whole phase.

    Returns:
        Learning rate, by the formulae in the module's docstring.

    Raises:
        ValueError: `global_step` is outside the phase, where a schedule has no value.
    """
    if not 0 <= global_step < total_steps:
        raise ValueError(
            f"the schedule covers updates 0 to {total_steps - 1}, there is no update {global_step}"
        )
    if isinstance(config, DeepSpeedEESchedule):
        return peak_lr * _deepspeed_ee(config, global_step, total_steps) + config.offset
    if isinstance(config, NvidiaPolynomialSchedule):
        return peak_lr * _nvidia_polynomial(config, global_step, total_steps)
    warmup_steps = warmup_steps_of(config, total_steps)
    if global_step < warmup_steps:
        return peak_lr * (global_step + 1) / warmup_steps
    if isinstance(config, ConstantSchedule):
        return peak_lr
    power = config.power if isinstance(config, PolynomialSchedule) else 1.0
    return float(peak_lr * ((total_steps - global_step) / (total_steps - warmup_steps)) ** power)


def warmup_steps_of(config: ScheduleConfig, total_steps: int) -> int:
    """Return the warm-up in whole updates, always fewer than `total_steps`."""
    return min(round(config.warmup_proportion * total_steps), total_steps - 1)


def _nvidia_polynomial(
    config: NvidiaPolynomialSchedule, global_step: int, total_steps: int
) -> float:
    progress = (global_step + 1) / total_steps
    if progress < config.warmup_proportion:
        return progress / config.warmup_proportion
    return float((1.0 - progress) ** config.power)


def _deepspeed_ee(config: DeepSpeedEESchedule, global_step: int, total_steps: int) -> float:
    progress = global_step / total_steps
    if progress < config.warmup_proportion:
        return float((progress / config.warmup_proportion) ** 2)
    steps_since_warmup = global_step - config.warmup_proportion * total_steps
    return float(config.decay_rate ** (steps_since_warmup / config.decay_steps))
