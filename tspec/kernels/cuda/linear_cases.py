"""What the linear, head and acceptance kernels are compiled as for shipped models, for the ahead-of-time tests.

Each case comes from the functions that plan a launch, so it is the variant that runs. Compiles nothing.
"""

from collections.abc import Iterator

import torch

from tspec.core.dtypes import DType
from tspec.kernels.cuda.accept import _accept_match
from tspec.kernels.cuda.choose import BLOCK, NUM_WARPS, _choose
from tspec.kernels.cuda.launch import SAMPLING_HEADS, plan_linear
from tspec.kernels.cuda.linear import Epilogue, _linear
from tspec.kernels.cuda.resources import ALIGNMENT, TARGETS, AotCase
from tspec.kernels.cuda.tuned import Tuned, can_launch_early, default_tuned
from tspec.kernels.tuned_ops import is_head

DTYPES = {
    DType.BFLOAT16: ("bf16", torch.bfloat16),
    DType.FLOAT16: ("fp16", torch.float16),
    DType.FLOAT32: ("fp32", torch.float32),
}
PDL_ARCHITECTURES = tuple(arch for arch in TARGETS if can_launch_early(arch))
"""Where a launch may start before the one before it has ended."""

EPILOGUES = {
    "linear": Epilogue.STORE,
    "linear_add": Epilogue.ADD,
    "linear_silu_mul": Epilogue.SILU_MUL,
    "norm_linear": Epilogue.STORE,
    "norm_linear_silu_mul": Epilogue.SILU_MUL,
    "head_logits": Epilogue.STORE,
    "head_sample": Epilogue.SAMPLE,
    "norm_head_logits": Epilogue.STORE,
    "norm_head_sample": Epilogue.SAMPLE,
}

REQUEST = {
    "temperature_ptr": "*fp32",
    "seed_ptr": "*i64",
    "prefix_len_ptr": "*i32",
    "depth_ptr": "*i32",
    "num_nodes_ptr": "*i32",
    "rows_each": "i32",
    "nodes": "i32",
}
"""What a row is sampled by."""

SHAPES = {
    "Llama-3.1-8B": {"hidden": 4096, "qkv": 6144, "mlp": 14336, "vocab": 128256},
    "Llama-3.2-1B": {"hidden": 2048, "qkv": 3072, "mlp": 8192, "vocab": 128256},
    "Qwen3-0.6B": {"hidden": 1024, "qkv": 4096, "mlp": 3072, "vocab": 151936},
    "SmolLM2-135M": {"hidden": 576, "qkv": 960, "mlp": 1536, "vocab": 49152},
    "ragged": {"hidden": 560, "qkv": 900, "mlp": 1000, "vocab": 1009},
}
"""Sizes of the models that the defaults are meant for, and of one that fills no block."""

DRAFT_VOCABULARY = 32000
"""Of drafts that know fewer tokens than the target."""

ROWS = (1, 32, 64)
"""One tile of each height."""

MANY_ROWS = 256
"""Several tiles."""


def cases() -> Iterator[AotCase]:
    """Every variant once: sizes that compile to the same code as earlier ones are left out."""
    for arch in TARGETS:
        seen: set[str] = set()
        for dtype in DTYPES:
            products = [(*each, _rows(each[0], dtype)) for each in _products()]
            for model, kind, n, k, heights in (*products, *_draft_products(dtype)):
                for rows in heights:
                    case = linear_case(arch, kind, rows, n, k, dtype, model)
                    if (variant := variant_of(case)) not in seen:
                        seen.add(variant)
                        yield case
        yield from _small_cases(arch)


def linear_case(
    arch: str, kind: str, rows: int, n: int, k: int, dtype: DType, model: str, tuned: Tuned | None = None
) -> AotCase:
    """The variant of `kind` that runs `rows` rows with weights [n, k], with the default unless `tuned` is
    given; a bias where n is ragged."""
    short, torch_dtype = DTYPES[dtype]
    tuned = tuned or default_tuned(kind, n, k, dtype, arch)
    launch = plan_linear(kind, EPILOGUES[kind], rows, n, k, torch_dtype, tuned, arch in PDL_ARCHITECTURES)
    tensor, is_split = f"*{short}", tuned.split_k > 1
    arguments: dict[str, str | int | None] = {
        "out_ptr": "*fp32" if is_head(kind) else tensor,
        "token_ptr": "*i32" if kind in SAMPLING_HEADS else None,
        "x_ptr": tensor,
        "norm_ptr": "*fp32" if kind.startswith("norm_") else None,
        "weight_ptr": tensor,
        "bias_ptr": "*fp32" if model == "ragged" else None,
        "residual_ptr": tensor if kind == "linear_add" else None,
        "partials_ptr": "*fp32" if is_split else None,
        "counters_ptr": "*i32" if is_split else None,
        **{name: type_ if kind in SAMPLING_HEADS else None for name, type_ in REQUEST.items()},
        "rows": "i32",
        "N": n,
        "K": k,
        "eps": "fp32",
    }
    name = f"{kind}-{short}-{rows}x{n}x{k}"
    has_dot = dtype is not DType.FLOAT32
    return AotCase(
        name, arch, _linear, arguments, launch.constexprs, launch.options, has_dot, _is_representative(name)
    )


def _products() -> Iterator[tuple[str, str, int, int]]:
    """(model, kind, n, k) of each linear of a verify pass."""
    for model, size in SHAPES.items():
        hidden, mlp = size["hidden"], size["mlp"]
        yield model, "norm_linear", size["qkv"], hidden
        yield model, "linear_add", hidden, hidden
        yield model, "norm_linear_silu_mul", mlp, hidden
        yield model, "linear_add", hidden, mlp
        yield model, "norm_head_sample", size["vocab"], hidden
        yield model, "norm_head_logits", size["vocab"], hidden
        yield model, "linear", size["vocab"], hidden


def _draft_products(dtype: DType) -> Iterator[tuple[str, str, int, int, tuple[int, ...]]]:
    """(model, kind, n, k, rows) of a head that drafts for a model: products that no norm precedes.

    In bfloat16 every height, and one row of ragged sizes; one row in the other dtypes.
    """
    is_short = dtype is DType.BFLOAT16
    for model, heights in (("Llama-3.1-8B", ROWS if is_short else ROWS[:1]), ("ragged", ROWS[:is_short])):
        size = SHAPES[model]
        hidden = size["hidden"]
        yield model, "linear", hidden, 3 * hidden, heights
        yield model, "linear", size["qkv"], 2 * hidden, heights
        yield model, "head_logits", DRAFT_VOCABULARY, hidden, heights


def _rows(model: str, dtype: DType) -> tuple[int, ...]:
    """Every height in bfloat16, and several tiles for one model; one row in the other dtypes."""
    if dtype is not DType.BFLOAT16:
        return ROWS[:1]
    return (*ROWS, MANY_ROWS) if model == "Llama-3.1-8B" else ROWS


def _is_representative(name: str) -> bool:
    sizes = ("norm_linear_silu_mul-bf16-64x14336x4096", "linear_add-bf16-1x4096x4096")
    return name in (*sizes, "norm_head_sample-bf16-64x128256x4096")


def variant_of(case: AotCase) -> str:
    """What decides the code; of a number only whether it is a multiple of ALIGNMENT."""
    sizes = {
        name: kind % ALIGNMENT == 0 if isinstance(kind, int) else kind
        for name, kind in case.arguments.items()
    }
    return repr((sizes, case.constexprs, case.options))


def _small_cases(arch: str) -> Iterator[AotCase]:
    use_pdl = arch in PDL_ARCHITECTURES
    pdl = {"launch_pdl": True} if use_pdl else {}
    options = {"num_warps": NUM_WARPS, "enable_fp_fusion": False, **pdl}
    arguments = {"out_ptr": "*i32", "best_ptr": "*fp32", "token_ptr": "*i32", "blocks": "i32"}
    constexprs = {"BLOCK": BLOCK, "USE_PDL": use_pdl}
    yield AotCase("choose", arch, _choose, arguments, constexprs, options, False)
    pointers = ("out_tokens", "num_out", "path", "node_tokens", "tokens", "ancestors", "num_nodes")
    types = {f"{each}_ptr": "*i64" if each == "ancestors" else "*i32" for each in pointers}
    for nodes in (1, 16, 64):
        constexprs = {"T": nodes, "NODES": nodes, "USE_PDL": use_pdl}
        yield AotCase(
            f"accept_match-{nodes}", arch, _accept_match, types, constexprs, options | {"num_warps": 1},
            False, nodes == 64,
        )  # fmt: skip
