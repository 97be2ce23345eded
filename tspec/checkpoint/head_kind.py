"""Whether a folder holds a draft head or a whole model, from its config.json and the names of its tensors.

Loads no torch where config.json, or a safetensors header, tells.
"""

from pathlib import Path

from tspec.checkpoint.head_tensors import canonical_name
from tspec.checkpoint.header import read_header
from tspec.checkpoint.hf_config import CONFIG_FILE
from tspec.checkpoint.index import INDEX_FILE, SINGLE_FILE
from tspec.checkpoint.json_object import read_object
from tspec.core.errors import CheckpointError

MEDUSA_FILE, MEDUSA_TORCH_FILE = "medusa_lm_head.safetensors", "medusa_lm_head.pt"
TORCH_FILE = "pytorch_model.bin"
FILES = (MEDUSA_FILE, MEDUSA_TORCH_FILE, SINGLE_FILE, INDEX_FILE, TORCH_FILE)
"""Where the tensors of a head may be; of several, the first one here counts."""

_KEYS = ("speculators_model_type", "draft_vocab_size", "eagle_config", "dflash_config", "medusa_num_heads")


def is_head(folder: Path) -> bool:
    """Whether `folder` is that of a head. What cannot be read is none: whoever reads it next says why."""
    try:
        data = read_object(folder / CONFIG_FILE)
        if any(key in data for key in _KEYS) or data.get("model_type") == "medusa":
            return True
        return any(canonical_name(name) in ("fc.weight", "lm_heads.0.weight") for name in _names(folder))
    except CheckpointError:
        return False


def _names(folder: Path) -> list[str]:
    if (folder / SINGLE_FILE).exists():
        return list(read_header(folder / SINGLE_FILE))
    if (folder / INDEX_FILE).exists():
        weight_map = read_object(folder / INDEX_FILE).get("weight_map")
        return list(weight_map) if isinstance(weight_map, dict) else []
    if not any((folder / name).exists() for name in FILES):
        return []
    from tspec.checkpoint.head_files import open_tensors, tensor_file  # these load torch

    return list(open_tensors(tensor_file(folder)).tensors)
