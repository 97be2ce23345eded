"""A trace has a line a round, and its numbers are those of the requests; passes are timed before anything runs.

Run: pytest tests/runtime/test_trace.py
"""

import json

import numpy as np
import pytest
from support.engines import build, run
from support.tiny_models import tiny_checkpoint

from tspec.build import BuildOptions, build_engine
from tspec.core.errors import ConfigError
from tspec.core.speculative_config import SpeculativeConfig
from tspec.runtime.pass_times import time_passes

VOCAB, NUM_TOKENS = 64, 20
PROMPTS = [3, 1, 4] * 4, [9, 9, 9, 9], [7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    tiny_checkpoint(folder, "llama", vocab=VOCAB, max_position_embeddings=512)
    return folder


def traced(folder, path, speculative, *prompts):
    """The lines of a trace, the requests, and what became of each source."""
    engine = build(folder, speculative, trace=path)
    sequences = run(engine, *prompts, max_tokens=NUM_TOKENS)
    sources = engine.metrics().sources
    engine.close()
    return [json.loads(line) for line in path.read_text().splitlines()], sequences, sources


@pytest.mark.parametrize("method", ["auto", "union"])
def test_a_line_says_what_a_round_did(folder, tmp_path, method):
    lines, sequences, sources = traced(folder, tmp_path / "trace", {"method": method}, *PROMPTS)
    if method == "auto":
        assert sorted(lines.pop(0)["costs"]) == ["ask_s", "context_s", "is_padded", "nodes", "seconds"]
    assert [line["round"] for line in lines] == list(range(1, len(lines) + 1))
    at = [line["at_s"] for line in lines]
    assert at == sorted(at) and at[0] > 0
    for sequence in sequences:
        mine = [row for line in lines for row in line["rows"] if row["request"] == sequence.arrival]
        assert len(mine) == sequence.stats.num_passes
        assert sum(row["candidates"] for row in mine) == sequence.stats.num_candidates
        assert sum(row["tokens"] - 1 for row in mine) == sequence.stats.num_accepted
        lengths = len(sequence.prompt) + np.cumsum([0, *(row["tokens"] for row in mine)])
        assert [row["context"] - mine[0]["context"] + len(sequence.prompt) for row in mine] == [*lengths[:-1]]
    for name, tally in sources.items():
        given = [row.get("by_source", {}).get(name, 0) for line in lines for row in line["rows"]]
        assert (sum(given), np.count_nonzero(given)) == (tally.num_candidates, tally.num_trees)
    for line in lines:
        assert 0 <= line["draft_s"] + line["verify_s"] <= line["total_s"] + 2e-6
        expected = line["expected"]
        assert expected["rate"] >= 0 and expected["expected_tokens"] >= len(line["rows"])
        assert expected["pass_s"] >= expected["plain_s"] > 0 and expected["draft_s"] == 0


def test_other_proposers_have_no_sources(folder, tmp_path):
    lines, sequences, _ = traced(folder, tmp_path / "trace", {"method": "suffix"}, PROMPTS[0])
    assert all("expected" not in line and "by_source" not in line["rows"][0] for line in lines)
    assert sum(line["rows"][0]["tokens"] for line in lines) == len(sequences[0].output_ids) - 1


def test_a_path_that_cannot_be_written_is_told_before_weights_are_read(folder, tmp_path):
    told = []
    options = BuildOptions(trace=tmp_path / "none" / "trace")
    with pytest.raises(ConfigError, match=r"trace: got .*none/trace .*need a file to write"):
        build_engine(folder, SpeculativeConfig(), options, lambda *done: told.append(done))
    assert told == []


def test_times_of_passes_rise_and_leave_kv_memory_as_it_was(folder):
    engine = build(folder, {"method": "none"})
    try:
        alone = run(engine, PROMPTS[0], max_tokens=NUM_TOKENS)[0].output_ids
        engine.scheduler.kv.forget()
        counts = (1, 4, 8, 16)
        costs = time_passes(engine.executor, counts, 256, is_padded=False)
        assert costs.nodes == counts
        assert costs.seconds == tuple(sorted(costs.seconds)) and costs.seconds[0] > 0
        assert costs.context_s == tuple(sorted(costs.context_s)) and costs.context_s[0] >= 0
        assert engine.scheduler.kv.num_free == engine.scheduler.kv.num_blocks
        again = run(engine, PROMPTS[0], max_tokens=NUM_TOKENS)[0]
        assert (again.output_ids, again.stats.num_reused) == (alone, 0)
        assert time_passes(engine.executor, (1, 2), 0, is_padded=True).context_s == (0.0, 0.0)
        between = time_passes(engine.executor, (1, 2, 3, 4, 6), 256, is_padded=False).context_s
        assert between[2] == pytest.approx((between[1] + between[3]) / 2)
    finally:
        engine.close()
