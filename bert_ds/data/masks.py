"""Masks that are made as rows are read, new ones in every epoch (Liu et al. 2019, section 4.1).

They are for datasets that were prepared with `--masking none`. The masks of a row are a function of
(dataset, seed, epoch, row of the dataset) and do not depend on world size, micro batch or a resume.
Held-out rows always get the same masks, whatever the seed, so that evaluations can be compared.

Source: Liu et al. 2019, "RoBERTa: A Robustly Optimized BERT Pretraining Approach".
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from bert_ds.data.order import IndexArray
from bert_ds.errors import DataError
from data_prep.contract.errors import DataPrepError
from data_prep.contract.format import Block, count_dtype, position_dtype
from data_prep.contract.manifest import VOCABULARY_NAME, Manifest
from data_prep.contract.masking import MaskingKind, MaskingRules, mask_rows
from data_prep.contract.randomness import keyed_hash, keyed_words
from data_prep.contract.wordpiece import load_vocabulary


def is_left_to_the_reader(manifest: Manifest) -> bool:
    """Return whether the rows of a dataset are to be masked as they are read."""
    return manifest.parameters.get("masking") == "none"


def training_masks(folder: Path, manifest: Manifest, kind: MaskingKind, seed: int) -> DynamicMasks:
    """Return the masks of the training split under a run's seed.

    Args:
        folder: the dataset's folder.
        manifest: the dataset's manifest.
        kind: whether single pieces or whole words are masked.
        seed: the run's seed.
    """
    return DynamicMasks(folder, manifest, kind, keyed_hash("train", manifest.fingerprint, seed))


def held_out_masks(folder: Path, manifest: Manifest, kind: MaskingKind) -> DynamicMasks:
    """Return the masks of the held-out split, all of whose rows belong to epoch 0.

    Args:
        folder: the dataset's folder.
        manifest: the dataset's manifest.
        kind: whether single pieces or whole words are masked.
    """
    return DynamicMasks(folder, manifest, kind, keyed_hash("valid", manifest.fingerprint))


class DynamicMasks:
    """Masks the rows of one split of a dataset."""

    def __init__(self, folder: Path, manifest: Manifest, kind: MaskingKind, key: int) -> None:
        """Read the vocabulary.

        Args:
            folder: the dataset's folder.
            manifest: the dataset's manifest.
            kind: whether single pieces or whole words are masked.
            key: 64 bits that all masks depend on.

        Raises:
            DataError: the vocabulary cannot be used.
        """
        try:
            vocabulary = load_vocabulary(folder / VOCABULARY_NAME)
        except DataPrepError as err:
            raise DataError(str(err)) from err
        most = manifest.max_predictions_per_seq
        self._rules = MaskingRules(vocabulary.pieces, vocabulary.special_ids, most, kind)
        self._count_dtype = count_dtype(most)
        self._position_dtype = position_dtype(manifest.sequence_length)
        self._key = np.uint64(key)

    def applied_to(self, rows: Block, epochs: IndexArray, dataset_rows: IndexArray) -> Block:
        """Return rows with masks.

        Args:
            rows: n rows without masks.
            epochs: int64 [n], the epoch of each row, from 0.
            dataset_rows: int64 [n], number of each row in its split, in manifest order.
        """
        keys = keyed_words(self._key, 0, epochs.astype(np.uint32), dataset_rows.astype(np.uint64))
        masked = mask_rows(rows.tokens, rows.length, rows.segment_a_length, keys, self._rules)
        return replace(
            rows,
            tokens=masked.tokens,
            num_predictions=masked.num_predictions.astype(self._count_dtype),
            masked_lm_positions=masked.masked_lm_positions.astype(self._position_dtype),
            masked_lm_ids=masked.masked_lm_ids,
        )
