"""A hash of all that is done to logits, to compare processes that compile for other CPUs.

Run: python -m support.sampling_hash  (prints the CPU it compiled for, lanes of a register, the hash)
"""

import hashlib
from functools import partial

from support.cpu_pass import run_on_cpu
from support.draft_cases import draw_draft, top_tokens
from support.kernel_case import Maker
from support.kernel_cases import live_part
from support.product_cases import head_sample
from support.sampling_cases import FILTERS, edit_logits, find_kept, sample, token_logprobs

from tspec.core.dtypes import DType
from tspec.kernels.cpu.host import read_host

CASES = (
    partial(sample, vocab=5000, counts=(9, 18), first=1),
    *(partial(find_kept, vocab=2000, counts=(9,), first=first) for first in range(len(FILTERS))),
    partial(find_kept, vocab=2000, counts=(9, 9), first=4, sampled=True),
    partial(edit_logits, vocab=331, counts=(9, 14, 3)),
    partial(token_logprobs, vocab=2000, counts=(9, 14, 3, 9)),
    partial(top_tokens, vocab=2000, counts=(9, 14, 3), most=10),
    partial(draw_draft, vocab=2000, counts=(3, 1, 2, 3), width=3),
    *(
        partial(head_sample, dtype=DType.BFLOAT16, vocab=700, k=40, counts=(9, 3), kind=kind)
        for kind in ("head_sample", "norm_head_sample")
    ),
)


def hash_of_sampling() -> str:
    digest = hashlib.sha256()
    for number, make in enumerate(CASES):
        case = make(Maker(f"a hash {number}"))
        for name, tensor in sorted(run_on_cpu(case).items()):
            digest.update(live_part(case, name, tensor).contiguous().numpy())
    return digest.hexdigest()


if __name__ == "__main__":
    host = read_host()
    print(host.name, host.lanes, hash_of_sampling())
