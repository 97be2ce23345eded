"""Small random checkpoints of every supported family, and a tokenizer whose ids are bytes.

Weights are wide enough for clear winners among the logits, norms are near 1 but not 1, biases are not 0: a
forgotten norm, bias or head shows.
"""

import json
import math
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
BOS, EOS, PAD = 256, 257, 258

_CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def tiny_checkpoint(
    folder: Path,
    architecture: str,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    intermediate: int = 96,
    vocab: int = 128,
    tie: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    max_shard_bytes: int | None = None,
    **config_overrides: Any,
) -> transformers.PreTrainedModel:
    """Write a random checkpoint with `save_pretrained` and return the model that wrote it, in eval mode."""
    config_class, model_class = _CLASSES[architecture]
    settings: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim if head_dim is not None else hidden // heads,
        "max_position_embeddings": 256,
        "tie_word_embeddings": tie,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if architecture == "mistral":
        settings["sliding_window"] = None
    model = model_class(config_class(**settings | config_overrides))
    fill_randomly(model, seed)
    model = model.to(dtype).eval()
    shards = {} if max_shard_bytes is None else {"max_shard_size": max_shard_bytes}
    model.save_pretrained(folder, **shards)
    return model


@torch.no_grad()
def fill_randomly(model: torch.nn.Module, seed: int) -> None:
    """Overwrite every parameter, each from its own stream of `seed`: its name and shape decide its values."""
    for name, parameter in model.named_parameters():
        # torch keeps the low 32 bits of a seed, so both have to be in them.
        generator = torch.Generator().manual_seed((zlib.crc32(name.encode()) + seed * 0x9E3779B1) % 2**32)
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("norm.weight", "layernorm.weight")):
            parameter.copy_(1 + 0.1 * noise)
        elif name.endswith(".bias"):
            parameter.copy_(0.3 * noise)
        else:
            spread = 4.0 if name.endswith(("embed_tokens.weight", "lm_head.weight")) else 2.0
            parameter.copy_(noise * spread / math.sqrt(parameter.shape[1]))


def byte_tokenizer(folder: Path) -> Tokenizer:
    """Write a tokenizer into a checkpoint folder: 256 byte tokens with id == byte, <bos>, <eos> and <pad>."""
    printable = set(pre_tokenizers.ByteLevel.alphabet())
    others = iter(range(256, 512))  # how byte-level BPE spells the bytes that do not print
    spelled = [chr(byte) if chr(byte) in printable else chr(next(others)) for byte in range(256)]
    vocabulary = {text: byte for byte, text in enumerate(spelled)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary | {"<bos>": BOS, "<eos>": EOS, "<pad>": PAD}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<bos>", "<eos>", "<pad>")])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer
