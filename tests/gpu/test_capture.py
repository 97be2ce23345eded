"""A captured bucket gives the bits of its launches run one by one, replay after replay, and takes no more memory.

Run: pytest tests/gpu/test_capture.py -m gpu
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.random_requests import random_requests
from support.replays import Passes, assert_same

from benchmarks.gpu.models import random_chains, random_tree
from tspec.core.sampling import DRAWN_CHAIN
from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.graph.plan import Bucket

pytestmark = pytest.mark.gpu

NODES = (1, 2, 4, 8, 16, 32, MAX_NODES)
BUCKETS = [("all", Bucket(rows, nodes)) for rows in (1, 2, 4) for nodes in NODES]
BUCKETS += [(kind, Bucket(rows, MAX_NODES)) for kind in ("last", "none") for rows in (1, 4)]
BUCKETS += [(kind, Bucket(2, 8)) for kind in ("all_filtered", "all_edited", "prompt")]
BUCKETS += [(kind, Bucket(2, 8)) for kind in ("ratio_filtered", "ratio_edited")]
BUCKETS += [("ratio_edited", Bucket(2, 2))]
SMALL = [("all", Bucket(1, 1)), ("all", Bucket(2, 4)), ("ratio_edited", Bucket(2, 2))]
NUM_REPLAYS = 200


def ragged(config, bucket, seed):
    """Random trees of 1 to `bucket.nodes` nodes, and a prefix each."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, bucket.nodes + 1, bucket.rows)
    trees = random_chains(config, bucket.rows, bucket.nodes, seed)
    for row, count in enumerate(counts):
        tree = random_tree(config, int(count), seed + row)
        trees.tokens[row, :count], trees.parents[row, :count] = tree.tokens[0], tree.parents[0]
    prefixes = generator.integers(0, 500, bucket.rows).tolist()
    return CandidateTrees(trees.tokens, trees.parents, counts.astype(np.int32)), prefixes


@pytest.mark.parametrize(("kind", "bucket"), BUCKETS, ids=str)
def test_a_replay_gives_the_bits_of_launches_one_by_one(medium, is_small, kind, bucket):
    if is_small and (kind, bucket) not in SMALL:
        pytest.skip("more than the interpreter runs in a blink")
    cases = [
        replace(
            medium.inputs(*ragged(medium.config, bucket, seed)),
            requests=random_requests(medium.config, bucket, seed),
        )
        for seed in (0, 1)
    ]
    Passes(medium).hold(kind, bucket, cases)


def blocks(config, bucket, seed):
    """Requests over chains of drawn candidates, of which most are accepted: the draft gave them little chance."""
    requests = random_requests(config, bucket, seed)
    is_sampled = np.full((bucket.rows, bucket.nodes), DRAWN_CHAIN, np.int32)
    is_sampled[:, -1] = 0
    kept = {name: np.zeros_like(requests[name]) for name in ("top_k", "min_p")}
    kept |= {"temperature": np.full(bucket.rows, 2, np.float32), "top_p": np.ones(bucket.rows, np.float32)}
    return requests | kept | {"is_sampled": is_sampled, "draft_logprobs": requests["draft_logprobs"] - 2}


@pytest.mark.parametrize("kind", ["ratio_filtered", "ratio_edited"])
def test_a_replay_judges_blocks_as_launches_one_by_one_do(medium, is_small, kind):
    if is_small and kind == "ratio_edited":
        pytest.skip("more than the interpreter runs in a blink")
    bucket = Bucket(1, 4) if is_small else Bucket(4, 16)
    cases = [
        replace(
            medium.inputs(random_chains(medium.config, bucket.rows, bucket.nodes, seed), [70] * bucket.rows),
            requests=blocks(medium.config, bucket, seed),
        )
        for seed in (0, 1)
    ]
    outputs = Passes(medium).hold(kind, bucket, cases)
    assert kind == "ratio_edited" or max(each["num_out"].max() for each in outputs) > 1


def test_launches_that_start_early_give_the_bits_of_launches_that_wait_for_each_other(medium):
    """A part without early launches runs the same twice."""
    bucket = Bucket(2, 4)
    passes = Passes(medium)
    for seed in (0, 1):
        inputs = medium.inputs(*ragged(medium.config, bucket, seed))
        expected = passes.one_by_one("all", bucket, inputs, launch_pdl=False)
        assert_same(passes.replayed("all", bucket, inputs), expected)


def test_a_bucket_of_which_rows_are_unused_leaves_their_outputs_and_kv_alone(medium):
    bucket = Bucket(4, 4)
    passes = Passes(medium)
    inputs = medium.inputs(random_chains(medium.config, 2, 4), [70, 200])
    outputs, caches = passes.replayed("all", bucket, inputs)
    unused = torch.from_numpy(medium.tables[2:].reshape(-1)).long().to(medium.device)
    for cache, before in zip(caches, passes.before, strict=True):
        assert torch.equal(cache[:, unused], before[:, unused])
    assert (outputs["num_out"][:2] >= 1).all()


def test_two_hundred_replays_give_the_same_bits_and_take_no_memory(medium, is_small):
    bucket = Bucket(2, 2) if is_small else Bucket(4, 16)
    passes = Passes(medium)
    inputs = medium.inputs(*ragged(medium.config, bucket, 5))
    first = passes.replayed("all", bucket, inputs)
    held = _held_bytes(medium.device)
    for _ in range(2 if is_small else NUM_REPLAYS):
        passes.restore()
        outputs = medium.executor.run("all", bucket, inputs)
        for name, array in first[0].items():
            assert np.array_equal(outputs[name], array), name
    assert _held_bytes(medium.device) == held
    bound = medium.executor.bind("all", bucket)
    assert not bound.scratch.counters.any(), "a counter was left set"


def _held_bytes(device):
    """Bytes that tensors of this process hold, and bytes that it keeps of the device."""
    if device.type != "cuda":
        return None
    return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
