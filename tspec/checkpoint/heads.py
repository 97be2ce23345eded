"""Draft heads in a folder: EAGLE-1, 2 and 3 and Medusa, in the layouts in which people publish them.

A head that does not fit the target is refused by name before any weight is read. Whatever the layout, tensors have the
names of `head_tensors`, and ids of the target's layers count what enters a layer. Builds no graph.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tspec.checkpoint.eagle_config import read_eagle, read_head_file
from tspec.checkpoint.head_files import TensorSource, by_canonical_name, open_tensors, tensor_file
from tspec.checkpoint.head_tensors import D2T, HARMLESS, MAPS, TOKEN_MAP, head_tensors
from tspec.checkpoint.hf_config import CONFIG_FILE, FAMILIES
from tspec.checkpoint.index import check_folder
from tspec.checkpoint.json_object import read_object, shown
from tspec.checkpoint.medusa_config import is_medusa, read_medusa
from tspec.checkpoint.weights import Described, account_tensors
from tspec.core.config import ModelConfig
from tspec.core.errors import CheckpointError, ConfigError
from tspec.core.head_config import EagleConfig, HeadFormat, MedusaConfig

HeadConfig = EagleConfig | MedusaConfig
_log = logging.getLogger("tspec")


@dataclass(frozen=True)
class HeadCheckpoint:
    """A head whose tensors are accounted for. Open one with `open_head`.

    tensors   by canonical name, those that the head needs and no others
    shapes    by canonical name, as `load` returns them
    """

    folder: Path
    config: HeadConfig
    tensors: Mapping[str, Described]
    shapes: Mapping[str, tuple[int, ...]]
    source: TensorSource

    def load(self, name: str) -> torch.Tensor:
        """One tensor by canonical name, in the dtype of the file; it must not be written to.

        Errors    CheckpointError for a name that the head has not, and for a file that changed
        Cost      no copy, but for a Medusa output layer of the whole vocabulary, of which `token_map` takes some rows
        """
        if name not in self.tensors:
            raise CheckpointError(
                f"{self.folder}: tensor {shown(name)}",
                got="no such tensor",
                need="one of the head's",
                fix="Check that the weights belong to config.json.",
            )
        tensor = self.source.load(self.tensors[name].name)
        if tensor.shape == self.shapes[name]:
            return tensor
        return tensor[torch.from_numpy(target_ids(self)).long()]


def read_head(folder: str | Path, target: ModelConfig | None, layer_offset: int = 0) -> HeadConfig:
    """The configuration of the head in `folder`: see `open_head`."""
    return open_head(folder, target, layer_offset).config


def open_head(folder: str | Path, target: ModelConfig | None, layer_offset: int = 0) -> HeadCheckpoint:
    """The head in `folder`, its configuration read and all of its tensors accounted for.

    target        the model it has to fit; None checks the head by itself, and leaves aux_layers empty where the file
                  names none
    layer_offset  added to the ids of the target's layers, to try the other convention
    Errors        CheckpointError naming file and key or tensor for whatever is not a head of this target; ConfigError
                  for a layer_offset where the head reads no layers
    Cost          reads config.json, headers and names; no weights
    """
    folder = Path(folder)
    check_folder(folder)
    path = folder / CONFIG_FILE
    data = read_object(path)
    file = tensor_file(folder)
    source = open_tensors(file)
    names = by_canonical_name(str(file), source.tensors)
    config: HeadConfig
    if is_medusa(data, names):
        config = read_medusa(path, data, names, file.name, target)
    else:
        head = read_head_file(path, data, names, file.name)
        config = read_eagle(head, target, layer_offset)
        _warn_of_other_target(path, head.raw.speculators_config, target)
        if target is not None and config.format is HeadFormat.EAGLE3:
            _check_fc(folder, config, names)
    if layer_offset and config.format is not HeadFormat.EAGLE3:
        need = "0, for a head that is not EAGLE-3: it reads the target's last hidden state"
        raise ConfigError("layer_offset", got=layer_offset, need=need, fix="Leave it out.")
    shapes = head_tensors(_with_layers(config))
    stored = {name: _stored(config, names.get(name), shape) for name, shape in shapes.items()}
    account_tensors(str(file), names, stored, ignored=HARMLESS, integers=MAPS)
    return HeadCheckpoint(folder, config, {name: names[name] for name in shapes}, shapes, source)


def target_ids(head: HeadCheckpoint) -> np.ndarray:
    """The target's id of each of the head's ids, int32 [num_logits].

    `d2t` holds offsets (target = draft + d2t[draft]), `token_map` the ids themselves; without either they are equal.
    Errors: CheckpointError naming the first entry that is outside the target's vocabulary, or there before.
    """
    config = head.config
    if config.draft_vocab_size is None:
        return np.arange(config.target_vocab_size, dtype=np.int32)
    name = TOKEN_MAP if isinstance(config, MedusaConfig) else D2T
    values = head.source.load(head.tensors[name].name).to(torch.int64).numpy()
    ids = values if name == TOKEN_MAP else values + np.arange(len(values))
    is_bad = (ids < 0) | (ids >= config.target_vocab_size)
    first_place = np.zeros(len(ids), dtype=bool)
    first_place[np.unique(ids, return_index=True)[1]] = True
    if (is_bad | ~first_place).any():
        first = int(np.argmax(is_bad | ~first_place))
        raise CheckpointError(
            f"{head.folder}: {name}[{first}]",
            got=f"target id {ids[first]}{'' if is_bad[first] else ', which an entry before it has'}",
            need=f"ids from 0 to {config.target_vocab_size - 1}, each once",
            fix="Fetch the head again; its map of tokens is damaged.",
        )
    return ids.astype(np.int32)


def _with_layers(config: HeadConfig) -> HeadConfig:
    """The head with as many hidden states as EAGLE-3 has, where the target that would say which is not known."""
    if isinstance(config, MedusaConfig) or config.format is HeadFormat.EAGLE1 or config.aux_layers:
        return config
    return replace(config, aux_layers=(0, 0, 0))


def _stored(config: HeadConfig, entry: Described | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a tensor has in the file: Medusa's output layers may have rows that `token_map` leaves out."""
    if (
        isinstance(config, MedusaConfig)
        and entry is not None
        and shape == (config.num_logits, config.hidden_size)
    ):
        whole = (config.target_vocab_size, config.hidden_size)
        return whole if entry.shape == whole else shape
    return shape


def _check_fc(folder: Path, config: EagleConfig, names: Mapping[str, Described]) -> None:
    """Need as many columns of fc as there are hidden states to join: the commonest sign of another head."""
    fc = names.get("fc.weight")
    if fc is not None and fc.shape != (config.layer.hidden_size, config.fc_width):
        count, width = len(config.aux_layers), config.target_hidden_size
        raise CheckpointError(
            f"{folder}: tensor 'fc.weight'",
            got=list(fc.shape),
            need=f"{[config.layer.hidden_size, config.fc_width]}, for {count} hidden states of {width}",
            fix="Use a head that was trained for this target, with its own config.json.",
        )


def _warn_of_other_target(path: Path, training: Any, target: ModelConfig | None) -> None:
    verifier = training.verifier.architectures if training is not None else []
    known = [FAMILIES[name].name for name in verifier if name in FAMILIES]
    if target is not None and verifier and target.architecture not in known:
        _log.warning("%s: the head was trained for %s, not for %s", path, verifier[0], target.architecture)
