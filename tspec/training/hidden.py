"""What a head learns from: hidden states of the target, and what the target says, for a batch of its texts.

Runs transformers' form of the target over whole sequences. `stored_states` keeps on disk what comes of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear
from torch.nn.utils.rnn import pad_sequence

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


@dataclass(frozen=True)
class Observed:
    """What the target computed for the tokens of a text.

    states     [tokens, (aux layers + 1) * hidden]: hidden states of the aux layers, and after the final norm
    likeliest  [tokens] int32, what it says comes next
    """

    states: torch.Tensor
    likeliest: torch.Tensor


Teach = Callable[[Sequence[Text]], Batch]
"""Gives what a head learns from some texts."""


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
        self._rows = model.lm_head.weight[self._kept].detach()

    @property
    def state_width(self) -> int:
        """Columns of `Observed.states`."""
        return (len(self._aux_layers) + 1) * int(self._rows.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of `Observed.states`."""
        return self._rows.dtype  # type: ignore[no-any-return]

    @torch.no_grad()
    def teach(self, texts: Sequence[Text]) -> Batch:
        """Run the target over texts."""
        return self.batch(texts, self.observe(texts))

    @torch.no_grad()
    def observe(self, texts: Sequence[Text]) -> list[Observed]:
        """What the target computes for each token of each text."""
        tokens, lengths = _padded(texts, self._device)
        hidden, last = self.hidden_states(tokens)
        states = torch.cat([*hidden, last], dim=-1)
        return [
            Observed(states[row, :length], self._likeliest(last[row, :length]))
            for row, length in enumerate(lengths)
        ]

    @torch.no_grad()
    def batch(self, texts: Sequence[Text], observed: Sequence[Observed]) -> Batch:
        """Put texts side by side with what was observed of them."""
        tokens, lengths = _padded(texts, self._device)
        states = pad_sequence([each.states for each in observed], batch_first=True).to(self._device)
        likeliest = pad_sequence([each.likeliest for each in observed], batch_first=True).to(self._device)
        is_taught = torch.zeros(tokens.shape[0], tokens.shape[1] - 1, dtype=torch.bool)
        for row, text in enumerate(texts):
            # Pair n has token n + 1, which has to be of the answer, and so has what comes after it.
            is_taught[row, len(text.prompt) - 1 : lengths[row] - 2] = True
        is_taught = is_taught.to(self._device)
        width = self._rows.shape[1]
        return Batch(
            aux=states[:, :-1, :-width],
            embedded=self.model.model.embed_tokens(tokens[:, 1:]),
            is_taught=is_taught,
            scores=linear(states[:, 1:, -width:][is_taught], self._rows).float(),
            says=self._head_id[likeliest[:, 1:][is_taught].long()],
        )

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

    def _likeliest(self, rows: torch.Tensor) -> torch.Tensor:
        parts = rows.split(ROWS_AT_A_TIME)
        return torch.cat([self.model.lm_head(some).max(dim=-1).indices.int() for some in parts])


def _padded(texts: Sequence[Text], device: torch.device) -> tuple[torch.Tensor, list[int]]:
    """Tokens [texts, T] int64, with zeros behind, and lengths."""
    rows = [torch.tensor(text.prompt + text.answer) for text in texts]
    return pad_sequence(rows, batch_first=True).to(device), [len(row) for row in rows]


def load_target(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The target as transformers runs it, frozen."""
    from transformers import AutoModelForCausalLM  # slow to import
    from transformers.utils import logging

    had_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # we draw our own
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    finally:
        if had_bar:
            logging.enable_progress_bar()
    return model.eval().requires_grad_(False).to(device)


def fast_dtype(device: torch.device) -> torch.dtype:
    """What products are computed in: bfloat16, but float32 on a CPU that has no instructions for it."""
    is_slow = device.type == "cpu" and "AVX512" not in torch.backends.cpu.get_cpu_capability()
    return torch.float32 if is_slow else torch.bfloat16
