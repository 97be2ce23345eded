"""The kernels between logits and tokens on the device against their references, at the vocabulary of a real model.

Exact but for tokens nearer to one another than rounding: what is kept and what is likeliest are sets of tokens.

Run: pytest tests/gpu/test_sampling.py -m gpu
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cuda_rows import make_operands, make_request, run_kernel
from support.cuda_sampling import (
    ALL_EDITS,
    assert_edited,
    assert_sampled,
    edit_operands,
    hard_logits,
    numbers,
    run_edits,
    run_kept,
    run_logprobs,
    run_sample,
    whole,
)
from support.on_device import moved

from tspec.core.dtypes import DType
from tspec.core.noise import TARGET, gumbel
from tspec.kernels.cuda.tuned import default_tuned
from tspec.kernels.reference import REFERENCES
from tspec.kernels.reference.sampling import is_kept

pytestmark = pytest.mark.gpu

FILTERS = (
    (0.7, 50, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (3.0, 0, 0.97, 0.0),
    (1.0, 3000, 0.8, 0.01),
    (1.0, 0, 1.0, 0.1),
)
"""Temperature, top_k, top_p, min_p; the third and the fourth sweep whole rows."""


def on(device, *tensors):
    return [each.to(device) for each in tensors]


def vocab_of(is_small):
    return 70 if is_small else 128256


@pytest.mark.parametrize("vocab", [70, 32003, 128256])
def test_tokens_are_sampled_from_logits_as_the_reference_samples_them(device, is_small, vocab):
    if is_small and vocab > 70:
        pytest.skip("more than the interpreter runs in a blink")
    logits, request = hard_logits(4, 5, vocab), make_request([5, 2, 4, 0], 5, (0.0, 1.0, 0.4))
    with device:
        found = run_sample(*on(device, logits, *request), None, None).cpu()
    assert_sampled(found, logits, *request, None, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 20, 64])
def test_a_token_sampled_in_the_head_is_the_one_sampled_from_its_logits(device, arch, is_small, rows, dtype):
    vocab, k, rows = (70, 24, min(rows, 3)) if is_small else (32003, 1024, rows)
    tuned = default_tuned("norm_head_sample", vocab, k, DType(str(dtype).removeprefix("torch.")), arch)
    head = make_operands("norm_head_sample", 4 * rows, vocab, k, dtype)
    request = make_request([rows, rows, max(1, rows - 1), 0], rows, (0.0, 1.0, 0.5))
    head = moved(replace(head, x=2 * head.x.view(4, rows, k), request=request), device)
    with device:
        found = run_kernel(head, tuned)
        logits = run_kernel(replace(head, kind="norm_head_logits"), tuned)
        assert torch.equal(found, run_sample(logits, *head.request, None, None))
    assert_sampled(found.cpu(), logits.cpu(), *request, None, None)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_what_is_kept_is_what_the_reference_keeps(device, is_small, filters):
    """Where a token more or less is kept, the mass before it is within rounding of top_p."""
    logits = torch.randn(2, 2, vocab_of(is_small), generator=torch.Generator().manual_seed(1)) * 2
    logits[0, 1] = logits[0, 1].round()
    temperature, top_k, top_p, min_p = filters
    request = (
        numbers(*[temperature] * 2),
        whole(*[top_k] * 2),
        numbers(*[top_p] * 2),
        numbers(*[min_p] * 2),
        whole(2, 2),
    )
    with device:
        found = [each.cpu() for each in run_kept(*on(device, logits, *request))]
    want = REFERENCES["find_kept"]({}, logits, *request)
    assert (found[2] - want[2]).abs().max() < 1e-5
    for batch, row in np.ndindex(2, 2):
        scores = logits[batch, row] / temperature
        kept, wanted = (
            is_kept(scores, float(each[0][batch, row]), int(each[1][batch, row])) for each in (found, want)
        )
        assert torch.softmax(scores.double(), 0)[kept != wanted].sum() < 1e-5
        assert top_p < 1 or min_p > 0 or torch.equal(kept, wanted)


def test_log_probabilities_are_those_of_the_reference_likeliest_tokens_and_all(device, is_small):
    logits = hard_logits(3, 3, vocab_of(is_small))
    logits[~(logits > -torch.inf).any(-1)] = 1.0
    operands = whole(*range(9)).view(3, 3), whole(20, 0, 7), whole(3, 2, 3), None, None
    with device:
        found = [
            each.cpu()
            for each in run_logprobs(
                *[None if each is None else each.to(device) for each in (logits, *operands)], most=20
            )
        ]
    want = REFERENCES["token_logprobs"]({"most": 20}, logits, *operands)
    assert torch.equal(found[1], want[1])
    for out, wanted in ((found[0], want[0]), (found[2], want[2])):
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)


def test_noise_of_the_device_is_within_rounding_of_the_definition(device, is_small):
    """Of logits that are all 0, at temperature 1, the sampled token is the one with the most noise."""
    vocab, batch = vocab_of(is_small), 2 if is_small else 64
    request = make_request([1] * batch, 1, (1.0,))
    with device:
        found = run_sample(*on(device, torch.zeros(batch, 1, vocab), *request), None, None).flatten().tolist()
    for row, token in enumerate(found):
        position = int(request[2][row] + request[3][row, 0]) + 1
        noise = gumbel(int(request[1][row]), position, TARGET, np.arange(vocab))
        assert noise.max() - noise[token] <= 1e-5


@pytest.mark.parametrize("is_last", [False, True], ids=["nodes", "last"])
def test_logits_are_edited_as_the_reference_edits_them_bit_for_bit(device, is_small, is_last):
    """A row for each set of edits: bias, penalties down each path, masks."""
    counts = tuple(1 + edits % 3 if is_small else 1 + 9 * edits for edits in range(ALL_EDITS + 1))
    rows, vocab = 1 if is_last else max(counts), vocab_of(is_small)
    operands = edit_operands(counts, vocab, rows, seed=3)
    operands[0].copy_(torch.arange(ALL_EDITS + 1))
    logits = hard_logits(len(counts), rows, vocab)
    assert_edited(run_edits(logits.to(device), on(device, *operands)).cpu(), logits, operands)
