"""What the Triton interpreter cannot do, and what kernels do there instead.

Three things differ under `TRITON_INTERPRET=1`. `tl.dot` of bfloat16 is silently wrong (it multiplies the raw 16
bits); `tl.dot` of any dtype sums in an order that depends on the tile's shape; inline assembly, programmatic launch
and libdevice do not exist. So `dot` below is the only product that kernels use: on a device it is `tl.dot`, in the
interpreter a float32 sum in order of k. Holds no kernel.
"""

import triton
import triton.language as tl

IS_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether kernels of this process run in the interpreter: the very switch that `triton.jit` reads."""


@triton.jit
def dot(a, b, acc):
    """acc + a @ b in float32.

    Shapes   a: [M, K], b: [K, N], acc: [M, N] float32
    Dtypes   a and b share float32, float16 or bfloat16; float32 is never rounded to tf32
    Rows     independent: each output is summed over k in an order that its own column does not depend on
    """
    if IS_INTERPRETED:
        terms = a.to(tl.float32)[:, :, None] * b.to(tl.float32)[None, :, :]
        return acc + tl.sum(terms, axis=1)
    return tl.dot(a, b, acc, input_precision="ieee")
