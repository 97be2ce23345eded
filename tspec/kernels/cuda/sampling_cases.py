"""What the kernels between logits and tokens are compiled as for shipped models, for the ahead-of-time tests.

Constants come from the functions that the launchers use. Compiles nothing.
"""

from collections.abc import Iterator
from typing import Any

from tspec.core.sampling_params import MAX_LOGPROBS
from tspec.core.tree import MAX_NODES
from tspec.kernels.cuda import accept_ratio, draw_draft, edit_logits, kept, logprobs, sample, top_tokens
from tspec.kernels.cuda.linear_cases import DRAFT_VOCABULARY, PDL_ARCHITECTURES, REQUEST, SHAPES
from tspec.kernels.cuda.resources import TARGETS, AotCase

VOCABULARIES = (SHAPES["Llama-3.1-8B"]["vocab"], SHAPES["ragged"]["vocab"])
"""A multiple of 16, so that rows are aligned, and one that is not."""

EDIT_LOGITS = """
    out_ptr:*fp32 logits_ptr:*fp32 edits_ptr:*i32 penalties_ptr:*fp32 counts_ptr:*i32 bias_ptr:*fp32 mask_ptr:*i32
    tokens_ptr:*i32 ancestors_ptr:*i64 num_nodes_ptr:*i32 rows_each:i32 nodes:i32 vocab words:i32"""
FIND_KEPT = """
    threshold_ptr:*fp32 first_tie_ptr:*i32 log_sum_ptr:*fp32 logits_ptr:*fp32 temperature_ptr:*fp32 top_k_ptr:*i32
    top_p_ptr:*fp32 min_p_ptr:*fp32 num_nodes_ptr:*i32 values_ptr:*fp32 tokens_ptr:*i32 rows_each:i32 vocab"""
TOKEN_LOGPROBS = """
    logprobs_ptr:*fp32 top_tokens_ptr:*i32 top_logprobs_ptr:*fp32 logits_ptr:*fp32 chosen_ptr:*i32
    num_logprobs_ptr:*i32 num_nodes_ptr:*i32 num_out_ptr:*i32 path_ptr:*i32 rows_each:i32 vocab"""
ACCEPT_RATIO = """
    out_tokens_ptr:*i32 num_out_ptr:*i32 path_ptr:*i32 node_tokens_ptr:*i32 tokens_ptr:*i32 ancestors_ptr:*i64
    depth_ptr:*i32 num_nodes_ptr:*i32 prefix_len_ptr:*i32 logits_ptr:*fp32 temperature_ptr:*fp32 seed_ptr:*i64
    threshold_ptr:*fp32 first_tie_ptr:*i32 log_sum_ptr:*fp32 is_sampled_ptr:*i32 draft_ptr:*fp32
    draft_index_ptr:*i32 vocab draft_vocab"""

TOP_TOKENS = """
    tokens_ptr:*i32 logprobs_ptr:*fp32 logits_ptr:*fp32 num_nodes_ptr:*i32 token_ids_ptr:*i32 rows_each:i32 vocab"""
DRAW_BLOCKS = """
    best_ptr:*fp32 token_ptr:*i32 top_ptr:*fp32 weight_ptr:*fp32 logits_ptr:*fp32 temperature_ptr:*fp32 seed_ptr:*i64
    prefix_len_ptr:*i32 num_nodes_ptr:*i32 rows_each:i32 stream:i32 offset:i32 vocab"""
WRITE_LAW = """
    tokens_ptr:*i32 logprobs_ptr:*fp32 law_ptr:*fp32 best_ptr:*fp32 token_ptr:*i32 top_ptr:*fp32 weight_ptr:*fp32
    logits_ptr:*fp32 temperature_ptr:*fp32 num_nodes_ptr:*i32 token_ids_ptr:*i32 rows_each:i32 vocab"""

TREE_WIDTH = 10
"""Candidates that each node of a draft's tree has."""

REPRESENTATIVE = {
    "sm_90": (
        "sample-kept-128256", "edit_logits-128256", "find_kept-128256", "token_logprobs-path-128256",
        "accept_ratio-8-128256", "top_tokens-10-32000", "draw_blocks-128256", "write_law-128256",
    ),
    "gfx942": ("sample-kept-128256", "accept_ratio-8-128256"),
}  # fmt: skip
"""By part, what is compiled by default."""


def cases() -> Iterator[AotCase]:
    """Every variant of the kernels of this family."""
    for arch in TARGETS:
        launch_pdl = arch in PDL_ARCHITECTURES
        for vocab in VOCABULARIES:
            yield from _sample_cases(arch, vocab, launch_pdl)
            words = _arguments(EDIT_LOGITS, vocab)
            sizes = {"BLOCK": edit_logits.BLOCK, "USE_PDL": launch_pdl}
            yield _case(arch, f"edit_logits-{vocab}", edit_logits, "_edit_logits", words, sizes)
            sizes = kept.constexprs(launch_pdl)
            yield _case(arch, f"find_kept-{vocab}", kept, "_find_kept", _arguments(FIND_KEPT, vocab), sizes)
            yield from _ratio_cases(arch, vocab, launch_pdl)
        for vocab in sorted({size["vocab"] for size in SHAPES.values()}):
            yield from _logprobs_cases(arch, vocab, launch_pdl)
        for vocab in (*VOCABULARIES, DRAFT_VOCABULARY):
            yield from _draft_cases(arch, vocab, launch_pdl)


def _sample_cases(arch: str, vocab: int, launch_pdl: bool) -> Iterator[AotCase]:
    sizes = {"BLOCK": sample.BLOCK, "USE_PDL": launch_pdl}
    bests = {"best_ptr": "*fp32", "token_ptr": "*i32", "logits_ptr": "*fp32", **REQUEST}
    for name, has_kept in (("sample-kept", True), ("sample-all", False)):
        kept_set = {"threshold_ptr": "*fp32", "first_tie_ptr": "*i32"} if has_kept else {}
        arguments = {**bests, "threshold_ptr": None, "first_tie_ptr": None, **kept_set, "vocab": vocab}
        yield _case(arch, f"{name}-{vocab}", sample, "_sample", arguments, sizes)


def _ratio_cases(arch: str, vocab: int, launch_pdl: bool) -> Iterator[AotCase]:
    """A small tree over the target's own tokens, the largest tree over fewer."""
    same = _arguments(ACCEPT_RATIO, vocab) | {"draft_index_ptr": None}
    fewer = _arguments(ACCEPT_RATIO, vocab) | {"draft_vocab": DRAFT_VOCABULARY}
    for nodes, arguments in ((8, same), (MAX_NODES, fewer)):
        sizes = accept_ratio.constexprs(nodes, launch_pdl)
        yield _case(arch, f"accept_ratio-{nodes}-{vocab}", accept_ratio, "_accept_ratio", arguments, sizes)


def _logprobs_cases(arch: str, vocab: int, launch_pdl: bool) -> Iterator[AotCase]:
    arguments = _arguments(TOKEN_LOGPROBS, vocab)
    sizes = logprobs.constexprs(vocab, MAX_LOGPROBS, launch_pdl)
    yield _case(arch, f"token_logprobs-path-{vocab}", logprobs, "_token_logprobs", arguments, sizes)
    if vocab in VOCABULARIES:
        arguments |= {"num_out_ptr": None, "path_ptr": None}
        yield _case(arch, f"token_logprobs-all-{vocab}", logprobs, "_token_logprobs", arguments, sizes)


def _draft_cases(arch: str, vocab: int, launch_pdl: bool) -> Iterator[AotCase]:
    """Tokens are the draft's own where it knows fewer than the target."""
    whole = {} if vocab == DRAFT_VOCABULARY else {"token_ids_ptr": None}
    for most in (1, TREE_WIDTH):
        sizes = top_tokens.constexprs(vocab, most, launch_pdl)
        arguments = _arguments(TOP_TOKENS, vocab) | whole
        yield _case(arch, f"top_tokens-{most}-{vocab}", top_tokens, "_top_tokens", arguments, sizes)
    sizes = {"BLOCK": draw_draft.BLOCK, "USE_PDL": launch_pdl}
    yield _case(
        arch, f"draw_blocks-{vocab}", draw_draft, "_draw_blocks", _arguments(DRAW_BLOCKS, vocab), sizes
    )
    arguments, sizes = _arguments(WRITE_LAW, vocab) | whole, draw_draft.law_constexprs(vocab, launch_pdl)
    yield _case(arch, f"write_law-{vocab}", draw_draft, "_write_law", arguments, sizes)


def _arguments(line: str, vocab: int) -> dict[str, str | int | None]:
    """Types by name; `vocab`, which has none, is a number."""
    pairs = (word.partition(":") for word in line.split())
    return {name: kind or vocab for name, _, kind in pairs}


def _case(
    arch: str, name: str, module: Any, kernel: str, arguments: dict[str, Any], constexprs: dict[str, Any]
) -> AotCase:
    pdl = {"launch_pdl": True} if constexprs["USE_PDL"] else {}
    options = {"num_warps": module.NUM_WARPS, "enable_fp_fusion": False, **pdl}
    is_representative = name in REPRESENTATIVE.get(arch, ())
    return AotCase(
        name, arch, getattr(module, kernel), arguments, constexprs, options, False, is_representative
    )
