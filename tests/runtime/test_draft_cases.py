"""Drafts that are unlike their target: other vocabularies, other dtypes, other ends, trees larger than they can fill.

Cases D8, D18, D19, S5 and S8. None of them changes a text.

Run: pytest tests/runtime/test_draft_cases.py
"""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import edit_json
from support.draft_worlds import AUX, CHAIN, TREE, random_target
from support.engines import build, finish, outputs, run, with_proposer, with_room
from support.head_checkpoints import write_authors, write_medusa, write_speculators, write_vllm_medusa
from support.shadow import Witness
from support.table_model import table_checkpoint
from support.tiny_heads import frequent_ids, tiny_eagle, tiny_medusa
from support.tiny_models import tiny_checkpoint

from tspec.build import load_config
from tspec.core.errors import CheckpointError, ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.runtime.sequence import FinishReason

VOCAB = 128
PROMPTS = [[3, 1, 4, 1, 5], [127, 126, 9], list(range(60, 128))]
BY_RATIO = {"draft_sample_method": "probabilistic", "acceptance": "ratio"}
SEEDED = {"max_tokens": 40, "temperature": 1.5, "seed": 3}
COUPLED = {"draft_sample_method": "probabilistic", "acceptance": "match"}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases") / "target"
    random_target(folder)
    return folder


@pytest.fixture(scope="module")
def plain(target):
    engine = build(target)
    yield engine
    engine.close()


@pytest.fixture
def said(plain):
    return outputs([run(plain, prompt, max_tokens=40)[0] for prompt in PROMPTS])


def decode(target, speculative, **params):
    """Sequences of the prompts in one batch, and what was proposed."""
    engine = build(target, speculative)
    try:
        witness = Witness(engine.proposer)
        options = {"max_candidates": engine._max_candidates, "acceptance": engine._acceptance}
        wide = with_proposer(engine, witness, node_budget=512, mixes_prompts=engine._mixes_prompts, **options)
        return run(wide, *PROMPTS, **{"max_tokens": 40} | params), witness.proposals
    finally:
        engine.close()


def draft_model(folder, **options):
    return {"method": "draft_model", "model": folder, **CHAIN, **options}


def write_tokens(folder, count, swapped=()):
    """A tokenizer.json of so many tokens, two of which may have changed places."""
    texts = [f"t{token}" for token in range(count)]
    for one, other in [swapped] if swapped else []:
        texts[one], texts[other] = texts[other], texts[one]
    vocabulary = {text: token for token, text in enumerate(texts)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))


def resized(target, folder, vocab):
    """The target with fewer tokens, or with more."""
    shutil.copytree(target, folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        more = torch.ones(max(0, vocab - VOCAB), tensors[name].shape[1])
        tensors[name] = torch.cat([tensors[name][:vocab], 9 * more])
    save_file(tensors, file, metadata={"format": "pt"})
    edit_json(folder / "config.json", vocab_size=vocab)
    return folder


def share(sequences):
    stats = [each.stats for each in sequences]
    return sum(each.num_accepted for each in stats) / sum(each.num_candidates for each in stats)


def check_seeded(plain, sequences, options):
    """The text of a seed is plain decoding's, but where draws are tested by ratio: there it is a text as long."""
    alone = [run(plain, prompt, **SEEDED)[0] for prompt in PROMPTS]
    if options == BY_RATIO:
        assert [each.finish_reason for each in sequences] == [each.finish_reason for each in alone]
    else:
        assert outputs(sequences) == outputs(alone)


@pytest.mark.parametrize("options", [{}, TREE, BY_RATIO, COUPLED], ids=str)
def test_a_draft_model_of_fewer_tokens(target, plain, tmp_path, said, options):
    """D19, 120 tokens of 128: it reads the others as token 0, and never proposes them."""
    small = resized(target, tmp_path / "small", 120)
    write_tokens(small, 120)
    big = shutil.copytree(target, tmp_path / "target")
    write_tokens(big, 120)
    sequences, proposals = decode(big, draft_model(small, **options))
    assert outputs(sequences) == said
    assert max(token for each in said for token in each) >= 120
    assert 0 < max(token for each in proposals for _, token in each.nodes) < 120
    check_seeded(plain, decode(big, draft_model(small, **options), **SEEDED)[0], options)


@pytest.mark.parametrize("options", [{}, TREE, BY_RATIO, COUPLED], ids=str)
def test_a_draft_model_of_more_tokens(target, plain, tmp_path, said, options):
    """D19, the reverse: rows that the target has not would be the likeliest of all."""
    large = resized(target, tmp_path / "large", 136)
    write_tokens(large, 130)
    small = shutil.copytree(target, tmp_path / "target")
    write_tokens(small, VOCAB)
    sequences, proposals = decode(small, draft_model(large, **options))
    assert outputs(sequences) == said
    assert max(token for each in proposals for _, token in each.nodes) < VOCAB
    assert options == TREE or share(sequences) == 1
    check_seeded(plain, decode(small, draft_model(large, **options), **SEEDED)[0], options)


def test_a_draft_model_of_other_tokens_is_refused_with_the_first_of_them(target, tmp_path):
    """D19: of the same size, two tokens swapped."""
    folders = [shutil.copytree(target, tmp_path / name) for name in ("target", "draft")]
    write_tokens(folders[0], VOCAB)
    write_tokens(folders[1], VOCAB, swapped=(17, 90))
    with pytest.raises(CheckpointError, match=r"2 other than the target's: 17 is 't90', not 't17'; 90 is"):
        build(folders[0], draft_model(folders[1]))


def test_a_draft_model_of_another_size_needs_tokenizers_to_compare(target, tmp_path):
    small = resized(target, tmp_path / "small", 120)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json of the target model: got no such file"):
        build(target, draft_model(small))


def test_a_draft_model_in_bfloat16_under_a_target_in_float32(plain, tmp_path, said, target):
    """S5: right most of the time, and never in the text."""
    model = random_target(tmp_path / "again")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "bf16")
    assert load_config(tmp_path / "bf16").dtype.value == "bfloat16"
    sequences, _ = decode(target, draft_model(tmp_path / "bf16"))
    assert outputs(sequences) == said
    assert share(sequences) > 0.4


def tied(folder, *, flag, head):
    """A checkpoint as case D18 has them: the flag in config.json, and the head in the file."""
    model = tiny_checkpoint(folder, "llama", vocab=VOCAB, tie=True)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    if head != "none":
        embedding = model.model.embed_tokens.weight.detach()
        tensors["lm_head.weight"] = (embedding if head == "embedding" else embedding.flip(0)).clone()
    save_file(tensors, file, metadata={"format": "pt"})
    edit_json(folder / "config.json", tie_word_embeddings=flag)
    return folder


@pytest.mark.parametrize(
    ("flag", "head"),
    [(True, "none"), (True, "embedding"), (True, "another"), (False, "embedding"), (False, "another")],
)
def test_the_head_of_a_draft_model_is_the_one_that_the_target_would_use(tmp_path, flag, head):
    """D18: a draft that is the target is right about everything, whichever head that is."""
    folder = tied(tmp_path / "both", flag=flag, head=head)
    sequences, _ = decode(folder, draft_model(folder))
    assert share(sequences) == 1


def test_a_draft_model_without_a_head_is_refused(target, tmp_path):
    folder = tied(tmp_path / "none", flag=False, head="none")
    with pytest.raises(
        CheckpointError, match=r"tensor 'lm_head\.weight': got none, with tie_word_embeddings"
    ):
        build(target, draft_model(folder))


END = 5
"""Of D8: what the draft says after every third token, and the target never."""


@pytest.mark.parametrize("options", [CHAIN, TREE, CHAIN | BY_RATIO], ids=str)
def test_an_end_that_only_the_draft_sees_ends_nothing(tmp_path, options):
    table = {token: (token + 1) % 64 for token in range(64)} | {END - 1: END + 1}
    for name, says in (("target", table), ("draft", table | dict.fromkeys(range(0, 64, 3), END))):
        table_checkpoint(tmp_path / name, says, vocab=64, eos_token_id=END)
    config = {"method": "draft_model", "model": tmp_path / "draft", **options}
    engine = build(tmp_path / "target", config)
    wide = with_room(engine)
    sequences = run(wide, [7], [8, 9], [END], max_tokens=50)
    engine.close()
    for sequence in sequences:
        text = sequence.tokens[len(sequence.prompt) - 1 :]
        assert text[1:] == [table[token] for token in text[:-1]]
        assert (sequence.finish_reason, len(text)) == (FinishReason.LENGTH, 51)
        assert 0 < sequence.stats.num_accepted < sequence.stats.num_candidates


@pytest.mark.parametrize("options", [{}, TREE, BY_RATIO, COUPLED], ids=str)
def test_a_draft_whose_numbers_are_broken_changes_nothing(tmp_path, options):
    """After one token its logits are all NaN."""
    table = {token: (token + 1) % 64 for token in range(64)}
    table_checkpoint(tmp_path / "target", table, vocab=64)
    table_checkpoint(tmp_path / "draft", table, vocab=64, nan_tokens=(9,))
    engine = build(tmp_path / "target", draft_model(tmp_path / "draft", **options))
    wide = with_room(engine)
    for params in ({}, {"temperature": 0.01, "seed": 1}):
        sequences = run(wide, [7], [20], max_tokens=30, **params)
        assert outputs(sequences) == [list(range(8, 38)), list(range(21, 51))]
    engine.close()


def heads_of(target, folder):
    """Heads with few tokens of their own, and how deep each can guess."""
    config, ids = load_config(target), frequent_ids(VOCAB, 5)
    return {
        "medusa": write_medusa(folder / "medusa", tiny_medusa(config)),
        "narrow medusa": write_vllm_medusa(folder / "narrow", tiny_medusa(config, draft_ids=ids)),
        "eagle1": write_authors(folder / "eagle1", tiny_eagle(config, 1)),
        "narrow eagle3": write_speculators(folder / "eagle3", tiny_eagle(config, 3, aux=AUX, draft_ids=ids)),
    }


@pytest.mark.parametrize(
    ("name", "sizes", "depth", "most"),
    [
        ("medusa", {"draft_depth": 8, "draft_top_k": 2, "num_speculative_tokens": 40}, 3, 2 + 4 + 4),
        ("medusa", {"num_speculative_tokens": 9}, 3, 3),
        ("narrow medusa", {"draft_depth": 2, "draft_top_k": 16, "num_speculative_tokens": 60}, 2, 5 + 25),
        (
            "narrow eagle3",
            {"draft_depth": 3, "draft_top_k": 16, "num_speculative_tokens": 63},
            3,
            5 + 25 + 63,
        ),
        ("eagle1", {"draft_depth": 4, "draft_top_k": 16, "num_speculative_tokens": 63}, 4, 63),
        ("eagle1", {"draft_depth": 9, "num_speculative_tokens": 3}, 3, 3),
        ("eagle1", {"num_speculative_tokens": 12}, 12, 12),
    ],
    ids=str,
)
def test_a_tree_larger_than_a_head_can_fill(target, tmp_path, said, name, sizes, depth, most):
    """S8: it gets as many candidates as there are."""
    method = "medusa" if "medusa" in name else "eagle"
    config = {"method": method, "model": heads_of(target, tmp_path)[name], **sizes}
    sequences, proposals = decode(target, config)
    assert outputs(sequences) == said
    for proposal in proposals:
        count = len(proposal.nodes)
        assert count == len(set(proposal.nodes)) <= min(most, proposal.max_nodes - 1)
        assert max(depths(proposal.nodes)) <= depth
    if most < 38:  # of 40 tokens
        assert {len(each.nodes) for each in proposals if each.max_nodes > most} == {most}


def depths(nodes):
    found = [0]
    for parent, _ in nodes:
        found.append(found[parent] + 1)
    return found


def test_a_tree_larger_than_a_pass_is_refused(target, tmp_path):
    head = heads_of(target, tmp_path)["eagle1"]
    with pytest.raises(ConfigError, match=r"draft_depth: got 9 levels of 8 nodes, need at most 63 nodes"):
        build(
            target,
            {
                "method": "eagle",
                "model": head,
                "draft_depth": 9,
                "draft_top_k": 8,
                "num_speculative_tokens": 63,
            },
        )


@pytest.mark.parametrize("name", ["eagle1", "narrow eagle3", "medusa"])
@pytest.mark.parametrize("options", [{}, BY_RATIO], ids=str)
def test_behind_a_text_of_one_token_a_head_proposes_nothing(target, plain, tmp_path, name, options):
    """There is no hidden state to read; what was in memory before is none."""
    method, is_drawn = ("medusa", False) if name == "medusa" else ("eagle", bool(options))
    config = {"method": method, "model": heads_of(target, tmp_path)[name], "num_speculative_tokens": 3}
    engine = build(target, config | (options if is_drawn else {}))
    witness = Witness(engine.proposer)
    wide = with_proposer(
        engine, witness, max_candidates=3, node_budget=64, acceptance="auto", mixes_prompts=False
    )
    params = {"max_tokens": 12, "temperature": 0.0 if not is_drawn else 1.0, "seed": 4, "prompt_logprobs": 0}
    for prompts in ([[9]], [[9], [9, 8, 7], [3]], [[9]]):
        witness.proposals.clear()
        sequences = run(wide, *prompts, **params)
        first = {each.text: each.nodes for each in reversed(witness.proposals)}
        for prompt in prompts:
            assert len(first[tuple(prompt)]) == (0 if len(prompt) == 1 else 3)
        if not is_drawn:
            assert outputs(sequences) == [run(plain, prompt, **params)[0].output_ids for prompt in prompts]
    engine.close()


def test_requests_with_broken_prompts_leave_the_draft_as_it_was(target, said):
    """A request that is refused, and one that is dropped in its prompt, take nothing of the others."""
    engine = build(target, draft_model(target))
    wide = with_room(engine)
    kept = [wide.add(prompt, SamplingParams(max_tokens=40)) for prompt in PROMPTS]
    with pytest.raises(ConfigError):
        wide.add([VOCAB], SamplingParams())
    dropped = wide.add(list(range(120)), SamplingParams(max_tokens=40))
    wide.step()
    wide.abort(dropped)
    finish(wide)
    engine.close()
    assert outputs(kept) == said
    assert share(kept) == 1
