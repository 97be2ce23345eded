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
_NORM = Tolerance(5e-7, 1e-7, "float32 sum of squares, one rounded scale a row")

TOLERANCES: dict[tuple[str, DType], Tolerance] = {
    **{("embed", dtype): _EXACT for dtype in (F32, BF16, F16)},
    **{("linear", dtype): _SUM for dtype in (F32, BF16, F16)},
    **{("linear_silu_mul", dtype): _SUM for dtype in (F32, BF16, F16)},
    **{("head_argmax", dtype): _EXACT for dtype in (F32, BF16, F16)},
    ("rms_norm", F32): _NORM,
    ("add_rms_norm", F32): _NORM,
    ("add", F32): Tolerance(6e-8, 0, "one rounded sum: half an ulp"),
    ("last_row", F32): _EXACT,
    ("argmax", F32): _EXACT,
    ("accept_match", F32): _EXACT,
    **{("kv_commit", dtype): _EXACT for dtype in (F32, BF16, F16)},
    ("rope_kv_write", F32): Tolerance(1e-6, 1e-6, "two products and a sum a number, a norm before"),
    ("rope_kv_write", BF16): Tolerance(
        2**-7, 1e-6, "as float32, then rounded: to the other neighbour where close"
    ),
    ("rope_kv_write", F16): Tolerance(
        2**-10, 1e-6, "as float32, then rounded: to the other neighbour where close"
    ),
    **{
        ("attention", dtype): Tolerance(
            1e-6, 1e-6, "float32 sums over the head and over the context; exp to 2 ulp"
        )
        for dtype in (F32, BF16, F16)
    },
    ("logits", F32): Tolerance(
        0, 2e-5, "logits of size 10 through two layers; transformers itself is 1e-5 from its own float64"
    ),
}
"""By kernel and the dtype of its weights or KV (float32 where it has neither); `logits` are a whole model's."""
