"""A model whose next token is a table's entry for the current one: exact texts for tests of stops and counters."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import tiny_checkpoint


def table_checkpoint(
    folder: Path,
    next_token: Mapping[int, int],
    *,
    vocab: int = 64,
    max_position: int = 256,
    nan_tokens: Sequence[int] = (),
    **config: Any,
) -> None:
    """Write a llama that says next_token[t] after t, and t + 1 (modulo `vocab`) where the table has no t.

    After a token of `nan_tokens` every logit is NaN. Embeddings are one-hot, attention and MLP add nothing, and the
    head holds the table.
    """
    model = tiny_checkpoint(
        folder,
        "llama",
        hidden=vocab,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=4,
        intermediate=2,
        vocab=vocab,
        max_position_embeddings=max_position,
        **config,
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1)
            elif name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")):
                parameter.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(vocab))
        model.model.embed_tokens.weight[list(nan_tokens)] = torch.nan
        for token in range(vocab):
            model.lm_head.weight[next_token.get(token, (token + 1) % vocab), token] = 1
    model.save_pretrained(folder)


def logits_checkpoint(folder: Path, logits: np.ndarray, **config: Any) -> None:
    """Write a llama whose logits after token t are `logits[t]`, float32 [V, V]: also NaN, of a whole row, or -inf."""
    vocab = len(logits)
    nan_tokens = np.flatnonzero(np.isnan(logits).all(1)).tolist()
    table_checkpoint(folder, {}, vocab=vocab, nan_tokens=nan_tokens, **config)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    norm = vocab**0.5  # of one-hot rows
    tensors["lm_head.weight"] = (
        torch.from_numpy(np.nan_to_num(logits / norm, neginf=-3e38).T).float().contiguous()
    )
    save_file(tensors, file, metadata={"format": "pt"})
