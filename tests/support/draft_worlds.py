"""Two small targets with proposers of every kind that is a model, and what each text is without them.

random   a llama of random weights: attention and caches matter; a noisy copy as a draft model, random heads
table    a model whose next token is a table's entry; heads that know most of the table, and are wrong about the rest
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from support.engines import build, run
from support.exact_heads import exact_eagle1, exact_eagle3, exact_medusa
from support.head_checkpoints import write_authors, write_medusa, write_speculators
from support.table_model import table_checkpoint
from support.tiny_heads import frequent_ids, tiny_eagle, tiny_medusa
from support.tiny_models import tiny_checkpoint

from tspec.build import load_config
from tspec.core.config import ModelConfig
from tspec.runtime.loop import Engine
from tspec.runtime.sequence import Sequence as RunningSequence

VOCAB, TABLE_VOCAB, MAX_POSITION = 128, 64, 512
AUX = (0, 1, 2)
"""Hidden states that random EAGLE-3 heads read of a target of two layers."""
TABLE_AUX = (0, 0, 1)
NOISE = 0.03
"""Of a noisy copy: about half of its candidates are accepted."""

CHAIN = {"num_speculative_tokens": 4}
TREE = {"num_speculative_tokens": 12, "draft_top_k": 3, "draft_depth": 4}
DRAWN = {"num_speculative_tokens": 4, "draft_sample_method": "probabilistic"}
COUPLED, BY_RATIO = DRAWN | {"acceptance": "match"}, DRAWN | {"acceptance": "ratio"}

SPECULATION: dict[str, tuple[str, dict[str, Any]]] = {
    "draft model, chain": ("noisy", CHAIN),
    "draft model, tree": ("noisy", TREE),
    "draft model, coupled": ("noisy", COUPLED),
    "draft model, ratio": ("noisy", BY_RATIO),
    "eagle1, chain": ("eagle1", CHAIN),
    "eagle3, tree": ("eagle3", TREE),
    "eagle3, coupled": ("eagle3", COUPLED),
    "eagle3, ratio": ("eagle3", BY_RATIO),
    "medusa, chain": ("medusa", CHAIN),
    "medusa, tree": ("medusa", TREE),
    "good eagle1, tree": ("good eagle1", TREE),
    "good eagle3, tree": ("good eagle3", TREE),
    "good medusa, tree": ("good medusa", TREE),
}
"""Which draft, and how it speculates. Every eagle3 has a vocabulary of its own."""

METHODS = {"noisy": "draft_model", "medusa": "medusa", "good medusa": "medusa"}
"""By draft; all others are of method eagle."""


def random_target(folder: Path, **config: Any) -> transformers.PreTrainedModel:
    """Write the random target, and return it."""
    settings = {"hidden": 48, "heads": 6, "vocab": VOCAB, "max_position_embeddings": MAX_POSITION} | config
    return tiny_checkpoint(folder, "llama", **settings)


def noisy_copy(
    model: transformers.PreTrainedModel, folder: Path, spread: float = NOISE, seed: int = 1
) -> Path:
    """Write a model whose weights are those of another but for some noise."""
    noisy, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in noisy.named_parameters():
            if "norm" not in name:
                weight += spread * weight.std() * torch.randn(weight.shape, generator=generator)
    noisy.save_pretrained(folder)
    return folder


def shuffled_table(seed: int = 0, vocab: int = TABLE_VOCAB) -> list[int]:
    """What follows each token: every token comes after some other."""
    order = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed)).tolist()
    table = [0] * vocab
    for token, after in zip(order, [*order[1:], order[0]], strict=True):
        table[token] = after
    return table


def mostly(table: Sequence[int], every: int = 4) -> list[int]:
    """The table with a wrong entry after every fourth token."""
    return [(after + 1) % len(table) if token % every == 0 else after for token, after in enumerate(table)]


@dataclass
class World:
    """A target, the drafts that belong to it, and plain texts as far as they were asked for."""

    folder: Path
    draft_folders: Mapping[str, Path]
    plain: Engine
    known: dict[tuple, RunningSequence] = field(default_factory=dict)

    def alone(self, prompt: Sequence[int], **params: Any) -> RunningSequence:
        """The sequence of a prompt that is decoded alone and without speculation."""
        key = tuple(prompt), repr(sorted(params.items()))
        if key not in self.known:
            self.known[key] = run(self.plain, prompt, **params)[0]
        return self.known[key]


def random_world(folder: Path) -> World:
    """The random target with its drafts."""
    model = random_target(folder / "target")
    config = load_config(folder / "target")
    heads: dict[str, Callable[[ModelConfig, Path], Path]] = {
        "eagle1": lambda target, at: write_authors(at, tiny_eagle(target, 1, fc_bias=True)),
        "eagle3": lambda target, at: write_speculators(
            at, tiny_eagle(target, 3, aux=AUX, draft_ids=frequent_ids(VOCAB, 50))
        ),
        "medusa": lambda target, at: write_medusa(at, tiny_medusa(target)),
    }
    drafts = {name: write(config, folder / name) for name, write in heads.items()}
    drafts["noisy"] = noisy_copy(model, folder / "noisy")
    return World(folder / "target", drafts, build(folder / "target"))


def table_world(folder: Path) -> World:
    """The table with heads that know most of it."""
    table = shuffled_table()
    table_checkpoint(folder / "target", dict(enumerate(table)), vocab=TABLE_VOCAB, max_position=MAX_POSITION)
    guess, ids = mostly(table), frequent_ids(TABLE_VOCAB, 50)
    drafts = {
        "good eagle1": write_authors(folder / "eagle1", exact_eagle1(guess, reads="hidden")),
        "good eagle3": write_speculators(
            folder / "eagle3", exact_eagle3(guess, TABLE_AUX, reads="hidden", draft_ids=ids)
        ),
        "good medusa": write_medusa(folder / "medusa", exact_medusa(guess)),
    }
    return World(folder / "target", drafts, build(folder / "target"))


def speculative_config(world: World, name: str) -> dict[str, Any]:
    """What a user would ask for."""
    draft, how = SPECULATION[name]
    return {"method": METHODS.get(draft, "eagle"), "model": world.draft_folders[draft], **how}
