"""What is done with a run: evaluate, fill-mask, export, report."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer
from transformers import BertForPreTraining as HuggingFaceBert

from bert_ds.data.collate import collate
from bert_ds.inference import load_trained
from tests.support.commands import run, run_bert_ds
from tests.support.datasets import make_dataset, random_block
from tests.support.logits import logits_of

pytestmark = pytest.mark.slow


def test_evaluate_repeats_the_held_out_result_on_one_rank(
    finished_run: Path, tiny_data: Path
) -> None:
    done = run_bert_ds("evaluate", "--run", finished_run, "--data", tiny_data)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = json.loads((finished_run / "summary.json").read_text())["held_out"]
    assert found.keys() == expected.keys()
    for key in ("sequences", "predictions", "mlm_accuracy", "nsp_accuracy", "unigram_accuracy"):
        assert found[key] == expected[key]
    assert found["mlm_loss"] == pytest.approx(expected["mlm_loss"], rel=1e-6)


def test_evaluate_refuses_shards_of_another_vocabulary(finished_run: Path, tmp_path: Path) -> None:
    make_dataset(tmp_path / "seq64", sequence_length=64)
    vocabulary = tmp_path / "seq64" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("w9\n", "other\n"))
    manifest = tmp_path / "seq64" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["vocabulary"]["sha256"] = hashlib.sha256(vocabulary.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(content))
    done = run_bert_ds("evaluate", "--run", finished_run, "--data", tmp_path)
    assert done.returncode == 1
    assert "give the data of the run's vocabulary" in done.stderr


def test_the_export_gives_the_same_logits_in_transformers(own_run: Path, tmp_path: Path) -> None:
    command = ["export-hf", "--run", own_run, "--output-dir", tmp_path / "hf"]
    done = run_bert_ds(*command)
    assert done.returncode == 0, done.stderr
    assert "is up to date" in run_bert_ds(*command).stdout
    (tmp_path / "hf" / "model.safetensors").unlink()
    assert "exported" in run_bert_ds(*command).stdout
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "hf").iterdir()}
    assert len(modes) == 1  # as readable as the umask lets files be, the weights too
    assert json.loads((own_run / "summary.json").read_text())["export"] == str(tmp_path / "hf")
    theirs = HuggingFaceBert.from_pretrained(tmp_path / "hf").eval()
    ours = load_trained(own_run).model
    batch = collate(random_block(5, 64, 64, seed=11))
    with torch.no_grad():
        a = theirs(
            input_ids=batch.input_ids,
            token_type_ids=batch.token_type_ids,
            attention_mask=batch.attention_mask.long(),
        )
        b = logits_of(
            ours,
            batch.input_ids,
            batch.token_type_ids,
            batch.attention_mask,
            batch.masked_lm_positions,
        )
    masked = a.prediction_logits.flatten(0, 1)[batch.masked_lm_positions]
    assert (masked - b.mlm).abs().max() <= 1e-5
    assert (a.seq_relationship_logits - b.nsp).abs().max() <= 1e-5
    assert AutoModel.from_pretrained(tmp_path / "hf").config.hidden_size == 16
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer("w9 w10")["input_ids"] == [2, 9, 10, 3]


def test_fill_mask_prints_guesses_for_every_mask(finished_run: Path) -> None:
    done = run_bert_ds("fill-mask", "--run", finished_run, "w7 [MASK] w9 [MASK]", "--top-k", "2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["[MASK]", "1"], ["[MASK]", "1"], ["[MASK]", "2"], ["[MASK]", "2"],
    ]  # fmt: skip
    probabilities = [float(line.split()[2]) for line in lines]
    assert probabilities[0] >= probabilities[1] > 0
    none = run_bert_ds("fill-mask", "--run", finished_run, "no place")
    assert none.returncode == 1
    assert "the text has no [MASK] to fill" in none.stderr


def test_report_writes_the_page_and_prints_the_table(own_run: Path) -> None:
    done = run("bert-ds", "report", "--run", own_run)
    assert done.returncode == 0, done.stderr
    assert "phase1" in done.stdout
    page = (own_run / "report.html").read_text()
    for words in ("Learning rate", "sequences/s", "phase2", "MLM"):
        assert words.lower() in page.lower()


def test_training_goes_on_from_an_export(
    own_run: Path, tiny_recipe_folder: Path, tiny_data: Path, tmp_path: Path
) -> None:
    done = run_bert_ds("export-hf", "--run", own_run, "--output-dir", tmp_path / "hf")
    assert done.returncode == 0, done.stderr
    command = [
        "pretrain", "--recipe", tiny_recipe_folder, "--data", tiny_data, "--output-dir",
        tmp_path / "run", "--set", f"init_from={tmp_path / 'hf'}", "phases.0.total_steps=2",
        "phases.1.total_steps=1",
    ]  # fmt: skip
    done = run_bert_ds(*command)
    assert done.returncode == 0, done.stderr
    assert f"weights of {tmp_path / 'hf'}" in done.stderr
    first, trained = (
        json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
        for folder in (tmp_path / "run", own_run)
    )
    # the same rows and dropout as in the first update of the run that was exported, other weights
    assert first["samples_seen"] == trained["samples_seen"]
    assert first["mlm_loss"] < trained["mlm_loss"] - 0.01
