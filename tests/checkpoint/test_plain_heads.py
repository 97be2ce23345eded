"""The plain heads and trees that other tests are measured by: against transformers, and against brute force.

Run: pytest tests/checkpoint/test_plain_heads.py
"""

import itertools
import random
from dataclasses import replace

import pytest
import torch
import transformers
from support.exact_heads import exact_eagle1, exact_eagle3, exact_medusa, full_table
from support.plain_heads import TargetStates, eagle_logits, medusa_logits, observe_target
from support.plain_trees import confidence_tree, eagle_tree, medusa_tree
from support.table_model import table_checkpoint
from support.tiny_heads import TinyEagle, frequent_ids, random_tensor, tiny_eagle, tiny_medusa
from support.tiny_models import tiny_checkpoint

from tspec.checkpoint.hf_config import read_config

F64 = torch.float64


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A tiny llama of six layers: the model, its configuration, a text and what heads read of it."""
    folder = tmp_path_factory.mktemp("target")
    model = tiny_checkpoint(folder, "llama", hidden=32, layers=6, vocab=50)
    tokens = torch.randint(50, (12,), generator=torch.Generator().manual_seed(3)).tolist()
    return model, read_config(folder), tokens, observe_target(model, tokens)


def llama_of(head: TinyEagle) -> transformers.LlamaForCausalLM:
    """A transformers model of the head's sizes, every weight 0."""
    config = transformers.LlamaConfig(
        vocab_size=head.rows,
        hidden_size=head.hidden,
        intermediate_size=head.intermediate,
        num_hidden_layers=head.layers,
        num_attention_heads=head.heads,
        num_key_value_heads=head.kv_heads,
        head_dim=head.head_dim,
        rms_norm_eps=head.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": head.rope_base},
        attention_bias=head.qkv_bias,
        mlp_bias=head.mlp_bias,
    )
    model = transformers.LlamaForCausalLM(config).to(F64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


@torch.no_grad()
def load(model, head: TinyEagle, renamed=lambda name: name) -> None:
    """Fill the parameters that have one of the head's names, once each is renamed."""
    for name, parameter in model.named_parameters():
        source = renamed(name.removeprefix("model."))
        if source in head.tensors:
            value = head.tensors[source]
            parameter.copy_(value[:, -parameter.shape[1] :] if value.dim() == 2 else value)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("extra_norms", [False, True])
def test_eagle1_is_a_llama_on_the_joined_rows(target, layers, extra_norms):
    _, config, tokens, states = target
    head = tiny_eagle(
        config, 1, layers=layers, rope_base=500.0, fc_bias=True, extra_norms=extra_norms, mlp_bias=True,
        qkv_bias=True, o_bias=True,
    )  # fmt: skip
    model = llama_of(head)
    load(model, head)
    embedded, hidden = states.embedding[tokens[1:]].to(F64), states.normed[:-1].to(F64)
    if extra_norms:
        eps, scale = head.rms_eps, head.tensors["embedding_layernorm.weight"].to(F64)
        embedded = torch.nn.functional.rms_norm(embedded, [32], scale, eps)
    weight, bias = head.tensors["fc.weight"].to(F64), head.tensors["fc.bias"].to(F64)
    joined = torch.nn.functional.linear(torch.cat([embedded, hidden], dim=1), weight, bias)
    with torch.no_grad():
        if not extra_norms:
            model.model.layers[0].input_layernorm = torch.nn.Identity()
            model.model.norm = torch.nn.Identity()
        model.lm_head.weight.copy_(states.lm_head)
        theirs = model(inputs_embeds=joined[None]).logits[0, -1]
    torch.testing.assert_close(eagle_logits(head, states, tokens), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("before_residual", [False, True])
def test_eagle3_without_its_embedding_half_is_a_llama_on_the_fc_rows(target, layers, before_residual):
    _, config, tokens, states = target
    head = tiny_eagle(
        config, 3, layers=layers, norm_before_residual=before_residual, draft_ids=frequent_ids(50, 20)
    )
    for name in "qkv":
        head.tensors[f"layers.0.self_attn.{name}_proj.weight"][:, : head.hidden] = 0
    model = llama_of(head)
    load(model, head, lambda name: name.replace("layers.0.input_layernorm", "layers.0.hidden_norm"))
    aux = torch.cat([states.by_layer[layer][:-1] for layer in head.aux], dim=1).to(F64)
    rows = aux @ head.tensors["fc.weight"].to(F64).T
    if before_residual:
        scale = head.tensors["layers.0.hidden_norm.weight"].to(F64)
        rows = torch.nn.functional.rms_norm(rows, [32], scale, head.rms_eps)
        with torch.no_grad():
            model.model.layers[0].input_layernorm = torch.nn.Identity()
    with torch.no_grad():
        theirs = model(inputs_embeds=rows[None]).logits[0, -1]
    torch.testing.assert_close(eagle_logits(head, states, tokens), theirs, rtol=1e-5, atol=1e-5)


def test_eagle3_joins_the_embedding_first(target):
    """With the hidden half at 0 and the other hidden states gone, the logits are those of the embeddings alone."""
    _, config, tokens, states = target
    head = tiny_eagle(config, 3, norm_before_residual=True)
    head.tensors["layers.0.hidden_norm.weight"].zero_()
    model = llama_of(head)
    load(model, head)
    with torch.no_grad():
        for name in "qkv":
            projection = getattr(model.model.layers[0].self_attn, f"{name}_proj")
            projection.weight.copy_(head.tensors[f"layers.0.self_attn.{name}_proj.weight"][:, :32])
        embedded = states.embedding[tokens[1:]].to(F64)[None]
        layer, kept = model.model.layers[0], []
        layer.self_attn.register_forward_hook(lambda module, args, out: kept.append(out[0]))
        model(inputs_embeds=embedded)
        x = kept[0]
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        theirs = model.lm_head(model.model.norm(x))[0, -1]
    torch.testing.assert_close(eagle_logits(head, states, tokens), theirs, rtol=1e-5, atol=1e-5)


def test_hidden_states_enter_the_layer_of_their_number(target):
    model, _, tokens, states = target
    theirs = model(torch.tensor([tokens]), output_hidden_states=True)
    assert len(states.by_layer) == 7
    for layer in range(6):
        assert torch.equal(states.by_layer[layer], theirs.hidden_states[layer][0])
    assert torch.equal(states.normed, theirs.hidden_states[6][0])
    assert torch.equal(states.normed, model.model.norm(states.by_layer[6]))


def changed(head: TinyEagle, **tensors: torch.Tensor) -> TinyEagle:
    """The head with other tensors; `__` stands for a dot."""
    return replace(
        head, tensors=head.tensors | {name.replace("__", "."): each for name, each in tensors.items()}
    )


def followed_by(states: TargetStates, row: torch.Tensor) -> TargetStates:
    """The states of a text one token longer, if `row` were each of the last known hidden states but one."""
    row = row[None].to(F64)
    by_layer = [torch.cat([rows[:-1].to(F64), row]) for rows in states.by_layer]
    return replace(states, by_layer=by_layer, normed=torch.cat([states.normed[:-1].to(F64), row]))


@pytest.mark.parametrize("version", [1, 3])
def test_a_candidate_reads_what_the_head_put_out_before_it(target, version):
    """The row that an output layer of the identity shows is the same as one more hidden state of the target."""
    _, config, tokens, states = target
    head, eye = tiny_eagle(config, version, norm_output=version == 3), torch.eye(32)
    if version == 3:
        head = changed(head, fc__weight=torch.cat([eye, torch.zeros(32, 64)], dim=1))
    put_out = eagle_logits(changed(head, lm_head__weight=eye), states, tokens)
    theirs = eagle_logits(head, followed_by(states, put_out), [*tokens, 7])
    torch.testing.assert_close(eagle_logits(head, states, tokens, [7]), theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm_output", [False, True])
def test_what_is_fed_back_comes_before_the_norm_or_after_it(target, norm_output):
    """With layers that add nothing, each step norms the row for its logits, and only then may feed it back."""
    _, config, tokens, states = target
    nothing = {
        f"layers__0__{name}__weight": torch.zeros(32, n)
        for name, n in (("self_attn__o_proj", 64), ("mlp__down_proj", 48))
    }
    head = changed(tiny_eagle(config, 3, norm_output=norm_output), **nothing)

    def norm(x):
        return torch.nn.functional.rms_norm(x, [32], head.tensors["norm.weight"].to(F64), head.rms_eps)

    x = (
        torch.cat([states.by_layer[layer][-2] for layer in head.aux]).to(F64)
        @ head.tensors["fc.weight"].to(F64).T
    )
    for path in ([], [7], [7, 3]):
        theirs = head.tensors["lm_head.weight"].to(F64) @ norm(x)
        torch.testing.assert_close(eagle_logits(head, states, tokens, path), theirs, rtol=1e-9, atol=1e-9)
        x = norm(x) if norm_output else x


@pytest.mark.parametrize("flags", [{"fc_norm": True}, {"norm_before_fc": True}], ids=str)
def test_hidden_states_are_normed_one_by_one_or_together(target, flags):
    _, config, tokens, states = target
    head = tiny_eagle(config, 3, aux=(1, 3, 6), **flags)
    rows = [states.by_layer[layer].to(F64) for layer in head.aux]
    if "fc_norm" in flags:
        scales = [head.tensors[f"fc_norm.{number}.weight"].to(F64) for number in range(3)]
    else:
        together = torch.cat(rows, dim=1).pow(2).mean(-1, keepdim=True).add(head.rms_eps).sqrt()
        rows, scales = [x / together for x in rows], head.tensors["input_norm.weight"].to(F64).split(32)
    if "fc_norm" in flags:
        rows = [x / x.pow(2).mean(-1, keepdim=True).add(head.rms_eps).sqrt() for x in rows]
    by_layer = list(states.by_layer)
    for layer, x, scale in zip(head.aux, rows, scales, strict=True):
        by_layer[layer] = x * scale
    plain = replace(head, fc_norm=False, norm_before_fc=False)
    theirs = eagle_logits(plain, replace(states, by_layer=by_layer), tokens)
    torch.testing.assert_close(eagle_logits(head, states, tokens), theirs, rtol=1e-9, atol=1e-9)


def test_a_window_hides_what_is_further_away(target):
    _, config, tokens, states = target
    head = tiny_eagle(config, 3, window=4)
    other = followed_by(states, states.normed[-1])
    by_layer = [torch.cat([torch.ones(7, 32), rows[7:]]) for rows in other.by_layer]
    last = [7, 8, 9, 10]  # positions that the last pair sees
    seen = eagle_logits(head, states, tokens)
    torch.testing.assert_close(
        seen, eagle_logits(head, replace(states, by_layer=[r.clone() for r in by_layer]), [0, *tokens[1:]])
    )
    by_layer[head.aux[0]][last[0]] += 1
    assert not torch.allclose(seen, eagle_logits(head, replace(states, by_layer=by_layer), tokens))


def test_medusa_heads_are_blocks_and_an_output_layer(target):
    _, config, _, states = target
    heads = tiny_medusa(config, blocks=2)
    ours = medusa_logits(heads, states.normed[-1])
    for number in range(heads.num_heads):
        x = states.normed[-1].to(F64)
        for block in range(2):
            linear = torch.nn.Linear(32, 32).to(F64)
            with torch.no_grad():
                linear.weight.copy_(heads.tensors[f"blocks.{number}.{block}.weight"])
                linear.bias.copy_(heads.tensors[f"blocks.{number}.{block}.bias"])
                y = linear(x)
                x = x + y * torch.sigmoid(y)
        torch.testing.assert_close(ours[number], heads.tensors[f"lm_heads.{number}.weight"].to(F64) @ x)


# Heads that are exact by construction: a chain of the likeliest is the table's own text.

TABLE = full_table({3: 11, 11: 3, 5: 40, 46: 9, 20: 20}, 47)


@pytest.fixture(scope="module")
def table_states(tmp_path_factory):
    """A text that the table model says, and what heads read of it."""
    folder = tmp_path_factory.mktemp("table")
    table_checkpoint(folder, dict(enumerate(TABLE)), vocab=47)
    tokens = [31]
    for _ in range(200):
        tokens.append(TABLE[tokens[-1]])
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    return tokens, observe_target(model, tokens)


@pytest.mark.parametrize("length", [2, 9, 200])
@pytest.mark.parametrize("reads", ["token", "hidden"])
@pytest.mark.parametrize("version", [1, 3])
def test_exact_heads_are_exact(table_states, version, reads, length):
    tokens, states = table_states
    head = exact_eagle1(TABLE, reads=reads) if version == 1 else exact_eagle3(TABLE, (0, 0, 1), reads=reads)
    tree = eagle_tree(head, states, tokens[:length], top_k=1, levels=8, num_candidates=8, dtype=torch.float32)
    expected = [tokens[length - 1]]
    for _ in range(8):
        expected.append(TABLE[expected[-1]])
    assert tree.tokens == expected and tree.parents == list(range(-1, 8))


def test_an_exact_head_with_a_reduced_vocabulary_knows_its_own_tokens(table_states):
    tokens, states = table_states
    known = sorted(set(TABLE) - {33})
    head = exact_eagle3(TABLE, (0, 1, 1), draft_ids=known)
    tree = eagle_tree(head, states, tokens[:4], top_k=1, levels=3, num_candidates=3)
    assert tree.tokens == [34, 35, 36, 37]


def test_exact_medusa_heads_are_exact(table_states):
    tokens, states = table_states
    heads = exact_medusa(TABLE, num_heads=4)
    tree = medusa_tree(heads, tokens[10], states.normed[9], top_k=1, levels=4, num_candidates=4)
    assert tree.tokens == tokens[10:15]


# The tree, against every path there is.


def random_table(vocab: int, seed: int):
    """Logits after every path, each path's its own."""
    return lambda path: random_tensor(f"{seed} {path}", (vocab, 1), seed, F64)[:, 0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_candidates", [1, 7, 20, 39])
def test_a_wide_tree_is_the_best_of_all_paths(seed, num_candidates):
    vocab, levels, logits_after = 3, 3, random_table(3, seed)
    tree = confidence_tree(99, logits_after, top_k=9, levels=levels, num_candidates=num_candidates)
    scores = {}
    for length in range(1, levels + 1):
        for path in itertools.product(range(vocab), repeat=length):
            steps = [logits_after(path[:end]).log_softmax(0)[path[end]].item() for end in range(length)]
            scores[path] = sum(steps)
    best = sorted(scores.values(), reverse=True)[:num_candidates]
    assert (tree.tokens[0], tree.parents[0], tree.scores[0]) == (99, -1, 0.0)
    assert sorted(tree.scores[1:], reverse=True) == pytest.approx(best)
    for node in range(1, num_candidates + 1):
        assert tree.parents[node] < node and tree.scores[node] == pytest.approx(scores[tree.path(node)])
    assert len({tree.path(node) for node in range(num_candidates + 1)}) == num_candidates + 1


@pytest.mark.parametrize("seed", range(5))
def test_a_narrow_tree_goes_on_below_the_best_of_each_level_alone(seed):
    """As the authors' code does, by flat numbers: level n > 0 begins at top_k + (n - 1) * top_k ** 2."""
    top_k, levels, count, logits_after = 3, 4, 12, random_table(8, seed)
    paths, scores = [], []
    going_on = [((), 0.0)]
    for level in range(levels):
        begin = len(paths)
        assert begin == (0 if level == 0 else top_k + (level - 1) * top_k**2)
        for path, score in going_on:
            values, tokens = logits_after(path).log_softmax(0).topk(top_k)
            paths += [(*path, token) for token in tokens.tolist()]
            scores += [score + value for value in values.tolist()]
        order = torch.tensor(scores[begin:]).topk(top_k).indices + begin
        going_on = [(paths[place], scores[place]) for place in order.tolist()]
    kept = torch.tensor(scores).topk(count).indices.sort().values.tolist()
    tree = confidence_tree(0, logits_after, top_k=top_k, levels=levels, num_candidates=count)
    assert [tree.path(node) for node in range(1, count + 1)] == [paths[place] for place in kept]
    assert tree.scores[1:] == pytest.approx([scores[place] for place in kept])


def test_of_equal_scores_the_earlier_wins():
    tree = confidence_tree(9, lambda path: torch.zeros(4), top_k=2, levels=2, num_candidates=4)
    assert tree.tokens == [9, 0, 1, 0, 1] and tree.parents == [-1, 0, 0, 1, 1]


def test_certain_steps_keep_parents_before_children():
    sure = torch.full((5,), -torch.inf)
    sure[2] = 0
    tree = confidence_tree(1, lambda path: sure, top_k=1, levels=6, num_candidates=4)
    assert tree.tokens == [1, 2, 2, 2, 2] and tree.parents == [-1, 0, 1, 2, 3]


def test_a_tree_has_fewer_candidates_where_there_are_no_more():
    tree = confidence_tree(1, lambda path: torch.zeros(2), top_k=4, levels=2, num_candidates=60)
    assert len(tree.tokens) == 1 + 2 + 4


def test_candidates_are_the_targets_ids(target):
    _, config, tokens, states = target
    ids = list(frequent_ids(50, 20))
    random.Random(0).shuffle(ids)  # a map need not ascend
    head = tiny_eagle(config, 3, draft_ids=tuple(ids))
    tree = eagle_tree(head, states, tokens, top_k=4, levels=2, num_candidates=10)
    assert set(tree.tokens[1:]) <= set(ids)
    best = eagle_logits(head, states, tokens).topk(4).indices.tolist()
    level = [token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == 0]
    assert level == [ids[row] for row in best][: len(level)]
