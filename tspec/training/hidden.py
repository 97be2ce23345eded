"""What a proposer learns from: hidden states of the target, and what the target says, for a batch of its texts.

Runs transformers' form of the target over whole sequences. `stored_states` keeps on disk what comes of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear, pad
from torch.nn.utils.rnn import pad_sequence

from tspec.training.head import Span
from tspec.training.texts import Text

ROUND = 128
"""Pairs of a batch, and taught ones, come in multiples of this. oneDNN compiles its products for each new number of
rows, which took a quarter of the time of training, and keeps what it compiled in memory."""

ROUND_TEXT = 32
"""Texts side by side are as long as a multiple of this, for the same reason."""

ROWS_AT_A_TIME = 1024
"""Rows whose logits over the whole vocabulary are in memory at a time."""


@dataclass(frozen=True)
class Batch:
    """Pairs of a hidden state of the target and the token after it, texts one after the other.

    Taught are the pairs whose token is of the answer, and has a token after it. The last span is padding, of zeros.

    aux        [pairs, aux layers * hidden], the hidden states that the head joins
    embedded   [pairs, hidden], embedding of the token after
    spans      of each text: its pairs, and those of them that are taught
    reach      [taught pairs] int64, how many taught pairs of its text are before each; -1 in the padding
    scores     [taught pairs, head's vocabulary] float32, the target's logits after the token of the pair
    says       [taught pairs] int64, the target's likeliest token, as an id of the head; -1 where the head has it not
    """

    aux: torch.Tensor
    embedded: torch.Tensor
    spans: Sequence[Span]
    reach: torch.Tensor
    scores: torch.Tensor
    says: torch.Tensor


@dataclass(frozen=True)
class Observed:
    """What the target computed for the tokens of a text.

    states     [tokens, (aux layers + 1) * hidden]: hidden states of the aux layers, and after the final norm
    likeliest  [tokens] int32, what it says comes next; 0 within the prompt
    """

    states: torch.Tensor
    likeliest: torch.Tensor


class Target:
    """The target, frozen."""

    def __init__(self, model: Any, aux_layers: Sequence[int], device: torch.device) -> None:
        self.model, self.device, self._aux_layers = model, device, tuple(aux_layers)

    @property
    def state_width(self) -> int:
        """Columns of `Observed.states`."""
        return (len(self._aux_layers) + 1) * int(self.model.lm_head.weight.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of `Observed.states`."""
        return self.model.lm_head.weight.dtype  # type: ignore[no-any-return]

    @torch.no_grad()
    def observe(self, texts: Sequence[Text]) -> list[Observed]:
        """What the target computes for each token of each text."""
        tokens, lengths = padded(texts, self.device)
        hidden, last = self.hidden_states(tokens)
        states = torch.cat([*hidden, last], dim=-1)
        # The head is a large part of a small target: it runs where an answer is read off, and not on prompts.
        said = [last[row, len(text.prompt) - 1 : lengths[row]] for row, text in enumerate(texts)]
        likeliest = self._likeliest(torch.cat(said)).split([len(each) for each in said])
        return [
            Observed(states[row, :length], pad(likeliest[row], (len(texts[row].prompt) - 1, 0)))
            for row, length in enumerate(lengths)
        ]

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
        parts = fill_up(rows, len(rows) + -len(rows) % ROUND).split(ROWS_AT_A_TIME)
        return torch.cat([self.model.lm_head(some).max(dim=-1).indices.int() for some in parts])[: len(rows)]


class Teacher(Target):
    """The target as a head learns from it."""

    def __init__(
        self, model: Any, aux_layers: Sequence[int], kept: torch.Tensor, device: torch.device
    ) -> None:
        """`kept`: [head's vocabulary] int64, the target's ids of the head's tokens in ascending order."""
        super().__init__(model, aux_layers, device)
        kept = kept.to(device)
        self._head_id = torch.full((model.lm_head.weight.shape[0],), -1, device=device)
        self._head_id[kept] = torch.arange(len(kept), device=device)
        self._rows = model.lm_head.weight[kept].detach()

    @torch.no_grad()
    def batch(self, texts: Sequence[Text], observed: Sequence[Observed]) -> Batch:
        """Put texts one after the other with what was observed of them."""
        width, joined = self._rows.shape[1], list(zip(texts, observed, strict=True))
        tokens = torch.cat([torch.tensor((text.prompt + text.answer)[1:-1]) for text in texts])
        last = torch.cat([each.states[len(text.prompt) : -1, -width:] for text, each in joined])
        says = torch.cat([each.likeliest[len(text.prompt) : -1] for text, each in joined])
        spans, taught = _spans(texts), len(says)
        padding = spans[-1]
        reach = [torch.arange(each.end - each.first) for each in spans[:-1]]
        reach.append(torch.full((padding.end - padding.first,), -1))
        aux = torch.cat([each.states[:-2, :-width] for each in observed])
        return Batch(
            aux=fill_up(aux, padding.end).to(self.device),
            embedded=fill_up(self.model.model.embed_tokens(tokens.to(self.device)), padding.end),
            spans=spans,
            reach=torch.cat(reach).to(self.device),
            scores=fill_up(linear(last.to(self.device), self._rows).float(), taught + len(reach[-1])),
            says=fill_up(self._head_id[says.to(self.device).long()], taught + len(reach[-1])),
        )


def _spans(texts: Sequence[Text]) -> list[Span]:
    """Where the texts of a batch are, and the padding after them."""
    spans, start, num_taught = [], 0, 0
    for text in texts:
        end = start + len(text.prompt) + len(text.answer) - 2
        # Pair n has token n + 1, which has to be of the answer, and so has what comes after it.
        spans.append(Span(start, start + len(text.prompt) - 1, end))
        num_taught += spans[-1].end - spans[-1].first
        start = end
    taught_padding = -num_taught % ROUND
    end = start + taught_padding
    end += -end % ROUND
    return [*spans, Span(start, end - taught_padding, end)]


def fill_up(x: torch.Tensor, rows: int) -> torch.Tensor:
    """`x` with rows of zeros behind."""
    return pad(x, (0, 0) * (x.dim() - 1) + (0, rows - len(x)))


def padded(texts: Sequence[Text], device: torch.device) -> tuple[torch.Tensor, list[int]]:
    """Tokens [texts, T] int64, with zeros behind, T a multiple of ROUND_TEXT; and lengths."""
    rows = [torch.tensor(text.prompt + text.answer) for text in texts]
    tokens = pad_sequence(rows, batch_first=True)
    return pad(tokens, (0, -tokens.shape[1] % ROUND_TEXT)).to(device), [len(row) for row in rows]


def load_target(folder: Path, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """The target as transformers runs it, frozen; in `fast_dtype` where none is given."""
    from transformers import AutoModelForCausalLM  # slow to import
    from transformers.utils import logging

    had_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # we draw our own
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype or fast_dtype(device), local_files_only=True
        )
    finally:
        if had_bar:
            logging.enable_progress_bar()
    return model.eval().requires_grad_(False).to(device)


def train_device() -> torch.device:
    """Where to train."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fast_dtype(device: torch.device) -> torch.dtype:
    """What products are computed in: bfloat16, but float32 on a CPU that has no instructions for it."""
    is_slow = device.type == "cpu" and "AVX512" not in torch.backends.cpu.get_cpu_capability()
    return torch.float32 if is_slow else torch.bfloat16
