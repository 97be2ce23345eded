"""A model that tells one story, byte by byte: what each request says is known without running it."""

from pathlib import Path
from typing import Any

from support.table_model import table_checkpoint
from support.tiny_models import EOS, byte_tokenizer

STORY = "aé日🙂b"
"""Eleven bytes, all different, of characters of one to four: each byte can have a successor of its own."""
START = "x"
OUTPUT = [*STORY.encode(), EOS]
BROKEN = "~"
"""Where `is_broken` is asked for, nothing can follow it: all logits are NaN."""


def story_folder(folder: Path, *, is_broken: bool = False, **config: Any) -> Path:
    """Write a model that says STORY and ends after START, with the byte tokenizer."""
    next_token = dict(zip([ord(START), *OUTPUT], OUTPUT, strict=False))
    nan_tokens = (ord(BROKEN),) if is_broken else ()
    table_checkpoint(folder, next_token, vocab=EOS + 3, eos_token_id=EOS, nan_tokens=nan_tokens, **config)
    byte_tokenizer(folder)
    return folder
