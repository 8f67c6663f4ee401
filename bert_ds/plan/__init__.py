"""`bert-ds plan`: predicts what a recipe needs at a world size, without GPU, torch or DeepSpeed.

It computes batch sizes, memory by part, the largest micro batch that fits, and the time to expect.
"""

from bert_ds.plan.run import PlanOptions, RunPlan, plan_run
from bert_ds.plan.shapes import num_parameters
from bert_ds.plan.text import passes_as_text, plan_as_text, scaled

__all__ = [
    "PlanOptions",
    "RunPlan",
    "num_parameters",
    "passes_as_text",
    "plan_as_text",
    "plan_run",
    "scaled",
]
