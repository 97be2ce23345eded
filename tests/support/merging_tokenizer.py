"""A tokenizer with merges, and things to write with it: tokens lie across the pieces of a grammar."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tspec.core.shapes import mask_words

EOS = 0
VOCAB = 450
"""The tokenizer has fewer ids, as those of many checkpoints."""
CORPUS = [
    '{"name": "Ann", "age": 41, "tags": ["red", "green"], "is_new": false, "size": null}',
    '{"name":"Bob","age":7,"tags":[],"is_new":true}, the end. 2026-10-17 12:30 grüße',
    "abab abba aabb ab-ab abc bcd the quick brown fox, 100 200 1000 2000 12 34",
]
PATTERNS = [
    r"(ab|ba){1,4}",
    r"[a-z]{2,5}(-[0-9]{1,3})?",
    r"(the|The) (end|fox)\.{0,3}",
    r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]",
    r"(ü|ß|é|日){1,3}",
    r'"[^"\\]{0,6}"',
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "is_new": {"type": ["boolean", "null"]},
    },
    "required": ["name", "age", "tags", "is_new"],
    "additionalProperties": False,
}


def merging_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer of 400 ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def allowed_by(state) -> list[int]:
    """The tokens that a state of a constraint allows."""
    row = np.empty(mask_words(VOCAB), dtype=np.int32)
    state.fill_mask(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
