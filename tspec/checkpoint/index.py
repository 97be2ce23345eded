"""Where the tensors of a checkpoint folder lie: in one `model.safetensors`, or in the shards an index names.

Reads headers, never tensor data; other files in the folder are ignored.
"""

from pathlib import Path

from tspec.checkpoint.header import TensorEntry, read_header
from tspec.checkpoint.json_object import read_object, shown
from tspec.core.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def find_tensors(folder: Path) -> dict[str, TensorEntry]:
    """Every tensor of the checkpoint, by name.  `model.safetensors` wins where there is an index beside it.

    With an index, its weight map decides: a tensor that it does not name is not part of the checkpoint.
    Errors: CheckpointError for a folder without weights, a bad index, an absent or damaged shard, and a
    tensor that is not in the shard that the index names for it.
    """
    check_folder(folder)
    if (folder / SINGLE_FILE).exists():
        return read_header(folder / SINGLE_FILE)
    if not (folder / INDEX_FILE).exists():
        raise _no_weights(folder)
    shard_of_tensor = _weight_map(folder / INDEX_FILE)
    shards = {shard: _read_shard(folder, shard) for shard in sorted(set(shard_of_tensor.values()))}
    for name, shard in shard_of_tensor.items():
        if name not in shards[shard]:
            raise CheckpointError(
                f"{folder / shard}: tensor {shown(name)}",
                got="no such tensor in the shard",
                need=f"it there, as {INDEX_FILE} says",
                fix="Fetch shard and index again, from the same revision.",
            )
    return {name: shards[shard][name] for name, shard in shard_of_tensor.items()}


def check_folder(folder: Path) -> None:
    """Raise CheckpointError unless `folder` is a folder."""
    if not folder.is_dir():
        raise CheckpointError(
            f"checkpoint {folder}",
            got="a file" if folder.exists() else "no such path",
            need="a folder with config.json and safetensors weights",
            fix="Pass the checkpoint's folder.",
        )


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        need = "an object of tensor name to file name, not empty"
        raise CheckpointError(
            f"{path}: weight_map", got=shown(weight_map), need=need, fix="Fetch the index again."
        )
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise CheckpointError(
                f"{path}: weight_map[{shown(name)}]",
                got=shown(shard),
                need="the name of a .safetensors file in this folder, without a path",
                fix="Fetch the index again; do not use it if you did not make it.",
            )
    return weight_map


def _is_plain_name(shard: str) -> bool:
    """The name alone decides: shards may be links out of the folder, as in the Hugging Face cache."""
    is_path = any(separator in shard for separator in "/\\:")
    return shard.endswith(".safetensors") and shard.isprintable() and not is_path


def _read_shard(folder: Path, shard: str) -> dict[str, TensorEntry]:
    if not (folder / shard).exists():
        raise CheckpointError(
            f"{folder / shard}",
            got="no such file",
            need=f"every shard that {INDEX_FILE} names",
            fix=f"Fetch {shard} into the folder.",
        )
    return read_header(folder / shard)


def _no_weights(folder: Path) -> CheckpointError:
    endings = (".safetensors", ".bin", ".bin.index.json", ".gguf")
    others = sorted(each.name for each in folder.iterdir() if each.name.endswith(endings))
    got = f"neither of them; beside them: {', '.join(others[:4])}" if others else "neither of them"
    if "pytorch_model.bin" in others or "pytorch_model.bin.index.json" in others:
        fix = "Convert pytorch_model.bin: load it with transformers and call save_pretrained."
    elif any(name.endswith(".safetensors") for name in others):
        fix = f"Fetch {INDEX_FILE} too, or rename a single file to {SINGLE_FILE}."
    else:
        fix = "Fetch the weights, or pass another folder."
    return CheckpointError(f"weights in {folder}", got=got, need=f"{SINGLE_FILE} or {INDEX_FILE}", fix=fix)
