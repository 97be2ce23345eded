"""Cases of what happens to logits once they are written."""

from functools import partial

from support.cpu_pass import Case
from support.kernel_case import ENDING, RAGGED, KernelCase, Maker, chains

from tspec.core.dtypes import DType
from tspec.graph.ir import Op, Value
from tspec.graph.static_inputs import DEPTH, NUM_NODES, PREFIX_LEN, SEED, TEMPERATURE

F32, I32 = DType.FLOAT32, DType.INT32
DRAW = (TEMPERATURE, SEED, PREFIX_LEN, DEPTH, NUM_NODES)


def sample(make: Maker, vocab: int, counts: tuple[int, ...], last: bool = False) -> Case:
    """Whole numbers, so that many logits are equal; rows of NaN, of -inf. Every other sequence is greedy."""
    trees = chains(counts)
    source, logits = make.rows("logits", trees.tokens.size, vocab)
    table = make.tensors["logits.table"].round_()
    table[1::3, ::2] = float("nan")
    table[2::5] = float("-inf")
    table[3::7] = float("nan")
    ops = [source]
    if last:
        cut = Value("logits.last", ("B", 1, vocab), F32)
        ops.append(Op("last_row", (cut,), (logits, NUM_NODES)))
        logits = cut
    out = Value("token", logits.shape[:-1], I32)
    temperature = [(0, 1.5, 0, 0.7)[(row + make.seed) % 4] for row in range(len(counts))]
    inputs = make.inputs(trees, [7 * row for row in range(len(counts))]) | make.draws(temperature)
    ops = (*ops, Op("sample", (out,), (logits, *DRAW, None, None)))
    return Case(ops, (out,), make.tensors, inputs, {}, (TEMPERATURE, SEED))


SAMPLING_CASES = [
    *(
        KernelCase(
            "sample",
            F32,
            f"{vocab}-{counts}{'-last' * last}",
            partial(sample, vocab=vocab, counts=counts, last=last),
        )
        for vocab in (1, 16, 97, 131)
        for counts in ((17,), RAGGED, ENDING)
        for last in (False, True)
    ),
]
