"""`bert-ds bench step`: measures a training step, alone or in comparison with another model's.

The other model is Hugging Face's BERT, or our own with other `execution` settings. Both train on
the same rows of a dataset from the same weights with the same DeepSpeed configuration and LAMB.
They take turns (A B, B A, A B, ...) in one process, one update per turn, so that a machine whose
speed drifts favours neither; the ratio is the median of the ratios within a round. Hugging Face's
model is called as its users call it: padded rows, labels for all positions, its own loss. The
memory of each model is measured in a separate process.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from bert_ds.batch import Batch, PretrainingBatch
from bert_ds.config.batch import BatchPlan
from bert_ds.config.recipe import ExecutionConfig, PhaseConfig, RunConfig
from bert_ds.data.collate import lay_out
from bert_ds.data.layout import micro_batches
from bert_ds.data.row_copy import cut_rows
from bert_ds.data.rows import RowStream, StreamSpec
from bert_ds.distributed.communicator import init_process_group, shutdown
from bert_ds.distributed.world import World
from bert_ds.engine import check_precision
from bert_ds.errors import ConfigError, DataError
from bert_ds.model.execution import check_execution, prepare_process
from bert_ds.model.families import PretrainingModel
from bert_ds.model.shapes import shape_of
from bert_ds.objectives import PRETRAINING, Sums, TermSums
from bert_ds.train import setup
from data_prep.contract.format import Block, concatenate_blocks, select_rows

OURS = "bert_ds"
THEIRS = "transformers"
_OUR_BIAS = "cls.predictions.bias"
_THEIR_BIAS = "cls.predictions.decoder.bias"
_UPDATES_FOR_MEMORY = 2
_LEARNING_RATE = 1e-6
"""Learning rate of the measured updates: weights hardly move, so all turns do the same work."""


@dataclass(frozen=True)
class StepOptions:
    """What to measure."""

    phase_index: int
    """Number of the phase in the recipe, from 0."""
    micro_batch_size: int | None
    """Rows per forward; None for the DeepSpeed JSON's."""
    accumulation: int
    """Micro batches per update."""
    repeats: int
    """Rounds that count, after one that does not."""
    full_rows: bool
    """Whether only rows of the phase's full length are used."""
    compare: str | None
    """The model to compare with: "hf" for Hugging Face's, a name for `other`, None for none."""
    other: ExecutionConfig | None = None
    """Execution settings of our model to compare with."""


@dataclass(frozen=True)
class Measurement:
    """The step of one model."""

    name: str
    """`OURS`, `THEIRS`, or the name of the settings to compare with."""
    update_s: float
    """Median seconds of an update."""
    sequences_per_s: float
    """Rows per second at that time."""
    tflop_per_s: float
    """FLOPs that our model needs for the real tokens, per second, 10^12."""
    peak_mib: float
    """Peak memory of training, MiB: on a GPU that of torch, on a CPU the growth of the process."""


@dataclass(frozen=True)
class Agreement:
    """How far two models differ with equal weights, without dropout."""

    our_loss: float
    """Our model's loss of one micro batch, nats."""
    their_loss: float
    """The other model's loss of the same micro batch, nats."""
    gradient_difference: float
    """Largest difference of a tensor's gradients relative to their norm; key biases are left out,
    since their gradient is zero up to rounding."""
    worst_tensor: str
    """The tensor with that difference."""


@dataclass(frozen=True)
class StepBench:
    """All measurements, and what they were taken on."""

    recipe: str
    """Name of the recipe."""
    model: dict[str, Any]
    """Shape of the model."""
    phase: str
    """Name of the phase."""
    sequence_length: int
    """Tokens of a full row."""
    micro_batch_size: int
    """Rows per forward."""
    accumulation: int
    """Micro batches per update."""
    real_tokens_share: float
    """Real tokens as a fraction of the tokens of full rows."""
    precision: str
    """Precision of the engine."""
    device: str
    """Name of the GPU, or CPU."""
    num_threads: int
    """Threads of torch on the host."""
    repeats: int
    """Number of rounds."""
    execution: dict[str, Any]
    """Execution settings of our model."""
    measurements: tuple[Measurement, ...]
    """Our model's measurement, then that of the other model."""
    ratio: float | None
    """The other model's time divided by ours, median over the rounds; None without another."""
    memory_ratio: float | None
    """Our peak memory divided by the other model's; None without another."""
    agreement: Agreement | None
    """How far the two models differ; None without another."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


class _HuggingFace(nn.Module):
    """Hugging Face's BertForPreTraining with our model's interface.

    Its loss, which is a mean already, is returned as the sum of a term whose denominator is 1.
    """

    def __init__(self, model: PretrainingModel, accumulation: int) -> None:
        super().__init__()
        transformers = _transformers()
        fields = model.config.model_dump(exclude={"architecture", "layer_norm_position"})
        if fields["hidden_act"] == "gelu_tanh":
            fields["hidden_act"] = "gelu_pytorch_tanh"
        self.theirs = transformers.BertForPreTraining(transformers.BertConfig(**fields))
        weights = dict(model.state_dict())
        weights[_THEIR_BIAS] = weights[_OUR_BIAS]
        self.theirs.load_state_dict(weights, strict=False)
        self.theirs.tie_weights()
        self._accumulation = accumulation

    def forward(self, batch: PretrainingBatch) -> Sums:
        """Compute the loss of a micro batch, divided by the number of micro batches."""
        labels = torch.full_like(batch.input_ids, -100)
        labels.view(-1)[batch.masked_lm_positions] = batch.masked_lm_ids
        output = self.theirs(
            input_ids=batch.input_ids,
            token_type_ids=batch.token_type_ids,
            attention_mask=batch.attention_mask.long(),
            labels=labels,
            next_sentence_label=batch.next_sentence_label,
        )
        loss = output.loss.float() / self._accumulation
        nothing = TermSums(torch.zeros_like(loss), labels.new_zeros(()))
        sums = dict.fromkeys((term.name for term in PRETRAINING.terms), nothing)
        return sums | {PRETRAINING.leading.name: nothing._replace(loss_sum=loss)}


@dataclass(frozen=True)
class _Job:
    """What one model trains on; small enough to be sent to another process."""

    config: RunConfig
    """Settings of the run."""
    phase_index: int
    """Number of the phase in the recipe, from 0."""
    plan: BatchPlan
    """How the update is split into micro batches."""
    rows: Block
    """The rows of the update."""
    world: World
    """This rank, the only one."""

    @property
    def phase(self) -> PhaseConfig:
        """Settings of the phase."""
        return self.config.phases[self.phase_index]


def bench_step(
    config: RunConfig, data: Path, options: StepOptions, world: World, device: torch.device
) -> StepBench:
    """Measure a training step, and that of another model if one is to be compared.

    Args:
        config: settings of a run.
        data: the folder that holds the datasets.
        options: what to measure.
        world: this rank, the only one.
        device: device to train on.

    Raises:
        ConfigError: a value is out of range, transformers is missing, or the device cannot compute
            in the recipe's precision.
        DataError: the dataset does not fit, or has too few rows of full length.
    """
    job = _job(config, data, options, world)
    check_precision(job.phase.name, job.phase.deepspeed.precision)
    jobs = {OURS: job}
    if options.compare == "hf":
        jobs[THEIRS] = job
        _transformers()
        if config.model.layer_norm_position != "post":
            raise ConfigError(
                "--compare hf: Hugging Face's BERT has no model.layer_norm_position "
                f"'{config.model.layer_norm_position}'; leave --compare out"
            )
    elif options.compare is not None and options.other is not None:
        other = job.config.model_copy(update={"execution": options.other})
        jobs[options.compare] = replace(job, config=other)
        check_execution(options.other, device)
    check_execution(config.execution, device)
    prepare_process(config.execution)
    peaks = [_in_a_process(_peak_mib, name, each, device) for name, each in jobs.items()]
    agreement = _agreement(jobs, device) if options.compare else None
    init_process_group(world, device)
    turns = [_turn(name, each, device) for name, each in jobs.items()]
    times = _times_in_turns(turns, options.repeats)
    shutdown()
    num_rows, flops = len(job.rows), _flops(job)
    measurements = []
    for name, taken, peak in zip(jobs, times, peaks, strict=True):
        median = statistics.median(taken)
        rates = (num_rows / median, flops / median / 1e12)
        measurements.append(Measurement(name, median, *rates, peak))
    ratio = None
    if options.compare:
        ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    longest = job.phase.sequence_length
    return StepBench(
        recipe=config.recipe,
        model=config.model.model_dump(),
        phase=job.phase.name,
        sequence_length=longest,
        micro_batch_size=job.plan.micro_batch_size,
        accumulation=job.plan.gradient_accumulation_steps,
        real_tokens_share=len(job.rows.tokens) / (num_rows * longest),
        precision=job.phase.deepspeed.precision,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        num_threads=torch.get_num_threads(),
        repeats=options.repeats,
        execution=config.execution.model_dump(),
        measurements=tuple(measurements),
        ratio=ratio,
        memory_ratio=peaks[0] / peaks[1] if options.compare else None,
        agreement=agreement,
    )


def _times_in_turns(turns: Sequence[Callable[[], float]], repeats: int) -> list[list[float]]:
    """Return the seconds of each turn, measured alternately after a first round to warm up."""
    times: list[list[float]] = [[] for _ in turns]
    for number in range(repeats + 1):
        order = list(range(len(turns)))
        for index in order if number % 2 else reversed(order):
            seconds = turns[index]()
            if number:
                times[index].append(seconds)
    return times


def _job(config: RunConfig, data: Path, options: StepOptions, world: World) -> _Job:
    """Return the rows of one update, in the order of the run, and how they are split."""
    if not 0 <= options.phase_index < len(config.phases):
        raise ConfigError(
            f"--phase {options.phase_index}: the recipe has phases 0 to {len(config.phases) - 1}"
        )
    phase = config.phases[options.phase_index]
    micro = options.micro_batch_size or phase.deepspeed.micro_batch_size
    plan = BatchPlan(micro * options.accumulation, micro, options.accumulation, 1)
    phases = list(config.phases)
    phases[options.phase_index] = phase.with_deepspeed(
        train_batch_size=plan.train_batch_size, train_micro_batch_size_per_gpu=micro
    )
    config = config.model_copy(update={"phases": tuple(phases)})
    (opened,) = setup.open_phase_data(config, data, [phases[options.phase_index]])
    if options.compare == "hf" and not opened.manifest.pair_label_name:
        raise DataError(
            f"dataset {opened.folder} has no pair labels (--pairs none), which Hugging Face's loss "
            "needs; leave --compare out or prepare it with pairs"
        )
    rows = _rows(setup.stream_spec(config, opened, plan, 0), plan, phase, options.full_rows)
    return _Job(config, options.phase_index, plan, rows, world)


def _rows(spec: StreamSpec, plan: BatchPlan, phase: PhaseConfig, full_rows: bool) -> Block:
    """Return the first rows of the training stream, or the first ones of full length."""
    stream = RowStream(spec)
    total = spec.manifest.totals("train").rows
    parts: list[Block] = []
    found = position = 0
    while found < plan.train_batch_size:
        if full_rows and position > total + plan.train_batch_size:
            raise DataError(
                f"dataset {spec.folder} has {found} training rows of {phase.sequence_length} "
                f"tokens, and an update takes {plan.train_batch_size}; leave --full-rows out or "
                "measure smaller batches"
            )
        rows = stream.update(position).rows
        if full_rows:
            rows = select_rows(rows, np.flatnonzero(rows.length == phase.sequence_length))
        if len(rows):
            parts.append(rows)
        found += len(rows)
        position += plan.train_batch_size
    stream.close()
    return select_rows(concatenate_blocks(parts), np.arange(plan.train_batch_size))


def _model(name: str, job: _Job, device: torch.device) -> nn.Module:
    model = setup.build_model(job.config, device)
    if name != THEIRS:
        return model
    return _HuggingFace(model, job.plan.gradient_accumulation_steps).to(device).train()


def _batches(name: str, job: _Job, device: torch.device) -> list[Batch]:
    layout = job.config.execution.batch_layout if name != THEIRS else "padded"
    size, longest = job.plan.micro_batch_size, job.phase.sequence_length
    return [batch.to(device) for batch in micro_batches(job.rows, layout, size, longest)]


def _turn(name: str, job: _Job, device: torch.device) -> Callable[[], float]:
    """Return a function that applies one update and returns its seconds."""
    model, batches = _model(name, job, device), _batches(name, job, device)
    engine = setup.build_engine(job.phase, cast("PretrainingModel", model), job.plan, job.world)
    engine.set_learning_rate(_LEARNING_RATE)
    num_answers = PRETRAINING.count(batches)
    if name == THEIRS:  # its loss is a mean already
        num_answers = dict.fromkeys(num_answers, 1)

    def update() -> float:
        started = time.perf_counter()
        for number, batch in enumerate(batches, start=1):
            engine.micro_step(batch, num_answers, is_last=number == len(batches))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    return update


def _agreement(jobs: dict[str, _Job], device: torch.device) -> Agreement:
    """Compare losses and gradients of the first micro batch at the initial weights."""
    results = []
    for name, job in jobs.items():
        model = _model(name, job, device).eval()
        layout = job.config.execution.batch_layout if name != THEIRS else "padded"
        batch = lay_out(cut_rows(job.rows, job.plan.micro_batch_size)[0], layout).to(device)
        sums = model(batch)
        if name != THEIRS:
            loss = PRETRAINING.loss_of(sums, PRETRAINING.count([batch]))
        else:
            mean = sums[PRETRAINING.leading.name].loss_sum
            loss = mean * job.plan.gradient_accumulation_steps
        torch.autograd.backward(loss)
        gradients = {
            key.removeprefix("theirs.").replace(_THEIR_BIAS, _OUR_BIAS): parameter.grad.double()
            for key, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        results.append((float(loss.detach()), gradients))
    (our_loss, ours), (their_loss, theirs) = results
    differences = {
        key: float((gradient - theirs[key]).norm() / theirs[key].norm())
        for key, gradient in ours.items()
        if not key.endswith("attention.self.key.bias")
    }
    worst = max(differences, key=lambda key: differences[key])
    return Agreement(our_loss, their_loss, differences[worst], worst)


def _peak_mib(name: str, job: _Job, device: torch.device) -> float:
    """Return the peak memory of training; to be run in a separate process."""
    prepare_process(job.config.execution)
    init_process_group(job.world, device)
    before = _resident_mib()
    turn = _turn(name, job, device)
    for _ in range(_UPDATES_FOR_MEMORY):
        turn()
    shutdown()
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10 - before


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _in_a_process(
    function: Callable[[str, _Job, torch.device], float], name: str, job: _Job, device: torch.device
) -> float:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, torch.set_num_threads, (torch.get_num_threads(),)) as pool:
        return pool.submit(function, name, job, device).result()


def _flops(job: _Job) -> int:
    lengths = job.rows.length.astype(np.int64)
    return shape_of(job.config.model).flops(
        job.config.model,
        sum_of_lengths=int(lengths.sum()),
        sum_of_squared_lengths=int((lengths**2).sum()),
        num_predictions=len(job.rows.masked_lm_ids),
        num_sequences=len(job.rows),
    )


def _transformers() -> Any:
    try:
        return import_module("transformers")
    except ImportError as err:
        raise ConfigError(
            "--compare hf needs transformers, which is not installed: pip install 'bert_ds[hf]'"
        ) from err


def as_text(bench: StepBench) -> str:
    """Return the result as a table."""
    micro = f"{bench.micro_batch_size} rows"
    width = max(24, *(len(each.name) + 2 for each in bench.measurements))
    lines = [
        f"{bench.recipe}, {bench.phase}: rows of {bench.sequence_length}, "
        f"{bench.real_tokens_share:.1%} of it real tokens; {bench.accumulation} micro batches of "
        f"{micro} an update, {bench.precision}, {bench.device}, {bench.num_threads} threads, "
        f"{', '.join(f'{key} {value}' for key, value in bench.execution.items())}; medians of "
        f"{bench.repeats} rounds",
        "",
        f"{'':{width}}{'s/update':>10}{'sequences/s':>14}{'TFLOP/s':>10}{'peak MiB':>10}",
    ]
    for each in bench.measurements:
        name = f"{each.name} {metadata.version(THEIRS)}" if each.name == THEIRS else each.name
        lines.append(
            f"{name:{width}}{each.update_s:10.3f}{each.sequences_per_s:14.1f}{each.tflop_per_s:10.3f}"
            f"{each.peak_mib:10.0f}"
        )
    if bench.agreement is not None:
        apart = bench.agreement
        lines += [
            "",
            f"{OURS} is {bench.ratio:.2f} times as fast and takes {bench.memory_ratio:.2f} of the "
            "memory",
            f"same weights, no dropout: losses {apart.our_loss:.6f} and {apart.their_loss:.6f}, "
            f"gradients at most {apart.gradient_difference:.1e} apart ({apart.worst_tensor})",
        ]
    return "\n".join(lines)
