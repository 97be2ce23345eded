"""What a round of a one-layer EAGLE-3 head costs, against a verify pass of one node of the demo model.

The head has random weights: a round costs the same whatever they are. Its guesses are refused, so that each round takes
in one token, and grows a chain.

Run: python -m benchmarks.draft_rounds [CHECKPOINT] [--depth N] [--json FILE]
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from benchmarks.machine import machine_line
from tspec.build import BuildOptions, build_engine, load_config
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.core.config import ModelConfig
from tspec.core.sampling_params import SamplingParams
from tspec.core.speculative_config import SpeculativeConfig
from tspec.runtime.loop import Engine

VOCABULARIES = (4096, 8192, 16384)
"""Rows of the head's own output layer, of the target's 49,152."""

PROMPT = list(range(1000, 1032))


def measure(folder: Path, vocabulary: int, depth: int, num_tokens: int) -> dict[str, float]:
    """Milliseconds of a round, of a plain pass and of a verify pass, medians over the rounds of one text."""
    with tempfile.TemporaryDirectory() as head:
        write_head(Path(head), load_config(folder), vocabulary)
        speculative = SpeculativeConfig(method="eagle3", model=head, num_speculative_tokens=depth)
        engine = build_engine(folder, speculative, BuildOptions(max_model_len=1024, max_num_seqs=1))
    try:
        _decode(engine, num_tokens, "auto")  # binds plans
        rounds, plain = [], []
        for _ in range(5):
            rounds.append(_decode(engine, num_tokens, "auto"))
            plain.append(_decode(engine, num_tokens, "off"))
        draft_s, verify_s = np.median([each[0] for each in rounds]), np.median([each[1] for each in rounds])
        plain_s = np.median([each[1] for each in plain])
    finally:
        engine.close()
    return {
        "vocabulary": vocabulary,
        "round_ms": 1e3 * draft_s,
        "verify_ms": 1e3 * verify_s,
        "plain_ms": 1e3 * plain_s,
        "share_of_plain": draft_s / plain_s,
    }


def _decode(engine: Engine, num_tokens: int, speculative: str) -> tuple[float, float]:
    """Mean seconds of proposing and of the verify pass of a text's rounds; without candidates, of its passes."""
    before = engine.metrics()
    sequence = engine.add(
        PROMPT, SamplingParams(max_tokens=num_tokens, ignore_eos=True, speculative=speculative)
    )
    while engine.has_work:
        engine.step()
    rounds = engine.metrics().since(before).rounds
    if rounds.num_rounds == 0:
        return 0.0, sequence.stats.decode_s / sequence.stats.num_passes
    return rounds.draft_s / rounds.num_rounds, rounds.verify_s / rounds.num_rounds


def write_head(folder: Path, target: ModelConfig, vocabulary: int) -> None:
    """A head of random weights, one layer of the target's sizes, in the layout of the speculators library."""
    hidden, random = target.hidden_size, torch.Generator().manual_seed(0)
    tensors = {
        name: (torch.randn(shape, generator=random) * shape[1] ** -0.5).to(torch.bfloat16)
        for name, shape in _matrices(target, vocabulary).items()
    }
    norms = ("layers.0.input_layernorm", "layers.0.hidden_norm", "layers.0.post_attention_layernorm", "norm")
    tensors |= {f"{name}.weight": torch.ones(hidden, dtype=torch.bfloat16) for name in norms}
    ids = torch.randperm(target.vocab_size, generator=random)[:vocabulary].sort().values
    tensors["d2t"] = ids - torch.arange(vocabulary)
    (folder / "config.json").write_text(json.dumps(_config(target, vocabulary)))
    save_file(tensors, folder / "model.safetensors")


def _matrices(target: ModelConfig, vocabulary: int) -> dict[str, tuple[int, int]]:
    hidden = target.hidden_size
    q_width, kv_width = target.num_heads * target.head_dim, target.num_kv_heads * target.head_dim
    return {
        "fc.weight": (hidden, 3 * hidden),
        "layers.0.self_attn.q_proj.weight": (q_width, 2 * hidden),
        "layers.0.self_attn.k_proj.weight": (kv_width, 2 * hidden),
        "layers.0.self_attn.v_proj.weight": (kv_width, 2 * hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, q_width),
        "layers.0.mlp.gate_proj.weight": (target.intermediate_size, hidden),
        "layers.0.mlp.up_proj.weight": (target.intermediate_size, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, target.intermediate_size),
        "lm_head.weight": (vocabulary, hidden),
    }


def _config(target: ModelConfig, vocabulary: int) -> dict[str, object]:
    layer = {
        "model_type": "llama",
        "hidden_size": target.hidden_size,
        "intermediate_size": target.intermediate_size,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "num_hidden_layers": 1,
        "rms_norm_eps": target.rms_eps,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": 2048,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "transformer_layer_config": layer,
        "draft_vocab_size": vocabulary,
        "norm_before_residual": False,
        "target_hidden_size": None,
    }


def main() -> None:
    """Print a table, and write the figures to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--depth", type=int, default=4, help="candidates of the chain (default: 4)")
    parser.add_argument("--num-tokens", type=int, default=48)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    folder = args.checkpoint or ensure_demo_model()
    machine = machine_line()
    rows = [measure(folder, vocabulary, args.depth, args.num_tokens) for vocabulary in VOCABULARIES]
    table = Table("head's vocabulary", "round ms", "plain pass ms", "verify pass ms", "round over plain")
    for row in rows:
        table.add_row(
            f"{row['vocabulary']:.0f}",
            f"{row['round_ms']:.2f}",
            f"{row['plain_ms']:.2f}",
            f"{row['verify_ms']:.2f}",
            f"{row['share_of_plain']:.0%}",
        )
    console = Console()
    console.print(machine)
    console.print(table)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "depth": args.depth, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
