"""Which texts are seen together and when: decided by seed and epoch alone, so that a run can go on anywhere."""

from collections.abc import Sequence
from itertools import takewhile

import torch

from tspec.training.texts import Text

HELD_OUT = 50
"""One text in this many is kept from training, to measure on."""


def split_texts(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Texts to train on and texts to measure on; those too short to teach anything are left out."""
    useful = [text for text in texts if len(text.answer) > 2]
    return (
        [text for place, text in enumerate(useful) if place % HELD_OUT != 1],
        [text for place, text in enumerate(useful) if place % HELD_OUT == 1],
    )


def whole_texts(texts: Sequence[Text]) -> list[Text]:
    """The same texts with the prompt as part of the answer, but for what all prompts begin with, as a template does.

    To be taught on: the target says what it would say after each token of a prompt, too.
    """
    if not texts:
        return []
    prompts = [text.prompt for text in texts]
    alike = len(
        list(takewhile(lambda pair: pair[0] == pair[1], zip(min(prompts), max(prompts), strict=False)))
    )
    ends = [max(1, min(alike, len(prompt) - 1)) for prompt in prompts]
    return [
        Text(text.number, text.prompt[:end], text.prompt[end:] + text.answer)
        for text, end in zip(texts, ends, strict=True)
    ]


def make_batches(texts: Sequence[Text], batch_tokens: int, seed: int, epoch: int) -> list[list[Text]]:
    """All texts once, in batches of at most `batch_tokens` tokens with padding, or of one text.

    Texts of like length come together, the batches in an order drawn from seed and epoch.
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    order = torch.randperm(len(texts), generator=generator).tolist()
    batches: list[list[Text]] = [[]]
    for place in sorted(order, key=lambda place: _length(texts[place]) // 32):
        longest = max(map(_length, [*batches[-1], texts[place]]))
        if batches[-1] and longest * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(texts[place])
    return [batches[place] for place in torch.randperm(len(batches), generator=generator).tolist()]


def _length(text: Text) -> int:
    return len(text.prompt) + len(text.answer)
