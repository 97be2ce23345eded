"""What the cuda kernels may need of a part: the one table that the compile gate holds every variant to.

Spilled bytes may never be more than 0, shared memory never more than the part has. Registers have a budget a kernel,
with room for another version of the compiler: 255 are all that a thread can have, 128 let two programs of 8 warps or
four of 4 share a multiprocessor.
"""

from tspec.kernels.cuda.resources import ALIGNMENT, AotCase

MAX_REGISTERS = {
    "linear": 144,
    "linear_add": 144,
    "linear_silu_mul": 208,
    "norm_linear": 160,
    "norm_linear_silu_mul": 232,
    "norm_head_sample": 208,
    "norm_head_logits": 160,
    "head_sample": 208,
    "head_logits": 144,
    "choose": 80,
    "sample": 96,
    "edit_logits": 96,
    "find_kept": 128,  # as many as a thread of 16 warps can have
    "token_logprobs": 80,
    "top_tokens": 80,
    "draw_blocks": 96,
    "write_law": 96,
    "accept_match": 64,
    "accept_ratio": 144,
    "rope_attention": 512,  # gfx942 has as many a thread with two waves a SIMD; elsewhere spills are the limit
    "kv_commit": 208,
    "embed": 48,
    "last_row": 48,
    "parent_rows": 48,
    "concat": 48,
    "silu_add": 48,
    "rms_norm": 128,  # as many as a thread of 16 warps can have: the widest row is one tile
    "keep_features": 48,
    "read_features": 48,
    "expand_tree": 128,
}
"""By the first word of a case's name. A family without a line here fails."""

ALL_REGISTERS = 255


def max_registers(case: AotCase) -> int:
    """The budget of `case`; all where K is no multiple of 16, and weights are loaded one by one."""
    k = case.arguments.get("K")
    is_aligned = not isinstance(k, int) or k % ALIGNMENT == 0
    return MAX_REGISTERS[case.name.split("-")[0]] if is_aligned else ALL_REGISTERS


TENSOR_CORE = {"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA", "gfx942": "v_mfma"}
"""How the instruction begins that products of 16-bit dtypes have to run on."""
