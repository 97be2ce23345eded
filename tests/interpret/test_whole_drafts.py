"""With draft models and heads the cuda lowering decodes what the CPU backend decodes plainly: the whole loop.

The executors are those of `device="cuda"`; their launches run one by one in the interpreter.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_whole_drafts.py
"""

import pytest
from support.engines import build, outputs, run
from support.head_checkpoints import write_authors, write_medusa, write_speculators
from support.tiny_heads import frequent_ids, tiny_eagle, tiny_medusa
from support.tiny_models import tiny_checkpoint

from tspec import build_proposer
from tspec.build import load_config
from tspec.proposers.model_turns import DraftCosts

VOCAB, NUM_TOKENS = 64, 5
SIZES = {"hidden": 32, "heads": 2, "kv_heads": 1, "intermediate": 48, "vocab": VOCAB}
PROMPTS = [5, 9, 5, 9, 5], [7]
SAMPLED = {"temperature": 0.8, "seed": 11}
TREE = {"num_speculative_tokens": 5, "draft_top_k": 2, "draft_depth": 2}
CHAIN = {"num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("drafts")
    tiny_checkpoint(root / "target", "llama", layers=2, **SIZES)
    tiny_checkpoint(root / "draft", "qwen3", layers=1, seed=1, **SIZES)
    target = load_config(root / "target")
    few = frequent_ids(VOCAB, 40)
    write_authors(root / "eagle1", tiny_eagle(target, 1))
    write_speculators(root / "eagle3", tiny_eagle(target, 3, aux=(0, 1, 2), draft_ids=few))
    write_medusa(root / "medusa", tiny_medusa(target))
    return root


@pytest.fixture(scope="module")
def plain(folders):
    """What the CPU backend says, greedy and sampled."""
    engine = build(folders / "target")
    found = {
        name: outputs(run(engine, *PROMPTS, max_tokens=NUM_TOKENS, **asked))
        for name, asked in (("greedy", {}), ("sampled", SAMPLED))
    }
    engine.close()
    return found


@pytest.fixture
def on_device(folders, cuda_in_interpreter):
    """Returns a function that builds the engine of `device="cuda"` on the CPU's memory."""

    def on_device(**speculative):
        options = {"device": "cuda", "max_model_len": 128, "max_num_seqs": 2, "kv_cache_mib": 2}
        return build(folders / "target", speculative, **options)

    return on_device


@pytest.mark.parametrize(
    ("name", "method", "shape"),
    [
        ("draft", "draft_model", CHAIN),
        ("draft", "draft_model", TREE),
        ("eagle1", "eagle", CHAIN),
        ("eagle3", "eagle3", TREE),
        ("medusa", "medusa", TREE),
    ],
)
def test_texts_are_those_of_plain_decoding_on_the_cpu(folders, plain, on_device, name, method, shape):
    engine = on_device(method=method, model=folders / name, **shape)
    greedy = run(engine, *PROMPTS, max_tokens=NUM_TOKENS)
    sampled = run(engine, *PROMPTS, max_tokens=NUM_TOKENS, **SAMPLED)
    assert outputs(greedy) == plain["greedy"]
    assert outputs(sampled) == plain["sampled"]
    assert all(each.stats.num_candidates > 0 for each in (*greedy, *sampled))
    engine.close()


def test_lookups_beside_a_draft_keep_texts(folders, plain, on_device, monkeypatch):
    """Its rounds are not timed here: that takes half a minute."""
    monkeypatch.setattr(build_proposer, "time_rounds", lambda *asked: DraftCosts(1e-4, 1e-4, 0.0))
    engine = on_device(method="union", model=folders / "draft", **CHAIN)
    assert outputs(run(engine, *PROMPTS, max_tokens=NUM_TOKENS)) == plain["greedy"]
    assert outputs(run(engine, *PROMPTS, max_tokens=NUM_TOKENS, **SAMPLED)) == plain["sampled"]
    assert engine.metrics().sources["draft_model"].num_trees > 0
    engine.close()


def test_a_draft_that_is_the_target_is_accepted_whole(folders, plain, on_device):
    engine = on_device(method="draft_model", model=folders / "target", **CHAIN)
    sequences = run(engine, *PROMPTS, max_tokens=NUM_TOKENS)
    assert outputs(sequences) == plain["greedy"]
    assert all(each.stats.num_accepted == each.stats.num_candidates > 0 for each in sequences)
    engine.close()


def test_drawn_candidates_coupled_with_the_target_keep_a_seeds_text(folders, plain, on_device):
    drawn = {"draft_sample_method": "probabilistic", "acceptance": "match"}
    engine = on_device(method="draft_model", model=folders / "target", **CHAIN, **drawn)
    sequences = run(engine, *PROMPTS, max_tokens=NUM_TOKENS, **SAMPLED)
    assert outputs(sequences) == plain["sampled"]
    assert all(each.stats.num_accepted == each.stats.num_candidates > 0 for each in sequences)
    engine.close()
