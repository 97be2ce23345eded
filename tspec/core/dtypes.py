"""The dtypes that tensors in a graph, a checkpoint or a plan may have.  No torch: sizes and names only."""

from enum import Enum


class DType(Enum):
    """Element type. The value is the name used in messages, printed graphs and `config.json`."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT64 = "int64"
    INT32 = "int32"

    @property
    def itemsize_bytes(self) -> int:
        """Bytes an element."""
        return _ITEMSIZE_BYTES[self]

    @property
    def short(self) -> str:
        """The name in printed graphs: `f32`, `bf16`, `i32`, …"""
        return _SHORT[self]


_ITEMSIZE_BYTES = {
    DType.FLOAT32: 4,
    DType.BFLOAT16: 2,
    DType.FLOAT16: 2,
    DType.INT64: 8,
    DType.INT32: 4,
}
_SHORT = {
    DType.FLOAT32: "f32",
    DType.BFLOAT16: "bf16",
    DType.FLOAT16: "f16",
    DType.INT64: "i64",
    DType.INT32: "i32",
}

WEIGHT_DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
"""What linear weights and the KV cache may be stored as."""
