"""The random numbers of `tspec/core/noise.py` on the CPU: many counters at a time, the same bits, and no state.

    fill_bits     32 random bits of each of 64 tokens
    fill_gumbel   standard Gumbel noise of each of 64 tokens, float32
    fill_panel    the same of 4 * host lanes tokens: at least those of one panel of a product
    random_word   32 random bits of one token

Tokens start at a multiple of 4, since one counter gives the bits of four. Gumbel noise is elementwise arithmetic on
the bits, so that a token has the same noise whichever block it is drawn in and whatever the host's vectors are. Both
v and 1 - v come from the bits without a subtraction, so that E = -log(1 - v) is accurate everywhere, near 0 above all.

Oracle    tspec/core/noise.py
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tspec.core.noise import KEY_STEPS, MULTIPLIERS, ROUNDS
from tspec.kernels.cpu.host import read_host
from tspec.kernels.cpu.simd import (
    FLOAT,
    I32,
    I64,
    LANES,
    broadcast,
    log_of_parts,
    pointer,
    split_float,
    vector_of,
)

NOISE_TOKENS = 4 * LANES
"""Tokens of one call of `fill_bits` and `fill_gumbel`."""

LARGEST_GUMBEL = 22.9
"""More than any noise: that of v = 2**-33 is 22.874."""

_TINY_V = 0.25
"""Below it log(1 - v) is a series in v itself; 1 - v would have lost its last bits."""


def _multiply_wide(builder: Any, number: Any, factor: int) -> tuple[Any, Any]:
    """(high, low) 32 bits of each product: even and odd lanes are multiplied as the low halves of 64-bit lanes."""
    kind = ir.VectorType(I64, number.type.count // 2)
    half, low_half = vector_of(32, kind), vector_of(0xFFFFFFFF, kind)
    pairs = builder.bitcast(number, kind)
    times = vector_of(factor, kind)
    even = builder.mul(builder.and_(pairs, low_half), times)
    odd = builder.mul(builder.lshr(pairs, half), times)
    high = builder.or_(builder.lshr(even, half), builder.and_(odd, builder.not_(low_half)))
    low = builder.or_(builder.and_(even, low_half), builder.shl(odd, half))
    return builder.bitcast(high, number.type), builder.bitcast(low, number.type)


def _philox(builder: Any, counters: Any, position: Any, stream: Any, seed: Any) -> list[Any]:
    """The four words of each counter (counter, position, stream, 0), under the key `seed`; one lane a counter."""
    kind = counters.type
    word = lambda number: builder.trunc(number, I32)  # noqa: E731
    spread = lambda number: broadcast(builder, number, kind)  # noqa: E731
    counter = [counters, spread(word(position)), spread(word(stream)), vector_of(0, kind)]
    key = [word(seed), word(builder.lshr(seed, I64(32)))]
    for _ in range(ROUNDS):
        (high_0, low_0), (high_1, low_1) = (
            _multiply_wide(builder, counter[2 * side], MULTIPLIERS[side]) for side in (0, 1)
        )
        counter = [
            builder.xor(builder.xor(high_1, counter[1]), spread(key[0])),
            low_1,
            builder.xor(builder.xor(high_0, counter[3]), spread(key[1])),
            low_0,
        ]
        key = [builder.add(key[side], I32(KEY_STEPS[side])) for side in (0, 1)]
    return counter


def _interleave(builder: Any, words: list[Any]) -> list[Any]:
    """Four vectors in order of tokens: word 0, 1, 2, 3 of counter 0, then those of counter 1, …"""
    count = words[0].type.count
    zip_pair = ir.Constant(
        ir.VectorType(I32, 2 * count), [lane + side * count for lane in range(count) for side in (0, 1)]
    )
    first, second = (builder.shuffle_vector(words[at], words[at + 1], zip_pair) for at in (0, 2))
    out = []
    for part in range(4):
        pairs = range(part * count // 4, (part + 1) * count // 4)
        order = [2 * pair + side + 2 * count * half for pair in pairs for half in (0, 1) for side in (0, 1)]
        out.append(builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, count), order)))
    return out


def _gumbel(builder: Any, bits: Any) -> Any:
    """-log(-log(1 - v)) with v = (bits + 1/2) / 2**32."""
    kind = ir.VectorType(FLOAT, bits.type.count)

    def fraction(number: Any) -> Any:
        wide = builder.fadd(builder.uitofp(number, kind), vector_of(0.5, kind))
        return builder.fmul(wide, vector_of(2.0**-32, kind))

    v, rest = fraction(bits), fraction(builder.not_(bits))
    without_v, exponent = split_float(builder, rest)  # the exponent is 0 where v is tiny
    is_tiny = builder.fcmp_ordered("<", v, vector_of(_TINY_V, kind))
    without_v = builder.select(is_tiny, builder.fneg(v), without_v)
    exponential = builder.fneg(log_of_parts(builder, without_v, exponent))
    return builder.fneg(log_of_parts(builder, *split_float(builder, exponential)))


def _make_fill(num_counters: int, finish: Callable[[Any, Any], Any]) -> Any:
    """An intrinsic `f(out, seed, position, stream, token)` that writes 4 * num_counters numbers of 4 bytes.

    They are those of the tokens from `token` on, a multiple of 4. All arguments are int64.
    """
    kind = ir.VectorType(I32, num_counters)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        out, seed, position, stream, token = args
        first = builder.trunc(builder.lshr(token, I64(2)), I32)
        counters = builder.add(broadcast(builder, first, kind), ir.Constant(kind, list(range(num_counters))))
        words = _interleave(builder, _philox(builder, counters, position, stream, seed))
        for part, bits in enumerate(words):
            value = finish(builder, bits)
            place = builder.add(out, I64(part * num_counters * 4))
            builder.store(value, pointer(builder, place, value.type), align=4)
        return context.get_dummy_value()

    @intrinsic
    def fill(typingctx, out, seed, position, stream, token):
        return types.void(*[types.int64] * 5), codegen

    return fill


fill_bits = _make_fill(LANES, lambda builder, bits: bits)
fill_gumbel = _make_fill(LANES, _gumbel)
fill_panel = _make_fill(read_host().lanes, _gumbel)


@intrinsic
def random_word(typingctx, seed, position, stream, token):
    """32 random bits of one token as an int64; all arguments are int64."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        seed, position, stream, token = args
        kind = ir.VectorType(I32, 2)
        counters = broadcast(builder, builder.trunc(builder.lshr(token, I64(2)), I32), kind)
        words = _philox(builder, counters, position, stream, seed)
        both = builder.shuffle_vector(words[0], words[1], ir.Constant(ir.VectorType(I32, 4), [0, 2, 0, 2]))
        rest = builder.shuffle_vector(words[2], words[3], ir.Constant(ir.VectorType(I32, 4), [0, 2, 0, 2]))
        every = builder.shuffle_vector(both, rest, ir.Constant(ir.VectorType(I32, 4), [0, 1, 4, 5]))
        lane = builder.and_(builder.trunc(token, I32), I32(3))
        return builder.zext(builder.extract_element(every, lane), I64)

    return types.int64(*[types.int64] * 4), codegen
