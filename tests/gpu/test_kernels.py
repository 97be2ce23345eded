"""Each kernel on the device against its float64 reference, in bf16 and fp16, in the configurations that are shipped.

Tolerances are those of the interpreter tests: support/cuda_rows.py and support/layer_attention.py give the reasons.

Run: pytest tests/gpu/test_kernels.py -m gpu
"""

import numpy as np
import pytest
import torch
from support.cuda_rows import expected, make_operands, make_scratch, run_kernel, tolerance
from support.kernel_case import chains, random_trees
from support.layer_attention import hold, make_layer
from support.on_device import moved

from tspec.core.dtypes import DType
from tspec.core.tree import fill_ancestors
from tspec.kernels.cuda.accept import accept_match
from tspec.kernels.cuda.kv_commit import kv_commit
from tspec.kernels.cuda.rows import embed, last_row
from tspec.kernels.cuda.tuned import default_attention_tuned, default_tuned
from tspec.kernels.reference import REFERENCES

pytestmark = pytest.mark.gpu

DTYPES = {torch.bfloat16: DType.BFLOAT16, torch.float16: DType.FLOAT16}
LINEARS = ("linear", "linear_add", "norm_linear", "norm_linear_silu_mul")


@pytest.fixture(autouse=True)
def made_on_device(device):
    """Tensors that helpers make without naming a device lie on it."""
    with device:
        yield


def on_device(device, make, *args, **settings):
    """What `make` returns, made on the CPU from its own random numbers, on `device`."""
    with torch.device("cpu"):
        value = make(*args, **settings)
    return moved(value, device)


def sized(is_small, *full):
    return tuple(min(each, 70) for each in full) if is_small else full


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 17, 65])
@pytest.mark.parametrize("kind", LINEARS)
def test_a_linear_equals_its_reference(device, arch, is_small, kind, rows, dtype):
    for n, k in [(2048, 4096), (1000, 576)][: 2 if rows == 1 else 1]:
        n, k = sized(is_small, n, k)
        tuned = default_tuned(kind, n, k, DTYPES[dtype], arch)
        operands = on_device(device, make_operands, kind, rows, n, k, dtype, has_bias=True)
        want = expected(operands)
        error = (run_kernel(operands, tuned).double() - want).abs() / want.abs().clamp(min=1)
        assert error.max() <= tolerance(operands)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("kind", LINEARS)
def test_a_linear_launched_again_has_the_same_bits_and_its_counters_at_zero(
    device, arch, is_small, kind, rows, dtype
):
    n, k = sized(is_small, 1024, 4096)
    tuned = default_tuned(kind, n, k, DTYPES[dtype], arch)
    operands = on_device(device, make_operands, kind, rows, n, k, dtype)
    scratch = make_scratch(operands, tuned)
    first = run_kernel(operands, tuned, scratch)
    for _ in range(1 if is_small else 20):
        assert torch.equal(run_kernel(operands, tuned, scratch), first)
    assert not scratch.counters.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 64])
def test_the_head_chooses_a_token_whose_logit_is_the_best(device, arch, is_small, rows, dtype):
    """Two logits nearer to one another than rounding may change places; no worse token is chosen."""
    vocab, k = sized(is_small, 32003, 2048)
    operands = on_device(device, make_operands, "norm_head_sample", rows, vocab, k, dtype)
    token = run_kernel(operands, default_tuned("norm_head_sample", vocab, k, DTYPES[dtype], arch))
    (normed,) = REFERENCES["rms_norm"]({"eps": 1e-5}, operands.x.double(), operands.norm)
    logits = normed @ operands.weight.double().T
    chosen = logits.gather(-1, token.long()[..., None])[..., 0]
    assert (logits.amax(dim=-1) - chosen).max() <= 2 * tolerance(operands)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("prefix", [63, 760])
@pytest.mark.parametrize(
    ("head_dim", "group", "norms", "window"),
    [
        (64, 4, False, None),
        (128, 2, True, None),
        (128, 4, False, 100),
        (80, 1, False, None),
        (256, 8, True, 9),
    ],
)
def test_attention_equals_its_reference(
    device, arch, is_small, head_dim, group, norms, window, prefix, dtype
):
    if is_small and (prefix, head_dim) != (63, 64):
        pytest.skip("more than the interpreter runs in a blink")
    for counts in ((5, 1, 3),) if is_small else ((1,), (5, 1, 3), (64, 17, 0)):
        layer = on_device(
            device, make_layer, random_trees(counts, prefix), (prefix, 20, 129)[: len(counts)],
            head_dim=head_dim, group=group, norms=norms, window=window, dtype=dtype,
        )  # fmt: skip
        tuned = default_attention_tuned(head_dim, max(counts) * group, DTYPES[dtype], arch)
        hold(layer, tuned)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_moved_exactly(device, dtype):
    nodes = torch.tensor([3, 1, 0, 5], dtype=torch.int32)
    weight = torch.randn(500, 1024).to(dtype)
    tokens = torch.randint(0, 500, (4, 5)).int()
    out = torch.full((4, 5, 1024), torch.nan, dtype=dtype)
    embed(out, tokens, weight, nodes)
    live = (torch.arange(5) < nodes[:, None])[:, :, None]
    assert torch.equal(out.float(), torch.where(live, REFERENCES["embed"]({}, tokens, weight)[0], 0).float())
    last = torch.full((4, 1, 1024), torch.nan, dtype=dtype)
    last_row(last, out, nodes)
    (want,) = REFERENCES["last_row"]({}, out, nodes)
    assert torch.equal(last, torch.where(nodes[:, None, None] > 0, want, 0))


@pytest.mark.parametrize("seed", range(8))
def test_trees_are_accepted_as_the_reference_accepts_them(device, seed):
    generator = np.random.default_rng(seed)
    trees = random_trees((64, 17, 1, 5), seed)
    shape = trees.tokens.shape
    ancestors, depth = np.zeros(shape, np.int64), np.zeros(shape, np.int32)
    fill_ancestors(trees.parents, trees.num_nodes, ancestors, depth)
    tokens, node_tokens = (generator.integers(0, 3, shape).astype(np.int32) for _ in "ab")
    arrays = node_tokens, tokens, ancestors, depth, trees.num_nodes
    inputs = [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays]
    outs = [torch.full_like(each, 77) for each in (inputs[1], inputs[4], inputs[1])]
    accept_match(*outs, *inputs)
    for found, want in zip(outs, REFERENCES["accept_match"]({}, *inputs), strict=True):
        assert torch.equal(found, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_commit_moves_the_path_of_every_layer_exactly(device, dtype):
    """The path of row 0 skips a node each time, that of row 1 moves nothing; row 2 accepts none."""
    path = torch.full((3, 64), -1, dtype=torch.int32)
    path[0, :31] = torch.arange(2, 64, 2)
    path[1, :7] = torch.arange(1, 8)
    num_out = torch.tensor([32, 8, 1], dtype=torch.int32)
    prefix = torch.tensor([50, 64, 0], dtype=torch.int32)
    table = torch.randperm(9).view(3, 3).int()
    before = [torch.randn(2, 9, 2, 64, 64).to(dtype) for _ in "kv"]
    after = [cache.clone() for cache in before]
    kv_commit(*after, path, num_out, prefix, table)
    layers = [layer for cache in before for layer in cache]
    want = REFERENCES["kv_commit"]({}, path, num_out, prefix, table, *layers)
    for found, expected_cache in zip((*after[0], *after[1]), want, strict=True):
        assert torch.equal(found, expected_cache)


def test_a_chain_of_64_nodes_is_accepted_whole(device):
    trees = chains((64,))
    ancestors, depth = np.zeros((1, 64), np.int64), np.zeros((1, 64), np.int32)
    fill_ancestors(trees.parents, trees.num_nodes, ancestors, depth)
    arrays = trees.tokens + 1, trees.tokens, ancestors, depth, trees.num_nodes
    inputs = [torch.from_numpy(array).to(device) for array in arrays]
    outs = [torch.full_like(each, 77) for each in (inputs[1], inputs[4], inputs[1])]
    accept_match(*outs, *inputs)
    assert outs[1].item() == 64
