"""The trainable head computes what EAGLE-3 heads compute: each step against the plain form in support/plain_heads.py,
on hidden states that are the target's own.

Run: pytest tests/training/test_head.py
"""

import pytest
import torch
from support.plain_heads import eagle_logits, observe_target
from support.tiny_heads import TinyEagle, frequent_ids
from support.tiny_models import ARCHITECTURES, tiny_checkpoint
from support.tiny_training import tiny_settings

from tspec.checkpoint.hf_config import read_config
from tspec.training.head import SELF_SCORE, EagleHead, Span, start_from_target
from tspec.training.hidden import Teacher, load_target
from tspec.training.loss import judge
from tspec.training.settings import head_config
from tspec.training.texts import Text

STEPS = 3


@pytest.fixture(params=[("llama", 2), ("llama", 7), ("mistral", 6), ("qwen2", 6), ("qwen3", 6)], ids=str)
def parts(request, tmp_path):
    """A teacher and a head of random weights on a target of each family, and the same head in plain form."""
    architecture, depth = request.param
    assert architecture in ARCHITECTURES
    tiny_checkpoint(tmp_path, architecture, layers=depth)
    config = head_config(read_config(tmp_path), tiny_settings(vocab_size=50, intermediate_size=40))
    kept = torch.tensor(frequent_ids(128, 50))
    model = load_target(tmp_path, torch.device("cpu"), torch.float32)
    head = EagleHead(config)
    start_from_target(head, model, kept)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in head.tensors().values():
            value += 0.1 * torch.randn(value.shape, generator=generator)
    layer = config.layer
    plain = TinyEagle(
        True, 64, 128, 64, head_dim=16, intermediate=40, rms_eps=layer.rms_eps, rope_base=layer.rope.base,
        aux=config.aux_layers, draft_ids=tuple(kept.tolist()), qk_norm=layer.has_qk_norm,
        tensors={name: value.detach() for name, value in head.tensors().items()},
    )  # fmt: skip
    return Teacher(model, config.aux_layers, kept, torch.device("cpu")), head, plain, model


def taught(teacher, texts):
    return teacher.batch(texts, teacher.observe(texts))


def test_hidden_states_are_what_enters_the_layers(parts):
    teacher, _, plain, model = parts
    tokens = list(range(3, 23))
    with torch.no_grad():
        hidden, last = teacher.hidden_states(torch.tensor([tokens]))
    states = observe_target(model, tokens)
    for layer, each in zip(plain.aux, hidden, strict=True):
        torch.testing.assert_close(each[0], states.by_layer[layer])
    torch.testing.assert_close(last[0], states.normed)


@pytest.mark.parametrize("prompt", [1, 4])
def test_each_step_is_that_of_a_head_that_proposes(parts, prompt):
    """A pair of step s says what the head says after s candidates of its own, which are the text's here."""
    teacher, head, plain, model = parts
    tokens = torch.randint(128, (17,), generator=torch.Generator().manual_seed(1)).tolist()
    longer = [*tokens, 1, 2, 3]
    texts = [Text(0, longer[:4], longer[4:]), Text(1, tokens[:prompt], tokens[prompt:])]
    batch = taught(teacher, [*texts, texts[0]])
    states = observe_target(model, tokens)
    with torch.no_grad():
        put_out = head(batch.aux, batch.embedded, batch.spans, STEPS)
        for step in range(STEPS):
            for pair in range(prompt - 1 + step, len(tokens) - 2):
                committed = pair + 2 - step
                expected = eagle_logits(plain, states, tokens[:committed], tokens[committed : pair + 2])
                got = head.logits(put_out[step][len(longer) - 5 + pair - (prompt - 1)])
                torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-3)


def test_the_first_kv_head_starts_by_looking_at_the_token(tmp_path):
    """A token matches itself better than others on average, whatever the hidden states are."""
    tiny_checkpoint(tmp_path, "llama", layers=6)
    config = head_config(read_config(tmp_path), tiny_settings(vocab_size=50, intermediate_size=40))
    assert config.layer.num_kv_heads > 1
    model, head = load_target(tmp_path, torch.device("cpu"), torch.float32), EagleHead(config)
    kept = torch.tensor(frequent_ids(128, 50))
    start_from_target(head, model, kept)
    layer, tensors = config.layer, head.tensors()
    normed = torch.nn.functional.rms_norm(model.model.embed_tokens.weight[kept].float(), (64,))
    both = torch.cat([normed, torch.randn(normed.shape, generator=torch.Generator().manual_seed(0))], dim=1)
    keys = both @ tensors["layers.0.self_attn.k_proj.weight"].detach()[: layer.head_dim].T
    for query_head in range(layer.group_size):
        rows = slice(query_head * layer.head_dim, (query_head + 1) * layer.head_dim)
        queries = both @ tensors["layers.0.self_attn.q_proj.weight"].detach()[rows].T
        scores = queries @ keys.T / layer.head_dim**0.5
        itself = scores.diagonal()
        assert abs(float(itself.mean()) - SELF_SCORE) < 0.25 * SELF_SCORE
        assert float((itself - scores.mean(dim=1)).min()) > 0
    assert not tensors["layers.0.self_attn.o_proj.weight"][:, : layer.group_size * layer.head_dim].any()


def test_pairs_are_taught_within_the_answer_alone(parts):
    teacher, _, plain, model = parts
    text, other = Text(0, [5, 6, 7], [8, 9, 10, 11]), Text(1, [1, 2], [3, 4, 5])
    batch = taught(teacher, [text, other])
    assert batch.spans == [Span(0, 2, 5), Span(5, 6, 8), Span(8, 256 - 123, 256)]
    assert batch.reach.tolist() == [0, 1, 2, 0, 1] + 123 * [-1]
    states = observe_target(model, text.prompt + text.answer)
    logits = (states.normed @ states.lm_head.T)[3:6]  # after 8, 9 and 10
    expected_scores = logits[:, torch.tensor(plain.draft_ids)]
    torch.testing.assert_close(batch.scores[:3], expected_scores, rtol=1e-4, atol=1e-4)
    likeliest = logits.argmax(-1).tolist()
    expected = [plain.draft_ids.index(token) if token in plain.draft_ids else -1 for token in likeliest]
    assert batch.says[:3].tolist() == expected


def test_acceptance_counts_chains(parts):
    """Against a count by hand: a candidate counts only where all those before it were right."""
    teacher, head, _, _ = parts
    texts = [Text(0, [1], list(range(20, 50))), Text(1, [2, 3], list(range(60, 80)))]
    batch = taught(teacher, texts)
    with torch.no_grad():
        batch.says[:] = 0
        head.tensors()["lm_head.weight"][1:] = 0  # so that the sign of one score decides
        _, outcome = judge(head, batch, STEPS)
        put_out = head(batch.aux, batch.embedded, batch.spans, STEPS)
        is_right = [head.logits(each).argmax(-1) == 0 for each in put_out]
    chains = pairs = [0] * STEPS
    accepted, pairs, chains = [0] * STEPS, [0] * STEPS, [0] * STEPS
    for rows in (range(29), range(29, 48)):
        for first in rows:
            was_right = True
            for step in range(STEPS):
                if first + step not in rows:
                    break
                pairs[step] += 1
                chains[step] += was_right
                was_right = was_right and bool(is_right[step][first + step])
                accepted[step] += was_right
    assert outcome.sums[:, 2].tolist() == pairs
    assert outcome.sums[:, 3].tolist() == chains
    assert outcome.sums[:, 4].tolist() == accepted
    assert 0 < accepted[0] < pairs[0]
