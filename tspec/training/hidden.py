"""What a head learns from: hidden states of the target, and what the target says, for a batch of its texts.

Runs transformers' form of the target, whose texts come in batches of whole sequences, and computes anew in each epoch:
one pass of the target costs less than a step of training, and what it gives would fill a disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tspec.training.texts import Text

ROWS_AT_A_TIME = 1024
"""Rows whose logits over the whole vocabulary are in memory at a time."""


@dataclass(frozen=True)
class Batch:
    """Texts side by side, of T tokens at most: T - 1 pairs each of a hidden state and the token after it.

    aux        [texts, pairs, aux layers * hidden], the hidden states that the head joins
    embedded   [texts, pairs, hidden], embedding of the token after
    is_taught  [texts, pairs] bool, whether the target has said what comes after the pair
    scores     [taught pairs, head's vocabulary] float32, the target's logits after the token of the pair
    says       [taught pairs] int64, the target's likeliest token, as an id of the head; -1 where the head has it not
    """

    aux: torch.Tensor
    embedded: torch.Tensor
    is_taught: torch.Tensor
    scores: torch.Tensor
    says: torch.Tensor


class Teacher:
    """The target, frozen."""

    def __init__(
        self, model: Any, aux_layers: Sequence[int], kept: torch.Tensor, device: torch.device
    ) -> None:
        """`kept`: [head's vocabulary] int64, the target's ids of the head's tokens in ascending order."""
        self.model, self._device = model, device
        self._aux_layers = tuple(aux_layers)
        self._kept = kept.to(device)
        self._head_id = torch.full((model.lm_head.weight.shape[0],), -1, device=device)
        self._head_id[self._kept] = torch.arange(len(kept), device=device)

    @torch.no_grad()
    def teach(self, texts: Sequence[Text]) -> Batch:
        """Run the target over texts."""
        longest = max(len(text.prompt) + len(text.answer) for text in texts)
        tokens = torch.zeros(len(texts), longest, dtype=torch.int64)
        is_taught = torch.zeros(len(texts), longest - 1, dtype=torch.bool)
        for row, text in enumerate(texts):
            start, end = len(text.prompt), len(text.prompt) + len(text.answer)
            tokens[row, :end] = torch.tensor(text.prompt + text.answer)
            # Pair n has token n + 1, which has to be of the answer, and so has what comes after it.
            is_taught[row, start - 1 : end - 2] = True
        tokens, is_taught = tokens.to(self._device), is_taught.to(self._device)
        hidden, last = self.hidden_states(tokens)
        scores, says = self._say(last[:, 1:][is_taught])
        aux = torch.cat([each[:, :-1] for each in hidden], dim=-1)
        return Batch(aux, self.model.model.embed_tokens(tokens[:, 1:]), is_taught, scores, says)

    def hidden_states(self, tokens: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """What enters the aux layers, [texts, T, hidden] each, and what leaves the final norm.

        Padding behind a text needs no mask: no token of the text sees it.
        """
        decoder, kept = self.model.model, {}

        def keep(layer: int) -> Any:
            def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                kept[layer] = args[0] if args else kwargs["hidden_states"]

            return hook

        stages = [*decoder.layers, decoder.norm]  # the final norm reads what the last layer puts out
        hooks = [
            stages[layer].register_forward_pre_hook(keep(layer), with_kwargs=True)
            for layer in set(self._aux_layers)
        ]
        try:
            last = decoder(tokens, use_cache=False).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        return [kept[layer] for layer in self._aux_layers], last

    def _say(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores, says = [], []
        for some in rows.split(ROWS_AT_A_TIME):
            logits = self.model.lm_head(some)
            scores.append(logits[:, self._kept].float())
            says.append(self._head_id[logits.max(dim=-1).indices])
        return torch.cat(scores), torch.cat(says)


def load_target(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The target as transformers runs it, frozen."""
    from transformers import AutoModelForCausalLM  # slow to import

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model.eval().requires_grad_(False).to(device)


def fast_dtype(device: torch.device) -> torch.dtype:
    """What products are computed in: bfloat16, but float32 on a CPU that has no instructions for it."""
    is_slow = device.type == "cpu" and "AVX512" not in torch.backends.cpu.get_cpu_capability()
    return torch.float32 if is_slow else torch.bfloat16
