"""What is chosen follows from a row alone: fused or not, alone or among others, in a tree or decoded plain.

Run: pytest tests/kernels/test_cpu_sampling.py
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support.cpu_pass import Case, run_on_cpu
from support.kernel_case import DTYPES, Maker, chains
from support.narrow_host import IS_X86, output_on_avx2
from support.sampling_cases import edit_logits, filters, find_kept, finish, sample, start, token_logprobs
from support.sampling_hash import hash_of_sampling
from support.text_law import spend

from tspec.core.dtypes import DType
from tspec.core.noise import TARGET
from tspec.core.sampling import NO_TOKEN
from tspec.graph.builder import GraphBuilder
from tspec.graph.passes import fuse

COUNTS = (5, 17, 1, 3)
WIDTHS = (1, 48, 49, 96, 1000)


def head_case(
    vocab: int, dtype: DType, norm: bool, last: bool, is_written: bool = False, is_filtered: bool = False
) -> Case:
    """A sample of a head, fused unless the logits are put out; sequences at all temperatures; nothing is dropped."""
    make, trees, k = Maker("head"), chains(COUNTS), 24
    build = GraphBuilder("case")
    source, x = make.rows("x", trees.tokens.size, k)
    build.ops.append(source)
    x = build.last_row("last", x) if last else x
    x = build.rms_norm("normed", x, make.weight("norm", k), 1e-5) if norm else x
    logits = build.head_logits(
        "logits", x, make.weight("matrix", vocab, k, dtype=dtype), make.weight("bias", vocab)
    )
    kept = build.find_kept(logits)[:2] if is_filtered else ()
    token = build.sample("token", logits, *kept)
    graph = fuse(build.build([token, logits] if is_written else [token]))
    build.ops = list(graph.ops)
    keep_all = {
        "top_k": np.zeros(4, np.int32),
        "top_p": np.ones(4, np.float32),
        "min_p": np.zeros(4, np.float32),
    }
    return finish(make, build, graph.outputs, filters(make, trees, 0) | keep_all)


def live(case: Case, tokens: torch.Tensor) -> list[list[int]]:
    return [
        tokens[row, : min(count, tokens.shape[1])].tolist()
        for row, count in enumerate(case.inputs["num_nodes"])
    ]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.short)
@pytest.mark.parametrize("vocab", WIDTHS)
def test_the_head_draws_the_tokens_that_are_drawn_from_its_logits(vocab, dtype, norm, last):
    """With and without a threshold that keeps all: three ways to the same token."""
    head = partial(head_case, vocab, dtype, norm, last)
    ways = [head(), head(is_written=True), head(is_written=True, is_filtered=True)]
    prefix = "norm_" * norm
    assert [way.ops[-1].kind for way in ways] == [f"{prefix}head_sample", "sample", "sample"]
    assert [way.ops[1 + last].kind for way in ways[1:]] == [f"{prefix}head_logits"] * 2
    tokens = [live(way, run_on_cpu(way, num_threads=3)["token"]) for way in ways]
    assert tokens[0] == tokens[1] == tokens[2]
    assert len({token for row in tokens[0] for token in row}) > 1 or vocab == 1


def alone(case: Case, row: int) -> Case:
    """The same weights, and one sequence of the batch."""
    return replace(case, inputs={name: array[row : row + 1] for name, array in case.inputs.items()})


@pytest.mark.parametrize(
    "make",
    [
        partial(sample, first=1),
        partial(find_kept, first=0),
        partial(find_kept, first=5, sampled=True),
        edit_logits,
        token_logprobs,
        partial(token_logprobs, path=True),
    ],
)
def test_a_sequence_has_the_same_bits_alone_and_among_others(make):
    """Greedy ones, all filters, edits and none, in one batch."""
    case = make(Maker("a batch"), vocab=331, counts=COUNTS)
    together, start = run_on_cpu(case, num_threads=3), 0
    for row, count in enumerate(COUNTS):
        found = run_on_cpu(alone(case, row))
        for name, part in found.items():
            is_dense = len(part) == count and together[name].shape[0] == sum(COUNTS)
            whole = together[name][start : start + count] if is_dense else together[name][row : row + 1]
            live = part if is_dense or name == "num_out" else part[:, :count]
            whole = whole if is_dense else whole[:, :count]
            assert torch.equal(live.contiguous().view(torch.int32), whole.contiguous().view(torch.int32)), (
                name
            )
        start += count


@pytest.mark.parametrize("seed", range(6))
def test_a_node_is_edited_as_plain_decoding_of_its_path_would_be(seed):
    """There the tokens of the path are in the counts, and the node is the root."""
    case = edit_logits(Maker(f"a tree {seed}"), vocab=97, counts=(23,))
    case.inputs["edits"][:] = 7
    found = run_on_cpu(case)["edited"]
    tokens, ancestors = case.inputs["tokens"][0], case.inputs["ancestors"][0]
    repeated = 0
    for node in range(23):
        path = [other for other in range(1, node + 1) if int(ancestors[node]) >> other & 1]
        counts = case.inputs["counts"].copy()
        np.add.at(counts[0], tokens[path], 2)
        repeated += len(path) - len(set(tokens[path].tolist()))
        plain = {
            **alone(case, 0).inputs,
            "tokens": tokens[None, node : node + 1],
            "ancestors": np.ones((1, 1), np.int64),
            "depth": np.zeros((1, 1), np.int32),
            "num_nodes": np.ones(1, np.int32),
            "counts": counts,
            "mask": case.inputs["mask"][:, node : node + 1],
        }
        expected = run_on_cpu(replace(case, inputs=plain))["edited"]
        assert torch.equal(found[node].view(torch.int32), expected[0].view(torch.int32)), node
    assert repeated > 0


def test_a_token_is_drawn_by_its_position_not_by_its_place():
    """Each node of a chain against a root that stands as far behind a longer prefix."""
    case = sample(Maker("a chain"), vocab=131, counts=(9,), first=1)
    found = run_on_cpu(case)["token"][0]
    for node in range(9):
        plain = {
            **case.inputs,
            "tokens": case.inputs["tokens"][:, node : node + 1],
            "ancestors": np.ones((1, 1), np.int64),
            "depth": np.zeros((1, 1), np.int32),
            "num_nodes": np.ones(1, np.int32),
            "prefix_len": case.inputs["prefix_len"] + node,
        }
        assert int(run_on_cpu(replace(case, inputs=plain))["token"]) == int(found[node]), node
    assert NO_TOKEN in found


@pytest.mark.parametrize("vocab", [97, 1000])
def test_a_draft_that_draws_with_the_targets_noise_draws_the_targets_tokens(vocab):
    """From the same logits; where a sequence is greedy both take the largest."""
    make, trees = Maker("coupled"), chains(COUNTS)
    build, logits = start(make, vocab, trees, last=True)
    target = build.sample("target", logits)
    tokens, logprobs, _ = build.draw_draft("draft", logits, None, stream=TARGET, offset=0)
    inputs = filters(make, trees, 0)
    inputs["draft_prefix"] = inputs["prefix_len"] + inputs["num_nodes"]
    case = finish(make, build, [target, tokens, logprobs], inputs)
    found = run_on_cpu(case)
    assert torch.equal(found["target"], found["draft.tokens"][..., 0])
    assert (found["target"] != NO_TOKEN).any()


@pytest.mark.skipif(not IS_X86, reason="the narrow registers of another architecture")
def test_narrow_registers_give_the_bits_of_wide_ones():
    assert output_on_avx2("support.sampling_hash") == ["avx2", "8", hash_of_sampling()]


def test_samples_have_their_probabilities():
    """16 seeds times 64 positions: chi-square with 8 degrees, between these bounds for all but 5e-10 of all seeds."""
    make = Maker("probabilities")
    case = sample(make, vocab=9, counts=(64,) * 16, first=1)
    logits, temperature = torch.linspace(-1, 1.5, 9), 1.5
    make.tensors["logits.table"][:] = logits
    case.inputs["temperature"][:] = temperature
    tokens = run_on_cpu(case, num_threads=3)["token"].flatten()
    expected = len(tokens) * (logits / temperature).softmax(0)
    statistic = ((torch.bincount(tokens, minlength=9) - expected) ** 2 / expected).sum()
    spend(5e-10)
    assert 0.01 < statistic < 60
