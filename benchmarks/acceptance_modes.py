"""Which acceptance takes more of a draft that draws its candidates: match with the target's own noise, or ratio?

The target's laws are those of a model along texts that it samples itself. Drafts are that model with noise on its
logits, at another temperature, or with only the last few tokens in sight. A candidate at depth d is judged by the two
laws d places further in the text, whichever token it is: acceptance depends on how far p and q are apart, and that is
what changes along a text. Laws are cut to the likeliest tokens of both, which makes draws cheap.

Run: python -m benchmarks.acceptance_modes [CHECKPOINT] [--per-category 2] [--json FILE]
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import cpu_name
from benchmarks.prompts import read_questions
from tspec.build import BuildOptions, build_engine
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.core.shapes import blocks_for
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES, chain
from tspec.runtime.buckets import smallest_bucket
from tspec.runtime.inputs import PassInputs
from tspec.tokenizer import load_codec

TEMPERATURES = (0.5, 0.8, 1.0)
CHAIN, TREE = 4, (3, 2, 1)
"""Candidates of a chain; children of a node at each depth of a tree."""

TEXT_TOKENS, PROMPT_TOKENS, SIGHTS = 24, 96, (16, 4)
LIKELIEST, DRAWS, BLOCK_DRAWS = 256, 64, 2048
NOISE = (0.5, 1.0, 2.0)
MAX_MODEL_LEN = 256

RULES = ("own noise", "coupled", "ratio", "block", "likeliest")
"""Draws matched with noise of their own; with the target's; by ratio; by ratio as a block; the likeliest tokens."""


class Model:
    """Gives the logits after each token of a text."""

    def __init__(self, folder: Path) -> None:
        options = BuildOptions(max_model_len=MAX_MODEL_LEN, max_num_seqs=1)
        self.engine = build_engine(folder, SpeculativeConfig(method="none"), options)
        self._table = np.arange(blocks_for(MAX_MODEL_LEN + MAX_NODES), dtype=np.int32)[None]

    def logits(self, text: list[int], start: int = 0) -> np.ndarray:
        """Logits [V] after the last token; the keys and values of the first `start` tokens are there already."""
        for first in range(start, len(text), MAX_NODES):
            trees = chain(np.array(text[first : first + MAX_NODES], dtype=np.int32))
            bucket = smallest_bucket(1, trees.tokens.shape[1])
            inputs = PassInputs(trees, np.array([first], dtype=np.int32), self._table)
            found = self.engine.executor.run("logits", bucket, inputs)["logits"]
        return found.reshape(-1, found.shape[-1])[trees.tokens.shape[1] - 1].copy()


@dataclass(frozen=True)
class Place:
    """Logits after one prefix: with all of it in sight, and with so many tokens of it."""

    whole: np.ndarray
    sights: dict[int, np.ndarray]


def sample_text(model: Model, prompt: list[int], generator: np.random.Generator) -> list[Place]:
    """The places of one text that the model samples itself, at temperature 1."""
    text, wholes, prefixes = list(prompt), [model.logits(prompt)], [list(prompt)]
    while len(wholes) < TEXT_TOKENS:
        text.append(int((wholes[-1] + generator.gumbel(size=len(wholes[-1]))).argmax()))
        wholes.append(model.logits(text, start=len(text) - 1))
        prefixes.append(list(text))
    return [
        Place(whole, {sight: model.logits(prefix[-sight:]) for sight in SIGHTS})
        for whole, prefix in zip(wholes, prefixes, strict=True)
    ]


def draft_logits(place: Place, draft: str, value: float, generator: np.random.Generator) -> np.ndarray:
    """Logits of a draft, to be divided by the target's temperature."""
    if draft == "noise":
        return place.whole + value * generator.normal(size=len(place.whole))
    return place.whole / value if draft == "temperature" else place.sights[int(value)]


def two_laws(target: np.ndarray, draft: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p and q over the likeliest tokens of both."""
    kept = np.union1d(*(np.argpartition(-scores, LIKELIEST)[:LIKELIEST] for scores in (target, draft)))
    chosen = (scores[kept].astype(np.float64) for scores in (target, draft))
    weights = (np.exp(scores - scores.max()) for scores in chosen)
    p, q = (each / each.sum() for each in weights)
    return p, q


def chances(p: np.ndarray, q: np.ndarray, width: int, generator: np.random.Generator) -> dict[str, float]:
    """The chance that one of `width` children is accepted, by rule."""
    noise, other = generator.gumbel(size=(2, DRAWS, len(p)))
    best = (np.log(p + 1e-300) + noise).argmax(1)[:, None]
    coupled, own = (np.argsort(-(np.log(q + 1e-300) + each), axis=1)[:, :width] for each in (noise, other))
    return {
        "own noise": float(p[own].sum(1).mean()),
        "coupled": float((coupled == best).any(1).mean()),
        "ratio": _ratio_chance(p, q, own),
        "likeliest": float(np.sort(p[np.argsort(-q)[:width]]).sum()),
    }


def _ratio_chance(p: np.ndarray, q: np.ndarray, drawn: np.ndarray) -> float:
    """Siblings `drawn` [draws, width] without replacement, tested in turn."""
    rows = np.arange(len(drawn))
    rest, left, refused = np.tile(p, (len(drawn), 1)), np.tile(q, (len(drawn), 1)), np.ones(len(drawn))
    for token in drawn.T:
        refused *= 1 - np.minimum(1, rest[rows, token] / np.maximum(left[rows, token], 1e-300))
        rest = np.maximum(rest - left, 0)
        rest /= np.maximum(rest.sum(1, keepdims=True), 1e-300)
        left[rows, token] = 0
        left /= np.maximum(left.sum(1, keepdims=True), 1e-300)
    return float(1 - refused.mean())


def block_accepted(laws: list[tuple[np.ndarray, np.ndarray]], generator: np.random.Generator) -> float:
    """Candidates of a chain that block verification accepts: the mean of reach at each, arXiv:2403.10444."""
    reach, accepted = np.ones(BLOCK_DRAWS), 0.0
    for p, q in laws:
        token = np.searchsorted(np.cumsum(q)[:-1], generator.random(BLOCK_DRAWS))
        reach = np.minimum(reach * p[token] / q[token], 1)
        accepted += float(reach.mean())
    return accepted


def accepted(
    texts: list[list[Place]], temperature: float, draft: str, value: float
) -> dict[str, dict[str, float]]:
    """Mean accepted candidates of a pass, by form and rule; and how far the laws are apart."""
    generator = np.random.default_rng(0)
    sums: dict[str, list[dict[str, float]]] = {"chain": [], "tree": [], "apart": []}
    for places in texts:
        laws = [
            two_laws(place.whole / temperature, draft_logits(place, draft, value, generator) / temperature)
            for place in places
        ]
        wide = {width: [chances(*law, width, generator) for law in laws] for width in {1, *TREE}}
        sums["apart"].append({"TV": float(np.mean([np.abs(p - q).sum() / 2 for p, q in laws]))})
        for start in range(len(laws) - CHAIN + 1):
            path = wide[1][start : start + CHAIN]
            found = {rule: _expected([each[rule] for each in path]) for rule in path[0]}
            sums["chain"].append(found | {"block": block_accepted(laws[start : start + CHAIN], generator)})
            levels = [wide[width][start + depth] for depth, width in enumerate(TREE)]
            sums["tree"].append({rule: _expected([each[rule] for each in levels]) for rule in levels[0]})
    return {
        form: {rule: float(np.mean([each[rule] for each in rows])) for rule in rows[0]}
        for form, rows in sums.items()
    }


def _expected(chance_by_depth: list[float]) -> float:
    return float(np.cumprod(chance_by_depth).sum())


def measure(folder: Path, per_category: int) -> list[dict[str, object]]:
    """One record a temperature and draft."""
    model, generator = Model(folder), np.random.default_rng(0)
    tokenizer = load_codec(folder, model.engine.config.vocab_size)
    prompts = [tokenizer.encode(each.prompt)[-PROMPT_TOKENS:] for each in read_questions(per_category)]
    texts = [sample_text(model, list(prompt), generator) for prompt in prompts]
    model.engine.close()
    drafts = [*(("noise", each) for each in NOISE), ("temperature", 0.7), ("temperature", 1.4)]
    drafts += [("tokens in sight", float(sight)) for sight in SIGHTS]
    return [
        {"temperature": temperature, "draft": f"{draft} {value:g}", "contexts": TEXT_TOKENS * len(texts)}
        | accepted(texts, temperature, draft, value)
        for temperature in TEMPERATURES
        for draft, value in drafts
    ]


def show(records: list[dict], console: Console) -> None:
    """Print a table a form."""
    for form, title in (("chain", f"a chain of {CHAIN}"), ("tree", f"a tree with {TREE} children a node")):
        rules = [rule for rule in RULES if rule in records[0][form]]
        table = Table("temperature", "draft", "TV", *rules, title=f"accepted candidates a pass, {title}")
        for record in records:
            figures = [f"{record[form][rule]:.2f}" for rule in rules]
            table.add_row(
                f"{record['temperature']}", record["draft"], f"{record['apart']['TV']:.2f}", *figures
            )
        console.print(table)
    console.print(f"{records[0]['contexts']} contexts")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--per-category", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    console = Console()
    console.print(cpu_name())
    records = measure(args.checkpoint or ensure_demo_model(), args.per_category)
    show(records, console)
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
