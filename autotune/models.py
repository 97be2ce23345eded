"""Shapes of published models, as their config.json states them, for predictions without a checkpoint."""

from dataclasses import replace
from pathlib import Path

from tspec.checkpoint.hf_config import CONFIG_FILE, read_config
from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.core.errors import ConfigError


def _shape(
    architecture: str,
    layers: int,
    hidden: int,
    intermediate: int,
    heads: tuple[int, int, int],
    vocab: int,
    *,
    is_tied: bool = False,
) -> ModelConfig:
    """`heads`: query heads, KV heads, and the dim of one."""
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=heads[2],
        rms_eps=1e-5,
        max_position=131072,
        dtype=DType.BFLOAT16,
        tie_word_embeddings=is_tied,
        has_qkv_bias=architecture == "qwen2",
        has_qk_norm=architecture == "qwen3",
    )


MODELS = {
    "smollm2-135m": _shape("llama", 30, 576, 1536, (9, 3, 64), 49152, is_tied=True),
    "llama-3.2-1b": _shape("llama", 16, 2048, 8192, (32, 8, 64), 128256, is_tied=True),
    "llama-3-8b": _shape("llama", 32, 4096, 14336, (32, 8, 128), 128256),
    "llama-3-70b": _shape("llama", 80, 8192, 28672, (64, 8, 128), 128256),
    "mistral-7b": _shape("mistral", 32, 4096, 14336, (32, 8, 128), 32768),
    "qwen2.5-7b": _shape("qwen2", 28, 3584, 18944, (28, 4, 128), 152064),
    "qwen2.5-72b": _shape("qwen2", 80, 8192, 29568, (64, 8, 128), 152064),
    "qwen3-0.6b": _shape("qwen3", 28, 1024, 3072, (16, 8, 128), 151936, is_tied=True),
    "qwen3-8b": _shape("qwen3", 36, 4096, 12288, (32, 8, 128), 151936),
    "qwen3-32b": _shape("qwen3", 64, 5120, 25600, (64, 8, 128), 151936),
}
"""By name."""


def find_model(name: str) -> ModelConfig:
    """A model by its name here, or the folder of a checkpoint.

    Errors   ConfigError for neither; CheckpointError for a folder that is no supported model's
    """
    if name in MODELS:
        return MODELS[name]
    if (Path(name) / CONFIG_FILE).exists():
        return read_config(name)
    need = f"a folder with {CONFIG_FILE}, or one of {', '.join(MODELS)}"
    raise ConfigError("--model", got=repr(name), need=need, fix="Pick one of them.")


def part_of(config: ModelConfig, count: int) -> ModelConfig:
    """What one of `count` devices has where each matrix is cut: heads, MLP and vocabulary.

    KV heads that are fewer than devices are on several of them.
    Errors   ConfigError where the sizes do not divide
    """
    sizes = {
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
    }
    for name, size in sizes.items():
        if size % count:
            raise ConfigError("--gpus", got=count, need=f"a divisor of {name} ({size})", fix="Change it.")
    return replace(
        config,
        num_heads=config.num_heads // count,
        num_kv_heads=max(1, config.num_kv_heads // count),
        intermediate_size=config.intermediate_size // count,
        vocab_size=config.vocab_size // count,
    )
