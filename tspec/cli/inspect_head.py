"""What `tspec inspect HEAD` prints: the format of a draft head, the conventions found, sizes and switches."""

from collections.abc import Iterator
from pathlib import Path

from tspec.checkpoint.heads import HeadCheckpoint, open_head, target_ids
from tspec.checkpoint.hf_config import read_config
from tspec.core.head_config import EagleConfig, HeadFormat, MedusaConfig
from tspec.core.rope import describe_rope

Lines = Iterator[tuple[str, str]]


def print_head(folder: Path, target: Path | None, layer_offset: int) -> None:
    """Print what is known of a head, and with a target whether it fits it.

    Errors   CheckpointError for what is not a head, is damaged, or does not fit the target
    """
    head = open_head(folder, None if target is None else read_config(target), layer_offset)
    target_ids(head)  # a damaged map of tokens is an error here, too
    fits = "not compared with one (--target)" if target is None else f"fits {target}"
    rows = [("format", head.config.source), ("target", f"{_target(head)}; {fits}")]
    rows += _medusa(head.config) if isinstance(head.config, MedusaConfig) else _eagle(head.config)
    rows.append(("weights", f"{len(head.tensors)} tensors, {_mib(head):.1f} MiB"))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}")


def _target(head: HeadCheckpoint) -> str:
    config = head.config
    width = config.hidden_size if isinstance(config, MedusaConfig) else config.target_hidden_size
    return f"hidden size {width}, vocabulary {config.target_vocab_size}"


def _eagle(config: EagleConfig) -> Lines:
    layer = config.layer
    if config.format is HeadFormat.EAGLE1:
        yield "hidden states", "the target's last one, after its final norm"
    else:
        ids = ", ".join(map(str, config.aux_layers))
        yield "hidden states", f"inputs of the target's layers {ids}" if ids else "open without a target"
        convention = config.layer_convention
        yield "layer ids", f"{convention.value if convention else 'none'}: {config.convention_reason}"
    yield "layers", f"{layer.num_layers} of hidden size {layer.hidden_size}, {layer.dtype.value}"
    yield "attention", f"{layer.num_heads} heads of {layer.head_dim}, {layer.num_kv_heads} KV heads"
    yield "MLP", str(layer.intermediate_size)
    yield "rotation", f"{describe_rope(layer.rope)}, the head's own"
    windows = {str(window) for window in layer.sliding_windows if window is not None}
    if windows:
        yield "window", ", ".join(sorted(windows))
    yield "vocabulary", _vocabulary(config.draft_vocab_size, config.target_vocab_size, "d2t")
    yield "embedding", "its own" if config.has_own_embedding else "the target's"
    yield "output layer", "its own" if config.has_own_head else "the target's"
    yield "fed back", f"what the layers put out, {'after' if config.norm_output else 'before'} the final norm"
    yield "switches", ", ".join(_switches(config)) or "none"


def _switches(config: EagleConfig) -> Iterator[str]:
    is_eagle1, layer = config.format is HeadFormat.EAGLE1, config.layer
    for name, is_on in (
        ("fc bias", config.fc_bias),
        ("norm_before_residual", config.norm_before_residual),
        ("norm_before_fc", config.norm_before_fc),
        ("fc_norm", config.fc_norm),
        ("norm_output", config.norm_output),
        ("norm of the embedding", config.has_embedding_norm),
        ("norm of the hidden state", config.has_hidden_norm),
        ("norm before attention", is_eagle1 and config.has_input_norm),
        ("final norm", is_eagle1 and config.has_final_norm),
        ("norms of q and k", layer.has_qk_norm),
        ("biases of q, k and v", layer.has_qkv_bias),
        ("bias of o", layer.has_o_bias),
        ("biases of the MLP", layer.has_mlp_bias),
    ):
        if is_on:
            yield name


def _medusa(config: MedusaConfig) -> Lines:
    yield "hidden states", "the target's last one, after its final norm"
    yield "heads", f"{config.num_heads} of {config.num_layers} blocks, {config.dtype.value}"
    yield "vocabulary", _vocabulary(config.draft_vocab_size, config.target_vocab_size, "token_map")
    yield "output layers", "one for all heads" if config.shares_lm_head else "one for each head"
    yield "switches", "biases of blocks" if config.has_bias else "none"


def _vocabulary(size: int | None, whole: int, name: str) -> str:
    return f"the target's {whole}" if size is None else f"{size} of the target's {whole}, by {name}"


def _mib(head: HeadCheckpoint) -> float:
    return sum(entry.size_bytes for entry in head.tensors.values()) / 2**20
