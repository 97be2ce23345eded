"""The torch dtype of each DType."""

import torch

from tspec.core.dtypes import DType

TORCH_DTYPES = {
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
}
