"""Medusa heads: `config.json` and the names of the tensors into a MedusaConfig, or a refusal by name.

Two layouts: the authors' (`0.0.linear.weight`, keys `medusa_…`) and vLLM's (`blocks.0.layers.0.weight`). Files of the
authors' layout often count their heads wrongly in config.json, so the tensors decide. Reads no weights.
"""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tspec.checkpoint.head_schema import RawMedusa
from tspec.checkpoint.head_tensors import TOKEN_MAP
from tspec.checkpoint.hf_schema import parse_raw
from tspec.checkpoint.weights import Described, most_common_dtype
from tspec.core.config import ModelConfig
from tspec.core.errors import CheckpointError
from tspec.core.head_config import MedusaConfig

_log = logging.getLogger("tspec")


def is_medusa(data: Mapping[str, Any], names: Mapping[str, Described]) -> bool:
    """Whether a config.json and canonical names of tensors are those of Medusa heads."""
    return "medusa_num_heads" in data or data.get("model_type") == "medusa" or "lm_heads.0.weight" in names


def read_medusa(
    path: Path, data: Mapping[str, Any], names: Mapping[str, Described], file: str, target: ModelConfig | None
) -> MedusaConfig:
    """The configuration of the heads whose config.json lies at `path` and holds `data`.

    names    the tensors of `file`, by canonical name
    target   what the heads have to fit; None checks nothing
    Errors   CheckpointError naming what does not fit: hidden size, vocabulary, number of heads or blocks, a scale
    """
    raw = parse_raw(RawMedusa, data, str(path))
    if raw.logit_scale not in (None, 1):
        raise _bad(path, "key 'logit_scale'", raw.logit_scale, "1")
    found_heads, found_blocks = (
        _count(names, r"lm_heads\.(\d{1,3})\."),
        _count(names, r"blocks\.0\.(\d{1,3})\."),
    )
    if raw.original_lm_head:
        found_heads = _count(names, r"blocks\.(\d{1,3})\.")
    num_heads = _num_heads(path, raw, found_heads)
    # beside the authors' keys, num_hidden_layers is the target's
    says_blocks = raw.num_hidden_layers if raw.medusa_num_heads is None else raw.medusa_num_layers
    vocab, hidden = _sizes(path, raw, names, target)
    token_map = names.get(TOKEN_MAP)
    truncated = token_map.shape[0] if token_map is not None and token_map.shape else None
    if raw.truncated_vocab_size not in (None, vocab if truncated is None else truncated):
        got = f"{raw.truncated_vocab_size}, with {'no' if truncated is None else truncated} ids in token_map"
        raise _bad(path, "key 'truncated_vocab_size'", got, "the length of token_map")
    has_bias = "blocks.0.0.bias" in names
    return MedusaConfig(
        num_heads=num_heads,
        num_layers=found_blocks if says_blocks is None else says_blocks,
        hidden_size=hidden,
        target_vocab_size=vocab,
        has_bias=has_bias if raw.medusa_fc_bias is None else raw.medusa_fc_bias,
        dtype=most_common_dtype(file, names),
        draft_vocab_size=truncated,
        shares_lm_head=raw.original_lm_head,
        source=f"Medusa, {_layout(names)} ({file})",
    )


def _num_heads(path: Path, raw: RawMedusa, found: int) -> int:
    says = raw.medusa_num_heads or raw.num_heads or found
    if says > found:
        raise _bad(
            path, "number of heads", f"{says} in config.json, {found} in the weights", "as many in both"
        )
    if says < found:
        _log.info("%s: config.json names %d of the %d heads: all are used", path.parent, says, found)
    return found


def _sizes(
    path: Path, raw: RawMedusa, names: Mapping[str, Described], target: ModelConfig | None
) -> tuple[int, int]:
    """Vocabulary and hidden size: what config.json says, else the target's, else the shape of a head."""
    head = names.get("lm_heads.0.weight")
    if head is None or len(head.shape) != 2:
        got = "none" if head is None else list(head.shape)
        raise _bad(path.parent, "tensor 'lm_heads.0.weight'", got, "the output layer of the first head")
    rows, hidden = head.shape
    vocab = target.vocab_size if target else raw.vocab_size or rows
    claims = [raw.vocab_size] if TOKEN_MAP in names else [raw.vocab_size, rows]
    for claim in claims:
        if claim not in (None, vocab):
            raise _bad(path.parent, "vocabulary of the heads", claim, f"{vocab}, the target's")
    for claim in (raw.hidden_size, hidden):
        if claim not in (None, target.hidden_size if target else hidden):
            need = f"{target.hidden_size if target else hidden}, the target's"
            raise _bad(path.parent, "hidden size of the heads", claim, need)
    return vocab, hidden


def _count(names: Mapping[str, Described], pattern: str) -> int:
    """One more than the largest number that names have where `pattern` has its group."""
    found = [re.match(pattern, name) for name in names]
    return 1 + max((int(each[1]) for each in found if each), default=-1)


def _layout(names: Mapping[str, Described]) -> str:
    head = names["lm_heads.0.weight"]
    return "vLLM's layout" if "lm_heads." in head.name else "its authors' layout"


def _bad(where: Path, what: str, got: object, need: str) -> CheckpointError:
    fix = "Use heads that were trained for this target, with their own config.json."
    return CheckpointError(f"{where}: {what}", got=got, need=need, fix=fix)
