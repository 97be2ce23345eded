"""Writes a trained head in the layout of the speculators library, in bfloat16, whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from tspec.core.head_config import EagleConfig
from tspec.core.whole_files import replace_file, replace_text


def write_head(
    folder: Path, config: EagleConfig, tensors: Mapping[str, torch.Tensor], kept: torch.Tensor, target: str
) -> None:
    """Write config.json and model.safetensors; a head that is there already makes way file by file.

    tensors   by their names in the layout, as `EagleHead.tensors` gives them
    kept      [head's vocabulary] int64, the target's ids of the head's tokens in ascending order
    target    name of the target, for people to read
    """
    folder.mkdir(parents=True, exist_ok=True)
    in_head = torch.zeros(config.target_vocab_size, dtype=torch.bool)
    in_head[kept] = True
    stored = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in tensors.items()}
    stored |= {"d2t": kept - torch.arange(len(kept)), "t2d": in_head}
    weights = save(stored, metadata={"format": "pt"})  # save_file would give the file to its owner alone
    replace_file(folder / "model.safetensors", lambda out: out.write(weights))
    replace_text(folder / "config.json", json.dumps(_keys(config, target), indent=2) + "\n")


def _keys(config: EagleConfig, target: str) -> dict[str, Any]:
    layer = config.layer
    architecture = "Qwen3ForCausalLM" if layer.has_qk_norm else "LlamaForCausalLM"
    return {
        "model_type": "speculators",
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "transformer_layer_config": {
            "model_type": layer.architecture,
            "hidden_size": layer.hidden_size,
            "intermediate_size": layer.intermediate_size,
            "num_hidden_layers": layer.num_layers,
            "num_attention_heads": layer.num_heads,
            "num_key_value_heads": layer.num_kv_heads,
            "head_dim": layer.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": layer.rms_eps,
            "rope_theta": layer.rope.base,
            "rope_scaling": None,
            "vocab_size": layer.vocab_size,
            "max_position_embeddings": layer.max_position,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        },
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layers),
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "torch_dtype": "bfloat16",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": target, "architectures": [architecture]},
        },
    }
