"""Writes tiny heads as folders in each layout in which people publish them. Shares no code with tspec.

authors      EAGLE-1, 2 and 3 as SafeAILab publishes them: safetensors or pytorch_model.bin
sglang       the same, with `eagle_config` and ids that count the outputs of layers
speculators  that library's: layers in `transformer_layer_config`, ids that count inputs
medusa       FasterDecoding's own: `0.0.linear.weight`, in safetensors or .pt
vllm_medusa  what vLLM converts it to: `blocks.0.layers.0.weight`
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.tiny_heads import TinyEagle, TinyMedusa

TORCH_FILE, SAFETENSORS_FILE = "pytorch_model.bin", "model.safetensors"


def write_authors(
    folder: Path, head: TinyEagle, *, file: str = SAFETENSORS_FILE, with_bias_key: bool = True, **keys: Any
) -> Path:
    """The authors' layout. Their files name no layers, and no rope_theta where it is 10000."""
    tensors = {_midlayer(name) if head.is_eagle3 else name: value for name, value in head.tensors.items()}
    config = _layer_keys(head) | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    if head.is_eagle3:
        config |= {"draft_vocab_size": head.rows}
        if head.hidden != head.target_hidden:
            config["target_hidden_size"] = head.target_hidden
    elif with_bias_key:
        config["bias"] = head.fc_bias
    if head.para_norm:
        config["add_para_norm"] = True
    if head.qkv_bias:
        config["qkv_bias"] = True
    return write_folder(folder, config | keys, tensors | token_maps(head), file)


def write_sglang(folder: Path, head: TinyEagle, *, file: str = SAFETENSORS_FILE, **keys: Any) -> Path:
    """SGLang's and SpecForge's layout of EAGLE-3: `eagle_config` holds flags and outputs of layers."""
    flags = {name: True for name in _FLAGS if getattr(head, name)}
    ids = [layer - 1 for layer in head.aux]
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True, **flags},
    }
    return write_authors(folder, head, file=file, **config | keys)


def write_speculators(folder: Path, head: TinyEagle, *, file: str = SAFETENSORS_FILE, **keys: Any) -> Path:
    """The layout of the speculators library, EAGLE-3 and EAGLE-1."""
    layer = _layer_keys(head) | {"model_type": "qwen3" if head.qk_norm else "llama"}
    config: dict[str, Any] = {
        "model_type": "speculators",
        "speculators_model_type": "eagle3" if head.is_eagle3 else "eagle",
        "architectures": ["Eagle3Speculator" if head.is_eagle3 else "EagleSpeculator"],
        "speculators_version": "0.3.0",
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3" if head.is_eagle3 else "eagle",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "a/target", "architectures": ["LlamaForCausalLM"]},
        },
    }
    tensors = dict(head.tensors)
    if head.is_eagle3:
        config |= {name: getattr(head, name) for name in _FLAGS}
        config |= {
            "draft_vocab_size": head.rows,
            "embed_requires_grad": head.own_embedding,
            "target_hidden_size": None if head.hidden == head.target_hidden else head.target_hidden,
            "eagle_aux_hidden_state_layer_ids": list(head.aux),
        }
    else:
        config |= {"layernorms": head.extra_norms, "fusion_bias": head.fc_bias}
        tensors = {_speculators_name(name): value for name, value in tensors.items()}
    return write_folder(folder, config | keys, tensors | token_maps(head), file)


def write_medusa(
    folder: Path, heads: TinyMedusa, *, file: str = "medusa_lm_head.safetensors", **keys: Any
) -> Path:
    """Its authors' layout: in each head, blocks and then the output layer are numbered from 0."""
    config = {
        "medusa_num_heads": heads.num_heads,
        "medusa_num_layers": heads.blocks,
        "base_model_name_or_path": "a/target",
    }
    tensors = {}
    for name, value in heads.tensors.items():
        kind, number, *rest = name.split(".")
        if kind == "lm_heads":
            tensors[f"{number}.{heads.blocks}.weight"] = value
        else:
            tensors[f"{number}.{rest[0]}.linear.{rest[1]}"] = value
    return write_folder(folder, config | keys, tensors, file)


def write_vllm_medusa(
    folder: Path, heads: TinyMedusa, *, file: str = SAFETENSORS_FILE, whole_rows: bool = False, **keys: Any
) -> Path:
    """vLLM's layout. With `whole_rows`, output layers keep the rows that `token_map` leaves out."""
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": heads.hidden,
        "vocab_size": heads.vocab,
        "num_heads": heads.num_heads,
        "num_hidden_layers": heads.blocks,
        "truncated_vocab_size": heads.rows,
        "original_lm_head": heads.shares_head,
        "medusa_fc_bias": heads.has_bias,
    }
    tensors = {}
    for name, value in heads.tensors.items():
        kind, number, *rest = name.split(".")
        if kind == "blocks":
            name = f"blocks.{number}.layers.{rest[0]}.{rest[1]}"
        elif whole_rows:
            rows = torch.zeros(heads.vocab, heads.hidden, dtype=value.dtype)
            rows[torch.tensor(heads.draft_ids)] = value
            value = rows
        tensors[name] = value
    if heads.draft_ids is not None:
        tensors["token_map"] = torch.tensor(heads.draft_ids)
    return write_folder(folder, config | keys, tensors, file)


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], file: str
) -> Path:
    """A folder of config.json and one file of tensors, which another file of tensors makes way for."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for each in folder.iterdir():
        if each.suffix in (".bin", ".pt", ".safetensors"):
            each.unlink()
    if file.endswith(".safetensors"):
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / file)
    else:
        torch.save(dict(tensors), folder / file)
    return folder


def token_maps(head: TinyEagle) -> dict[str, torch.Tensor]:
    """`d2t`, what each draft id lacks to the target's, and `t2d`, which of the target's ids the head has."""
    if head.draft_ids is None:
        return {}
    ids = torch.tensor(head.draft_ids)
    mask = torch.zeros(head.vocab, dtype=torch.bool)
    mask[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": mask}


_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def _layer_keys(head: TinyEagle) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "hidden_size": head.hidden,
        "intermediate_size": head.intermediate,
        "num_hidden_layers": head.layers,
        "num_attention_heads": head.heads,
        "num_key_value_heads": head.kv_heads,
        "head_dim": head.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": head.rms_eps,
        "vocab_size": head.vocab,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "rope_scaling": None,
    }
    if head.rope_base != 10000.0:
        keys["rope_theta"] = head.rope_base
    if head.window is not None:
        kinds = ["sliding_attention"] * head.layers
        keys |= {"sliding_window": head.window, "use_sliding_window": True, "layer_types": kinds}
    if head.o_bias:
        keys["attention_bias"] = True
    if head.mlp_bias:
        keys["mlp_bias"] = True
    return keys


def _midlayer(name: str) -> str:
    return name.replace("layers.0.", "midlayer.")


def _speculators_name(name: str) -> str:
    for ours, theirs in (
        ("fc.", "fusion_fc."),
        ("layers.0.", "transformer."),
        ("norm.", "pre_lm_head_layernorm."),
    ):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name
