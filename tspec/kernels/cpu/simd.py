"""Vector and memory primitives for the CPU kernels, as Numba intrinsics that emit explicit LLVM vector IR.

A `Lanes` value is 16 float32 lanes whatever the CPU: LLVM splits it into the registers that the host has, so
results do not depend on the host's vector width. Addresses are int64 in bytes; nothing here checks bounds.
"""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16

F32, BF16, F16 = 0, 1, 2
"""How weights and KV are stored: the codes that kernels branch on."""

ITEMSIZE_BYTES = {F32: 4, BF16: 2, F16: 2}

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT = ir.FloatType()
HALF = ir.HalfType()
DOUBLE = ir.DoubleType()
VECTOR = ir.VectorType(FLOAT, LANES)


class _LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes16xFloat32")


lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, type_: Any) -> None:
        super().__init__(manager, type_, VECTOR)


def pointer(builder: Any, address: Any, to: Any) -> Any:
    """The int64 `address` as a pointer to `to`."""
    return builder.inttoptr(address, to.as_pointer())


def call(builder: Any, name: str, returns: Any, args: list[Any]) -> Any:
    """Call an LLVM intrinsic or an external function by its full name."""
    signature = ir.FunctionType(returns, [each.type for each in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), args)


def vector_of(value: float, kind: Any = VECTOR) -> Any:
    """A constant vector with the same value in each lane."""
    return ir.Constant(kind, [value] * kind.count)


def broadcast(builder: Any, scalar: Any, kind: Any) -> Any:
    """A vector with `scalar` in each lane."""
    empty = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(empty, scalar, I32(0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count))


def load_vector(builder: Any, address: Any, kind: Any, align: int) -> Any:
    """Load a vector from an address with a known alignment in bytes."""
    return builder.load(pointer(builder, address, kind), align=align)


def widen(builder: Any, address: Any, storage: int, kind: Any) -> Any:
    """Load `kind.count` stored numbers as float32 lanes; exact for every storage."""
    if storage == F32:
        return load_vector(builder, address, kind, 4)
    if storage == F16:
        return builder.fpext(load_vector(builder, address, ir.VectorType(HALF, kind.count), 2), kind)
    raw = load_vector(builder, address, ir.VectorType(I16, kind.count), 2)
    wide = ir.VectorType(I32, kind.count)
    return builder.bitcast(builder.shl(builder.zext(raw, wide), vector_of(16, wide)), kind)


def fma_name(kind: Any) -> str:
    """Name of LLVM's fused multiply-add for a float32 vector type."""
    return f"llvm.fma.v{kind.count}f32"


def _intrinsic(returns: Any, params: tuple[Any, ...], emit: Callable[..., Any]) -> Any:
    """An intrinsic of fixed types. Numba counts the arguments of the typer, hence one typer an arity."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        result = emit(builder, *args)
        return context.get_dummy_value() if returns == types.void else result

    typed = returns(*params), codegen
    typers: dict[int, Callable[..., Any]] = {
        0: lambda typingctx: typed,
        1: lambda typingctx, a: typed,
        2: lambda typingctx, a, b: typed,
        3: lambda typingctx, a, b, c: typed,
        5: lambda typingctx, a, b, c, d, e: typed,
    }
    return intrinsic(typers[len(params)])


def _loader(numba_type: Any, llvm_type: Any) -> Any:
    return _intrinsic(numba_type, (types.int64,), lambda b, a: b.load(pointer(b, a, llvm_type)))


def _storer(numba_type: Any, llvm_type: Any) -> Any:
    return _intrinsic(
        types.void, (types.int64, numba_type), lambda b, a, value: b.store(value, pointer(b, a, llvm_type))
    )


# Scalars in memory.
load_i32, store_i32 = _loader(types.int32, I32), _storer(types.int32, I32)
load_i64, store_i64 = _loader(types.int64, I64), _storer(types.int64, I64)
load_f32, store_f32 = _loader(types.float32, FLOAT), _storer(types.float32, FLOAT)
load_f64, store_f64 = _loader(types.float64, DOUBLE), _storer(types.float64, DOUBLE)
load_i16, store_i16 = _loader(types.int16, I16), _storer(types.int16, I16)


def _bf16_bits(builder: Any, value: Any, wide: Any, narrow: Any) -> Any:
    """Round float32 to bfloat16, ties to even, as raw bits. A NaN stays a NaN."""
    vector = isinstance(value.type, ir.VectorType)
    number = (lambda x: vector_of(x, wide)) if vector else (lambda x: ir.Constant(wide, x))
    bits = builder.bitcast(value, wide)
    odd = builder.and_(builder.lshr(bits, number(16)), number(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, number(0x7FFF))), number(16))
    quiet = builder.or_(builder.lshr(bits, number(16)), number(0x40))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, quiet, rounded), narrow)


bf16_bits = _intrinsic(types.int16, (types.float32,), lambda b, x: _bf16_bits(b, x, I32, I16))
f16_bits = _intrinsic(types.int16, (types.float32,), lambda b, x: b.bitcast(b.fptrunc(x, HALF), I16))
bf16_value = _intrinsic(
    types.float32, (types.int16,), lambda b, x: b.bitcast(b.shl(b.zext(x, I32), I32(16)), FLOAT)
)
f16_value = _intrinsic(types.float32, (types.int16,), lambda b, x: b.fpext(b.bitcast(x, HALF), FLOAT))

# Lanes in memory.
load = _intrinsic(lanes, (types.int64,), lambda b, a: load_vector(b, a, VECTOR, 4))
store = _intrinsic(
    types.void, (types.int64, lanes), lambda b, a, v: b.store(v, pointer(b, a, VECTOR), align=4)
)

# Arithmetic on lanes.
splat = _intrinsic(lanes, (types.float32,), lambda b, x: broadcast(b, x, VECTOR))
add = _intrinsic(lanes, (lanes, lanes), lambda b, x, y: b.fadd(x, y))
sub = _intrinsic(lanes, (lanes, lanes), lambda b, x, y: b.fsub(x, y))
mul = _intrinsic(lanes, (lanes, lanes), lambda b, x, y: b.fmul(x, y))
div = _intrinsic(lanes, (lanes, lanes), lambda b, x, y: b.fdiv(x, y))
fma = _intrinsic(
    lanes, (lanes, lanes, lanes), lambda b, x, y, z: call(b, fma_name(VECTOR), VECTOR, [x, y, z])
)
maximum = _intrinsic(lanes, (lanes, lanes), lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


def _fold(builder: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Fold lanes by halves in a fixed order: 16 to 8 to 4 to 2 to 1."""
    count = LANES
    while count > 1:
        count //= 2
        index = ir.VectorType(I32, count)
        low = builder.shuffle_vector(vector, vector, ir.Constant(index, list(range(count))))
        high = builder.shuffle_vector(vector, vector, ir.Constant(index, list(range(count, 2 * count))))
        vector = combine(low, high)
    return builder.extract_element(vector, I32(0))


total = _intrinsic(types.float32, (lanes,), lambda b, v: _fold(b, v, lambda x, y: b.fadd(x, y)))
largest = _intrinsic(
    types.float32, (lanes,), lambda b, v: _fold(b, v, lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
)

first_lane = _intrinsic(types.float32, (lanes,), lambda b, v: b.extract_element(v, I32(0)))

_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_EXP_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_EXP_LOWEST, _EXP_HIGHEST = -87.0, 88.0


def _exp(builder: Any, x: Any) -> Any:
    """e**x to about 2 ulp; exactly 0 below -87, capped at e**88. Source: Cephes expf, S. Moshier."""
    fused = lambda a, b, c: call(builder, fma_name(VECTOR), VECTOR, [a, b, c])  # noqa: E731
    capped = builder.select(builder.fcmp_ordered(">", x, vector_of(_EXP_HIGHEST)), vector_of(_EXP_HIGHEST), x)
    safe = builder.select(
        builder.fcmp_ordered(">", capped, vector_of(_EXP_LOWEST)), capped, vector_of(_EXP_LOWEST)
    )
    exponent = call(builder, "llvm.nearbyint.v16f32", VECTOR, [builder.fmul(safe, vector_of(_LOG2_E))])
    rest = fused(exponent, vector_of(-_LN2_HIGH), safe)
    rest = fused(exponent, vector_of(-_LN2_LOW), rest)
    series = vector_of(_EXP_POLYNOMIAL[0])
    for coefficient in _EXP_POLYNOMIAL[1:]:
        series = fused(series, rest, vector_of(coefficient))
    series = builder.fadd(fused(series, builder.fmul(rest, rest), rest), vector_of(1.0))
    integers = ir.VectorType(I32, LANES)
    shift = builder.shl(builder.fptosi(exponent, integers), vector_of(23, integers))
    scaled = builder.bitcast(builder.add(builder.bitcast(series, integers), shift), VECTOR)
    return builder.select(builder.fcmp_unordered("<", x, vector_of(_EXP_LOWEST)), vector_of(0.0), scaled)


exp = _intrinsic(lanes, (lanes,), _exp)

_SQRT_HALF_BITS = 0x3F3504F3
_LOG_POLYNOMIAL = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip


def split_float(builder: Any, x: Any) -> tuple[Any, Any]:
    """Positive normal numbers as (m - 1, e) with x = m * 2**e and m in [sqrt(1/2), sqrt(2)); e as float32."""
    integers = ir.VectorType(I32, x.type.count)
    bits = builder.bitcast(x, integers)
    exponent = builder.ashr(builder.sub(bits, vector_of(_SQRT_HALF_BITS, integers)), vector_of(23, integers))
    m = builder.bitcast(builder.sub(bits, builder.shl(exponent, vector_of(23, integers))), x.type)
    return builder.fsub(m, vector_of(1.0, x.type)), builder.sitofp(exponent, x.type)


def log_of_parts(builder: Any, rest: Any, exponent: Any) -> Any:
    """log((1 + rest) * 2**exponent) to about 1 ulp. Source: Cephes logf, S. Moshier."""
    kind = rest.type
    fused = lambda a, b, c: call(builder, fma_name(kind), kind, [a, b, c])  # noqa: E731
    series = vector_of(_LOG_POLYNOMIAL[0], kind)
    for coefficient in _LOG_POLYNOMIAL[1:]:
        series = fused(series, rest, vector_of(coefficient, kind))
    square = builder.fmul(rest, rest)
    tail = builder.fmul(series, builder.fmul(rest, square))
    tail = fused(exponent, vector_of(_LN2_LOW, kind), tail)
    tail = fused(square, vector_of(-0.5, kind), tail)
    return fused(exponent, vector_of(_LN2_HIGH, kind), builder.fadd(rest, tail))


def _log(builder: Any, x: Any) -> Any:
    """The natural logarithm of finite numbers to about 1 ulp; -inf below the smallest normal number, and of NaN."""
    found = log_of_parts(builder, *split_float(builder, x))
    is_normal = builder.fcmp_ordered(">=", x, vector_of(2.0**-126))
    return builder.select(is_normal, found, vector_of(-math.inf))


log = _intrinsic(lanes, (lanes,), _log)
