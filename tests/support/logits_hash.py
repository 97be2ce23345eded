"""A hash of the logits of two small models in all storages, to compare processes that compile for other CPUs.

Run: python -m support.logits_hash FOLDER  (prints the CPU it compiled for, lanes of a register, the hash)
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
from support.compiled_target import CompiledTarget
from support.kernel_case import random_trees

from tspec.core.dtypes import WEIGHT_DTYPES
from tspec.core.tree import CandidateTrees
from tspec.kernels.cpu.host import read_host

VOCAB = 131
MODELS = ("mistral", "qwen3")


def write_models(folder: Path) -> None:
    """A window, three query heads a KV head, head sizes that fill no vector; then norms of q and k, and biases."""
    from support.tiny_models import tiny_checkpoint

    shape = {"hidden": 72, "heads": 6, "vocab": VOCAB}
    tiny_checkpoint(folder / "mistral", "mistral", head_dim=24, sliding_window=70, **shape)
    tiny_checkpoint(folder / "qwen3", "qwen3", head_dim=10, kv_heads=6, attention_bias=True, **shape)


def hash_of_logits(folder: Path) -> str:
    digest = hashlib.sha256()
    tokens = np.random.default_rng(3).integers(0, VOCAB, 300, dtype=np.int32)
    tree = random_trees((23, 9), seed=5)
    trees = CandidateTrees(
        tokens[: tree.tokens.size].reshape(tree.tokens.shape), tree.parents, tree.num_nodes
    )
    for model in MODELS:
        for dtype in WEIGHT_DTYPES:
            target = CompiledTarget(folder / model, max_model_len=256, dtype=dtype.value)
            digest.update(target.ingest(tokens[:90].tolist(), chunk=13))
            for logits in target.verify([tokens[:190].tolist(), tokens[200:262].tolist()], trees):
                digest.update(logits)
            target.close()
    return digest.hexdigest()


if __name__ == "__main__":
    host = read_host()
    print(host.name, host.lanes, hash_of_logits(Path(sys.argv[1])))
