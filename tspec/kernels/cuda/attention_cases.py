"""What attention and commit are compiled as for shipped models, for the ahead-of-time tests.

Each case comes from the functions that plan a launch, so it is the variant that runs. Compiles nothing. Attention in
float32 has no case past 64 dims a head: its products run without tensor cores there, and spill.
"""

from collections.abc import Iterator

from tspec.core.dtypes import DType
from tspec.kernels.cuda import kv_commit
from tspec.kernels.cuda.attention import _rope_attention
from tspec.kernels.cuda.attention_launch import AttentionShape, launch_options
from tspec.kernels.cuda.linear_cases import PDL_ARCHITECTURES
from tspec.kernels.cuda.resources import TARGETS, AotCase
from tspec.kernels.cuda.tuned import AttentionTuned, default_attention_tuned

BF16 = DType.BFLOAT16
HEAD_DIMS = (64, 80, 96, 128, 256)
PLAIN = (64, 128)
"""Head dims that are compiled without norms too. With norms a kernel needs the more registers."""

WINDOW = 1024
MAX_BLOCKS = 2048
"""128 Ki positions."""

TALL = {"sm_90": (64, 128), "sm_100": (64, 128)}
"""Head dims for which row tiles of 64 fit, with 8 warps: for tuning, not a default."""

COMMIT = """
    k_ptr:*bf16 v_ptr:*bf16 path_ptr:*i32 num_out_ptr:*i32 prefix_len_ptr:*i32 block_table_ptr:*i32
    layer_stride:i64 bucket_nodes:i32 max_blocks:i32"""

REPRESENTATIVE = ("rope_attention-bf16-128-g4-r32-norms", "kv_commit-bf16-128")


def cases() -> Iterator[AotCase]:
    """Every variant of the kernels of this family."""
    for arch in TARGETS:
        for head_dim in HEAD_DIMS:
            tuned = {
                each.row_tile: each
                for each in (default_attention_tuned(head_dim, n, BF16, arch) for n in (1, 64))
            }
            for each in tuned.values():
                yield attention_case(arch, "bf16", head_dim, 4, each, norms=True)
                if head_dim in PLAIN:
                    yield attention_case(arch, "bf16", head_dim, 4, each)
                if head_dim == PLAIN[-1]:
                    yield attention_case(arch, "bf16", head_dim, 4, each, first_slot=1)
            yield attention_case(arch, "fp16", head_dim, 4, tuned[16], norms=True)
            yield attention_case(arch, "bf16", head_dim, 4, tuned[max(tuned)], norms=True, window=WINDOW)
        yield attention_case(arch, "bf16", 128, 16, default_attention_tuned(128, 64, BF16, arch))
        yield attention_case(arch, "fp32", 64, 4, default_attention_tuned(64, 1, DType.FLOAT32, arch))
        for head_dim in TALL.get(arch, ()):
            yield attention_case(arch, "bf16", head_dim, 4, AttentionTuned(4, 64, 8), norms=True)
        yield from _small_cases(arch)


def attention_case(
    arch: str,
    dtype: str,
    head_dim: int,
    group: int,
    tuned: AttentionTuned,
    norms: bool = False,
    window: int | None = None,
    first_slot: int = 0,
) -> AotCase:
    """Attention of 8 KV heads over up to 128 Ki positions."""
    shape = AttentionShape(8, 16, 8 * group, 8, head_dim, MAX_BLOCKS)
    use_pdl = arch in PDL_ARCHITECTURES
    tensor, norm = f"*{dtype}", "*fp32" if norms else None
    arguments: dict[str, str | int | None] = {
        "out_ptr": tensor,
        "k_ptr": tensor,
        "v_ptr": tensor,
        "partial_ptr": "*fp32",
        "counter_ptr": "*i32",
        "qkv_ptr": tensor,
        "cos_ptr": "*fp32",
        "sin_ptr": "*fp32",
        "q_norm_ptr": norm,
        "k_norm_ptr": norm,
        "ancestors_ptr": "*i64",
        "depth_ptr": "*i32",
        "block_table_ptr": "*i32",
        "prefix_len_ptr": "*i32",
        "num_nodes_ptr": "*i32",
        "bucket_nodes": "i32",
        "max_blocks": "i32",
        "first_node": "i32",
        "scale_log2": "fp32",
        "eps": "fp32",
    }
    name = f"rope_attention-{dtype}-{head_dim}-g{group}-r{tuned.row_tile}{'-norms' * norms}{'-window' * bool(window)}"
    name += "-from1" * first_slot
    return AotCase(
        name, arch, _rope_attention, arguments, shape.constexprs(tuned, window, first_slot, use_pdl),
        launch_options(tuned, use_pdl), dtype != "fp32", name in REPRESENTATIVE,
    )  # fmt: skip


def _small_cases(arch: str) -> Iterator[AotCase]:
    use_pdl = arch in PDL_ARCHITECTURES
    options = {"num_warps": 4, "enable_fp_fusion": False, **({"launch_pdl": True} if use_pdl else {})}
    cases = [
        (f"kv_commit-bf16-{dim}", kv_commit._kv_commit, COMMIT, kv_commit.constexprs(8, dim, use_pdl))
        for dim in (64, 80, 128, 256)
    ]
    for name, kernel, types, constants in cases:
        pairs = (each.split(":") for each in types.split())
        arguments: dict[str, str | int | None] = {argument: kind for argument, kind in pairs}
        yield AotCase(name, arch, kernel, arguments, constants, options, False, name in REPRESENTATIVE)
