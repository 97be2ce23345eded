"""Rounds of a draft model and of an EAGLE-3 head on the device; with them, and with all of "auto", texts stay the same.

Rounds have their own bits: on equal inputs a replay gives those of launches one by one. Against references, and where
candidates are a tree, all is float32: then no two logits are as near to one another as rounding.

Run: pytest tests/gpu/test_draft.py -m gpu
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.device_decoding import make_engine, repeating, run_engine
from support.device_pass import hold
from support.kernel_case import Maker
from support.random_requests import random_requests
from support.replays import Passes
from support.round_cases import draft_model, eagle, round_case
from support.tolerance import TOLERANCES

from benchmarks.gpu.drafts import aux_layers, random_draft_model, random_eagle3, same_model
from benchmarks.gpu.models import MEDIUM, MICRO, RandomModel, random_chains
from tspec.core.dtypes import DType
from tspec.core.pass_costs import PassCosts
from tspec.core.sampling import NO_TOKEN
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.graph.plan import Bucket
from tspec.models.build_graph import Features
from tspec.proposers.caching_union import CachingUnion
from tspec.proposers.model import round_kind
from tspec.proposers.model_turns import ModelTurns, time_rounds
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.none import NoProposer
from tspec.proposers.suffix import SuffixProposer
from tspec.runtime.pass_times import time_passes

pytestmark = pytest.mark.gpu

CHAIN, TREE = {"depth": 4, "width": 1}, {"depth": 3, "width": 4}
SHAPES = {
    "chain": CHAIN,
    "matched": CHAIN | {"draws": "match"},
    "drawn": CHAIN | {"draws": "ratio"},
    "tree": TREE,
}
NUM_CANDIDATES = 7

PARTS = {
    "draft_model": draft_model,
    "eagle3": partial(eagle, 3, draft_vocab_size=97, fc_norm=True, norm_output=True),
}
ROUNDS = (
    ("draft_model", 3, 3, "top"),
    ("draft_model", 3, 1, "match"),
    ("eagle3", 3, 3, "top"),
    ("eagle3", 3, 1, "ratio"),
)


def make_target(device, arch, is_small, dtype):
    """A target that keeps what an EAGLE-3 head reads."""
    config = replace(MICRO if is_small else MEDIUM, dtype=dtype)
    room = {"max_model_len": 640, "num_rows": 4}
    return RandomModel(config, device, arch, features=Features(aux_layers(config)), **room)


@pytest.fixture(scope="module")
def targets(device, arch, is_small):
    """By dtype."""
    made = {dtype: make_target(device, arch, is_small, dtype) for dtype in (DType.BFLOAT16, DType.FLOAT32)}
    yield made
    for each in made.values():
        each.executor.close()


def size(shape, is_small):
    return SHAPES[shape] | ({"depth": 2} if is_small else {})


def make_draft(name, target, **shape):
    if name == "eagle3":
        return random_eagle3(target, **shape)
    config = replace(target.config, num_layers=max(1, target.config.num_layers // 2))
    return random_draft_model(target, config, **shape)


def make_auto(draft, target, costs):
    """All lookups and the model, as build_proposer.py has it."""
    asked = SpeculativeConfig(num_speculative_tokens=NUM_CANDIDATES)
    lookups = [
        NgramProposer(asked, grows_with_match=False),
        SuffixProposer(asked, max_candidates=NUM_CANDIDATES),
    ]
    for lookup in lookups:
        lookup.warm_up()
    model, shape = draft.proposer(), draft.shape
    turns = ModelTurns(time_rounds(model, shape.depth, target.max_model_len), shape.depth, shape.width)
    union = CachingUnion("auto", lookups, model, turns, costs)
    union.warm_up()
    return union


def decode(target, proposer, prompts, count):
    """Greedy texts, and the sequences."""
    sequences = run_engine(make_engine(target, proposer, NUM_CANDIDATES), prompts, count)
    return [sequence.output_ids for sequence in sequences], sequences


def prompts_of(target, is_small):
    lengths = (9,) if is_small else (20, 9, 130, 300)
    return [repeating(target.config, length, length) for length in lengths]


@pytest.mark.parametrize(("name", "depth", "width", "draws"), ROUNDS, ids=str)
def test_a_round_gives_what_the_references_give(device, arch, is_small, name, depth, width, draws):
    if is_small and (name, width) != ("eagle3", 3):
        pytest.skip("test_draft_rounds of the interpreter's tests runs it")
    case = round_case(Maker(f"{name} {depth}x{width} {draws}"), PARTS[name](), depth, width, draws)
    found = hold(case, TOLERANCES["round", DType.FLOAT32], device=device, arch=arch)
    assert (found[f"level{depth - 1}.tokens"][0, 0] != NO_TOKEN).all()


def round_inputs(draft, bucket, seed):
    """Rows that take in 1 to `bucket.nodes` tokens, behind prefixes of their own, and grow levels of any width."""
    generator = np.random.default_rng(seed)
    chains = random_chains(draft.config, bucket.rows, bucket.nodes, seed)
    counts = generator.integers(1, bucket.nodes + 1, bucket.rows).astype(np.int32)
    prefixes = generator.integers(1, 500, bucket.rows)
    inputs = draft.target.inputs(CandidateTrees(chains.tokens, chains.parents, counts), prefixes.tolist())
    levels = {
        "draft_prefix": (prefixes + counts).astype(np.int32),
        "level_nodes": generator.integers(0, draft.shape.width + 1, bucket.rows).astype(np.int32),
    }
    return replace(inputs, requests=random_requests(draft.config, bucket, seed) | levels)


@pytest.mark.parametrize("bucket", [Bucket(1, 1), Bucket(1, 8), Bucket(4, 2)], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["draft_model", "eagle3"])
def test_a_replayed_round_gives_the_bits_of_launches_one_by_one(targets, is_small, name, shape, bucket):
    if is_small and (name, shape, bucket.rows) not in [("draft_model", "matched", 4), ("eagle3", "tree", 1)]:
        pytest.skip("more than the interpreter runs in a blink")
    draft = make_draft(name, targets[DType.BFLOAT16], **size(shape, is_small))
    cases = [round_inputs(draft, bucket, seed) for seed in (0, 1)]
    Passes(draft).hold(round_kind(draft.shape.depth), bucket, cases)
    draft.executor.close()


@pytest.mark.parametrize("name", ["draft_model", "eagle3"])
def test_a_replay_takes_in_tokens_as_launches_one_by_one_do(targets, is_small, name):
    bucket = Bucket(2, 2) if is_small else Bucket(4, MAX_NODES)
    draft = make_draft(name, targets[DType.BFLOAT16], **size("chain", is_small))
    cases = [round_inputs(draft, bucket, seed) for seed in (0, 1)]
    Passes(draft).hold(round_kind(0), bucket, cases)
    draft.executor.close()


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("draft_model", "chain", DType.BFLOAT16),
        ("draft_model", "matched", DType.BFLOAT16),
        ("eagle3", "chain", DType.BFLOAT16),
        ("draft_model", "tree", DType.FLOAT32),
        ("eagle3", "tree", DType.FLOAT32),
    ],
    ids=str,
)
def test_a_models_candidates_leave_greedy_texts_as_they_are(targets, is_small, name, shape, dtype):
    target = targets[dtype]
    prompts, count = prompts_of(target, is_small), 4 if is_small else 100
    plain, _ = decode(target, NoProposer(), prompts, count)
    draft = make_draft(name, target, **size(shape, is_small))
    texts, sequences = decode(target, draft.proposer(), prompts, count)
    assert texts == plain
    assert all(each.stats.num_candidates > 0 for each in sequences)
    draft.executor.close()


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32], ids=str)
def test_candidates_of_the_target_itself_are_accepted(targets, is_small, dtype):
    """Nearly all: where two logits are nearer to one another than rounding, one of both may come first."""
    target = targets[dtype]
    prompts, count = prompts_of(target, is_small), 6 if is_small else 100
    plain, _ = decode(target, NoProposer(), prompts, count)
    draft = same_model(target, **size("chain", is_small))
    texts, sequences = decode(target, draft.proposer(), prompts, count)
    assert texts == plain
    num_candidates = sum(each.stats.num_candidates for each in sequences)
    assert sum(each.stats.num_accepted for each in sequences) > 0.9 * num_candidates > 0
    draft.executor.close()


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32], ids=str)
def test_drawn_candidates_of_the_target_itself_pass_the_ratio_test(targets, is_small, dtype):
    """Nearly all: both laws are the same but for rounding. Chains, verified as blocks."""
    if is_small and dtype is DType.BFLOAT16:
        pytest.skip("more than the interpreter runs in a blink")
    target = targets[dtype]
    prompts, count = prompts_of(target, is_small), 4 if is_small else 100
    draft = same_model(target, **size("drawn", is_small))
    engine = make_engine(target, draft.proposer(), NUM_CANDIDATES)
    sequences = run_engine(engine, prompts, count, temperature=3.0, seed=7)
    num_candidates = sum(each.stats.num_candidates for each in sequences)
    assert sum(each.stats.num_accepted for each in sequences) > 0.9 * num_candidates > 0
    assert "ratio_filtered" in {kind.split()[0] for kind in engine.metrics().passes}
    draft.executor.close()


@pytest.mark.parametrize("is_timed", [False, True], ids=["free", "timed"])
def test_auto_leaves_greedy_texts_as_they_are(targets, is_small, is_timed):
    """With passes timed on the device, and as if they cost nothing: then candidates are verified for sure."""
    target = targets[DType.FLOAT32]
    prompts, count = prompts_of(target, is_small), 4 if is_small else 100
    plain, _ = decode(target, NoProposer(), prompts, count)
    draft = same_model(target, **size("chain", is_small))
    costs = PassCosts.flat()
    if is_timed:
        costs = time_passes(target.executor, (1, 2, 4, 8), target.max_model_len, is_padded=True)
    texts, sequences = decode(target, make_auto(draft, target, costs), prompts, count)
    assert texts == plain
    assert is_timed or all(each.stats.num_accepted > 0 for each in sequences)
    draft.executor.close()
