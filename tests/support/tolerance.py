"""How far each kernel may be from its float64 reference, and why. The only place where tests keep tolerances."""

from dataclasses import dataclass

from tspec.core.dtypes import DType

F32, BF16, F16 = DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A found value may differ by `absolute + relative * |expected|`."""

    relative: float
    absolute: float
    reason: str


_EXACT = Tolerance(0, 0, "moves or compares numbers, rounds nothing")
_SUM = Tolerance(
    1e-6, 4e-6, "float32 fused multiply-adds over K <= 200 terms, one after the other; sums of size 1"
)
_NORM = Tolerance(
    2e-6, 8e-6, "as a sum, over numbers of which each was rounded three times; norms of size 1 double it"
)

TOLERANCES: dict[tuple[str, DType], Tolerance] = {
    **{("embed", dtype): _EXACT for dtype in (F32, BF16, F16)},
    **{
        (kind, dtype): _SUM
        for kind in ("linear", "linear_add", "linear_silu_mul", "head_logits")
        for dtype in (F32, BF16, F16)
    },
    **{
        (kind, dtype): _NORM
        for kind in ("norm_linear", "norm_linear_silu_mul", "norm_head_logits")
        for dtype in (F32, BF16, F16)
    },
    **{(kind, dtype): _EXACT for kind in ("head_sample", "norm_head_sample") for dtype in (F32, BF16, F16)},
    ("last_row", F32): _EXACT,
    ("sample", F32): _EXACT,
    ("edit_logits", F32): _EXACT,
    ("find_kept", F32): Tolerance(2e-7, 1e-6, "masses in float32, to 2 ulp each; the set itself is exact"),
    ("token_logprobs", F32): Tolerance(2e-7, 1e-6, "masses in float32, to 2 ulp each; tokens are exact"),
    ("accept_match", F32): _EXACT,
    **{
        (kind, F32): _EXACT
        for kind in ("parent_rows", "concat", "keep_features", "read_features", "expand_tree")
    },
    ("rms_norm", F32): Tolerance(
        1e-6, 1e-6, "a sum of at most 576 squares, a root and two products, each rounded to float32"
    ),
    ("silu_add", F32): Tolerance(1e-6, 1e-6, "exp to 2 ulp, then a quotient and a sum"),
    ("top_tokens", F32): Tolerance(2e-7, 1e-6, "masses in float32, to 2 ulp each; tokens are exact"),
    ("draw_draft", F32): Tolerance(2e-7, 1e-6, "masses in float32, to 2 ulp each; tokens are exact"),
    **{("kv_commit", dtype): _EXACT for dtype in (F32, BF16, F16)},
    ("rope_attention", F32): Tolerance(
        2e-6, 2e-6, "rotation, float32 sums over head and context; exp to 2 ulp"
    ),
    ("rope_attention", BF16): Tolerance(
        2**-7, 2**-8, "keys and values are rounded: to the other neighbour where close"
    ),
    ("rope_attention", F16): Tolerance(
        2**-10, 2**-11, "keys and values are rounded: to the other neighbour where close"
    ),
    ("logits", F32): Tolerance(
        0, 2e-5, "logits of size 10 through two layers; transformers itself is 1e-5 from its own float64"
    ),
    ("round", F32): Tolerance(
        5e-6, 5e-5, "log-probabilities of several passes of two layers, added up; each as far off as logits"
    ),
}
"""By kernel and the dtype of its weights or KV (float32 where it has neither).

`logits` are a whole model's, `round` is all that a proposer's model puts out in a round.
"""
