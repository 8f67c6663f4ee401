"""What DeepSpeed cannot compute in is refused before anything is built."""

from __future__ import annotations

import pytest

from bert_ds.config.recipe import PhaseConfig
from bert_ds.engine import check_precision, import_deepspeed
from bert_ds.errors import ConfigError
from tests.support.recipes import tiny_deepspeed


def phase_of(**changes: object) -> PhaseConfig:
    deepspeed = {**tiny_deepspeed(), "zero_optimization": {"stage": 1}, **changes}
    return PhaseConfig.model_validate(
        {
            "name": "phase1",
            "sequence_length": 128,
            "max_predictions_per_seq": 20,
            "total_steps": 10,
            "schedule": {"kind": "constant"},
            "deepspeed": deepspeed,
        }
    )


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_precision_that_the_device_lacks_is_refused_with_the_way_out(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = import_deepspeed().accelerator.get_accelerator()
    phase = phase_of(**{precision: {"enabled": True}})
    monkeypatch.setattr(accelerator, f"is_{precision}_supported", lambda: True)
    check_precision(phase.name, phase.deepspeed.precision)
    monkeypatch.setattr(accelerator, f"is_{precision}_supported", lambda: False)
    way_out = rf"phase1 asks for {precision}.*--set deepspeed\.{precision}\.enabled=false"
    with pytest.raises(ConfigError, match=way_out):
        check_precision(phase.name, phase.deepspeed.precision)
    phase = phase_of()
    check_precision(phase.name, phase.deepspeed.precision)  # fp32 is always there
