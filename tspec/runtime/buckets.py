"""Which padded sizes plans are made for, and which of them a step takes."""

from tspec.core.errors import CapacityError
from tspec.core.tree import MAX_NODES
from tspec.graph.plan import Bucket

NODES = (1, 2, 4, 8, 16, 32, MAX_NODES)


def smallest_bucket(rows: int, nodes: int) -> Bucket:
    """The smallest bucket that holds `rows` sequences of up to `nodes` nodes; rows come in powers of two."""
    if nodes > MAX_NODES:
        raise CapacityError(
            "nodes of a tree", got=nodes, need=f"at most {MAX_NODES}", fix="Propose fewer candidates."
        )
    return Bucket(1 << (rows - 1).bit_length(), next(size for size in NODES if size >= nodes))
