"""Which hidden states of the target an EAGLE-3 head joins: ids in config.json, counted in two ways, into tspec's.

tspec's id n, like Hugging Face's `hidden_states[n]`, is what *enters* layer n. The same key counts inputs at the top
level of config.json (vLLM, speculators) and outputs inside `eagle_config` (SGLang, SpecForge), which is one less.
Files that mix the two exist; nothing but acceptance tells, so `layer_offset` moves the ids.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from tspec.checkpoint.head_schema import RawHead
from tspec.core.config import ModelConfig
from tspec.core.errors import CheckpointError
from tspec.core.head_config import LayerConvention

_KEY = "eagle_aux_hidden_state_layer_ids"
_log = logging.getLogger("tspec")


@dataclass(frozen=True, slots=True)
class AuxLayers:
    """Inputs of layers, how the file counted them, and why it is read so. No layers: the target is not known."""

    layers: tuple[int, ...]
    convention: LayerConvention | None
    reason: str


def read_aux_layers(path: Path, raw: RawHead, target: ModelConfig | None, layer_offset: int) -> AuxLayers:
    """The layers of the head whose config.json lies at `path`.

    target        None where it is not known: then nothing is checked, and the default stays open
    layer_offset  added to every id
    Errors        CheckpointError for a layer that the target has not, and for a target too short for the default
    """
    found = _find(path, raw, target)
    reason = found.reason + (f"; moved by layer_offset {layer_offset}" if layer_offset else "")
    layers = tuple(layer + layer_offset for layer in found.layers)
    if target is not None:
        for layer in layers:
            if not 0 <= layer <= target.num_layers:
                raise CheckpointError(
                    f"{path}: hidden states that the head reads",
                    got=f"the input of layer {layer} ({reason})",
                    need=f"layers of the target, which has {target.num_layers}",
                    fix="Use a head that was trained for this target.",
                )
    return AuxLayers(layers, found.convention, reason)


def _find(path: Path, raw: RawHead, target: ModelConfig | None) -> AuxLayers:
    inputs = raw.eagle_aux_hidden_state_layer_ids
    outputs = raw.eagle_config.eagle_aux_hidden_state_layer_ids if raw.eagle_config else None
    if inputs:
        reason = f"{_KEY} stands at the top level of config.json"
        doubt = _doubt(inputs, outputs, target)
        if doubt:
            _log.warning("%s: %s: %s; compare acceptance with layer_offset 1", path, reason, doubt)
            reason = f"{reason}, but {doubt}"
        return AuxLayers(tuple(inputs), LayerConvention.INPUT_OF_LAYER, reason)
    if outputs:
        layers = tuple(layer + 1 for layer in outputs)
        return AuxLayers(layers, LayerConvention.OUTPUT_OF_LAYER, f"{_KEY} stands in eagle_config")
    reason = "config.json names no layers: the default for L layers is the inputs of 2, L / 2 and L - 3"
    if target is None:
        return AuxLayers((), None, reason)
    depth = target.num_layers
    return AuxLayers((2, depth // 2, depth - 3), None, reason)


def _doubt(inputs: list[int], outputs: list[int] | None, target: ModelConfig | None) -> str:
    """Why ids at the top level may count outputs all the same; nothing where there is no sign of it."""
    if outputs and [layer + 1 for layer in outputs] != inputs:
        return f"eagle_config has {outputs}"
    if target is not None and inputs == [1, target.num_layers // 2 - 1, target.num_layers - 4]:
        return "they are what files that count outputs have by default"
    return ""
