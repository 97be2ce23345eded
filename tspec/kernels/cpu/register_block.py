"""Generator of the one inner loop of all matrix products: some rows times one panel of weights.

A block holds `rows x (vectors * lanes)` outputs in registers, one accumulator an output, and adds
`x[row, k] * w[k, output]` for k in order with fused multiply-adds. An output's bits therefore depend on its own
row and weights alone: not on how many rows share the block, nor on the width of the host's vectors.

Weights are panels `[k][output]`; for BF16 that are `paired` they are `[k / 2][output][2]`, so that one 32-bit lane
holds two steps of one output, and a shift or a mask makes a float32 of either (no widening shuffle).
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tspec.kernels.cpu.simd import (
    BF16,
    F16,
    F32,
    FLOAT,
    I8,
    I32,
    I64,
    ITEMSIZE_BYTES,
    broadcast,
    call,
    fma_name,
    load_vector,
    pointer,
    vector_of,
    widen,
)


@dataclass(frozen=True, slots=True)
class Block:
    """What one generated loop does.

    rows, vectors, lanes  the outputs it holds
    storage, paired       how weights lie in memory
    accumulate            start from what `out` holds instead of from zero
    indexed               take each step's weights at the address in a table
    prefetches            prefetch weights as far ahead of the stream as the call says
    """

    rows: int
    vectors: int
    lanes: int
    storage: int
    paired: bool = False
    accumulate: bool = False
    indexed: bool = False
    prefetches: bool = False

    @property
    def vector(self) -> Any:
        """The LLVM type of one accumulator."""
        return ir.VectorType(FLOAT, self.lanes)

    @property
    def steps_a_load(self) -> int:
        """Values of k that one load of weights covers."""
        return 2 if self.paired else 1


def make_product(heights: tuple[int, ...], paired: bool, **options: Any) -> Any:
    """Return an intrinsic `f(storage, x, x_stride, rows, w, w_step, steps, out, out_stride, most, ahead)`; all int64.

    Computes `rows` (at least 1) rows of outputs, in blocks of the given heights: the lowest that holds what is
    left, or `most` of it (at most the tallest height). One loop a storage and height is generated, with the other
    `options` of Block. Strides and steps are in bytes, as is `ahead`, the distance of those that prefetch.
    `steps` counts loads of weights (pairs of k where BF16 is `paired`) and is at least 1. Where indexed, `w` is a table
    of int64 addresses, and `w_step` is added to each.
    """

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        storage, *operands = args
        end = builder.append_basic_block("product_end")
        switch = builder.switch(storage, end)
        for code in (F32, BF16, F16):
            case = builder.append_basic_block("storage")
            switch.add_case(I64(code), case)
            builder.position_at_end(case)
            blocks = [
                Block(height, storage=code, paired=paired and code == BF16, **options) for height in heights
            ]
            _emit_rows(sorted(blocks, key=lambda block: block.rows), builder, operands, end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    @intrinsic
    def product(typingctx, storage, x, x_stride, rows, w, w_step, steps, out, out_stride, most, ahead):
        return types.void(*[types.int64] * 11), codegen

    return product


def _emit_rows(blocks: list[Block], builder: Any, operands: list[Any], end: Any) -> None:
    """Loop over the rows, each time through the lowest block that holds the rows left, or `most` of them."""
    x, x_stride, rows, weights, weight_step, steps, out, out_stride, most, ahead = operands
    before, head = builder.block, builder.append_basic_block("rows")
    builder.branch(head)
    builder.position_at_end(head)
    row = builder.phi(I64)
    row.add_incoming(I64(0), before)
    left = builder.sub(rows, row)
    wanted = builder.select(builder.icmp_signed("<", left, most), left, most)
    x_row = builder.add(x, builder.mul(row, x_stride))
    out_row = builder.add(out, builder.mul(row, out_stride))
    for block in blocks:
        here, skip = builder.append_basic_block(f"block{block.rows}"), builder.append_basic_block("taller")
        is_tallest = block is blocks[-1]
        fits = builder.icmp_signed("<=", wanted, I64(block.rows))
        builder.cbranch(ir.Constant(ir.IntType(1), 1) if is_tallest else fits, here, skip)
        builder.position_at_end(here)
        place = (x_row, x_stride, left, weights, weight_step, steps, out_row, out_stride, ahead)
        _emit_block(block, builder, place)
        next_row = builder.add(row, I64(block.rows))
        row.add_incoming(next_row, builder.block)
        builder.cbranch(builder.icmp_signed("<", next_row, rows), head, end)
        builder.position_at_end(skip)
    builder.unreachable()


def _emit_block(block: Block, builder: Any, args: tuple[Any, ...]) -> None:
    x, x_stride, rows, weights, weight_step, steps, out, out_stride, ahead = args
    row_start = [
        builder.add(x, builder.mul(x_stride, _row_index(builder, row, rows))) for row in range(block.rows)
    ]
    out_start = [
        [
            builder.add(builder.add(out, builder.mul(out_stride, I64(row))), I64(4 * block.lanes * vector))
            for vector in range(block.vectors)
        ]
        for row in range(block.rows)
    ]
    before = builder.block
    start = [[_first_value(block, builder, address) for address in row] for row in out_start]
    loop, done = builder.append_basic_block("steps"), builder.append_basic_block("store")
    builder.branch(loop)
    builder.position_at_end(loop)
    step = builder.phi(I64)
    step.add_incoming(I64(0), before)
    sums = [[builder.phi(block.vector) for _ in range(block.vectors)] for _ in range(block.rows)]
    for row in range(block.rows):
        for vector in range(block.vectors):
            sums[row][vector].add_incoming(start[row][vector], before)
    loaded = _load_weights(block, builder, _step_address(block, builder, weights, weight_step, step), ahead)
    after = _multiply_add(block, builder, row_start, step, loaded, sums)
    next_step = builder.add(step, I64(1))
    step.add_incoming(next_step, loop)
    for row in range(block.rows):
        for vector in range(block.vectors):
            sums[row][vector].add_incoming(after[row][vector], loop)
    builder.cbranch(builder.icmp_signed("<", next_step, steps), loop, done)
    builder.position_at_end(done)
    for row in range(block.rows):
        for vector in range(block.vectors):
            builder.store(after[row][vector], pointer(builder, out_start[row][vector], block.vector), align=4)


def _row_index(builder: Any, row: int, rows: Any) -> Any:
    """`min(row, rows - 1)`: a block may be taller than what is left of the rows."""
    last = builder.sub(rows, I64(1))
    return builder.select(builder.icmp_signed("<", I64(row), last), I64(row), last)


def _first_value(block: Block, builder: Any, address: Any) -> Any:
    return (
        load_vector(builder, address, block.vector, 4) if block.accumulate else vector_of(0.0, block.vector)
    )


def _step_address(block: Block, builder: Any, weights: Any, weight_step: Any, step: Any) -> Any:
    if block.indexed:
        entry = builder.add(weights, builder.mul(step, I64(8)))
        return builder.add(builder.load(pointer(builder, entry, I64)), weight_step)
    return builder.add(weights, builder.mul(step, weight_step))


def _load_weights(block: Block, builder: Any, address: Any, ahead: Any) -> list[list[Any]]:
    """Weights of one step as `[vector][step within the load]` float32 vectors."""
    stride_bytes = block.lanes * ITEMSIZE_BYTES[block.storage] * block.steps_a_load
    fetched = builder.add(address, ahead)
    for offset in range(0, block.vectors * stride_bytes if block.prefetches else 0, 64):
        line = pointer(builder, builder.add(fetched, I64(offset)), I8)
        call(builder, "llvm.prefetch.p0", ir.VoidType(), [line, I32(0), I32(3), I32(1)])
    loaded = []
    for vector in range(block.vectors):
        place = builder.add(address, I64(vector * stride_bytes))
        if not block.paired:
            loaded.append([widen(builder, place, block.storage, block.vector)])
            continue
        assert block.storage == BF16, block.storage
        words = ir.VectorType(I32, block.lanes)
        raw = load_vector(builder, place, words, 4)
        first = builder.bitcast(builder.shl(raw, vector_of(16, words)), block.vector)
        second = builder.bitcast(builder.and_(raw, vector_of(0xFFFF0000, words)), block.vector)
        loaded.append([first, second])
    return loaded


def _multiply_add(
    block: Block,
    builder: Any,
    row_start: list[Any],
    step: Any,
    loaded: list[list[Any]],
    sums: list[list[Any]],
) -> list[list[Any]]:
    after = [list(row) for row in sums]
    for k in range(block.steps_a_load):
        for row in range(block.rows):
            offset = builder.add(builder.mul(step, I64(4 * block.steps_a_load)), I64(4 * k))
            number = builder.load(pointer(builder, builder.add(row_start[row], offset), FLOAT))
            spread = broadcast(builder, number, block.vector)
            for vector in range(block.vectors):
                operands = [loaded[vector][k], spread, after[row][vector]]
                after[row][vector] = call(builder, fma_name(block.vector), block.vector, operands)
    return after
