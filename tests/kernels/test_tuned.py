"""Which configuration a kernel runs with: what was found for its shape, else a default that is always legal.

Run: pytest tests/kernels/test_tuned.py
"""

from dataclasses import replace
from itertools import product

import pytest

from tspec.core.dtypes import DType
from tspec.core.errors import ConfigError
from tspec.kernels.cuda.store import DTYPES, open_store, read_table
from tspec.kernels.cuda.tuned import (
    ARCHITECTURES,
    AttentionTuned,
    Tuned,
    architecture_of,
    can_launch_early,
    default_attention_tuned,
    default_tuned,
)
from tspec.kernels.cuda.tuned_checks import check_attention, check_product
from tspec.kernels.tuned_ops import PRODUCT_OPS
from tspec.kernels.tuned_store import FOLDER_VARIABLE

DEVICE, ARCH, BF16 = "NVIDIA H200", "sm_90", DType.BFLOAT16
FOUND = Tuned(64, 64, 2, 4, 6)
FOUND_HEAD = Tuned(128, 64, 1, 4, 4)
ATTENTION = AttentionTuned(chunk_tiles=8, row_tile=32, num_warps=8, num_stages=2)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """What the next process reads of three entries."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    store = open_store(DEVICE, ARCH)
    store.put("linear_add", BF16.value, FOUND, n=4096, k=4096)
    store.put("head", BF16.value, FOUND_HEAD, n=128256, k=4096)
    store.put("rope_attention", BF16.value, ATTENTION, num_heads=32, num_kv_heads=8, head_dim=128)
    return read_table(DEVICE, ARCH)


def test_a_table_takes_what_was_found_and_the_defaults_for_everything_else(table):
    assert table.for_product("linear_add", 4096, 4096, BF16, ARCH) == FOUND
    for other in (("linear", 4096, 4096, BF16), ("linear_add", 4096, 4096, DType.FLOAT16)):
        assert table.for_product(*other, ARCH) == default_tuned(*other, ARCH)
    heads = {
        table.for_product(kernel, 128256, 4096, BF16, ARCH)
        for kernel in ("head_sample", "norm_head_sample", "head_logits", "norm_head_logits")
    }
    assert heads == {FOUND_HEAD}, "logits have one order of summation, whatever reads them"


def test_attention_has_the_found_numbers_in_the_least_row_tile_that_holds_the_nodes(table):
    tiles = {nodes: table.for_attention(32, 8, 128, BF16, nodes, ARCH) for nodes in (1, 4, 5, 8, 16, 64)}
    assert [each.row_tile for each in tiles.values()] == [16, 16, 32, 32, 32, 32]
    assert {replace(each, row_tile=32) for each in tiles.values()} == {ATTENTION}
    for nodes in (1, 64):
        found = table.for_attention(32, 4, 128, BF16, nodes, ARCH)
        assert found == default_attention_tuned(128, 8 * nodes, BF16, ARCH)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_default_is_a_legal_configuration(arch):
    sizes = (64, 576, 900, 1000, 2048, 4096, 14336)
    for op, dtype, n, k in product(PRODUCT_OPS, map(DType, DTYPES), (*sizes, 128256), (36, 500, *sizes)):
        check_product(op, n, k, dtype, arch, default_tuned(op, n, k, dtype, arch))
    for dtype, head_dim, rows in product(map(DType, DTYPES), (16, 64, 80, 96, 128, 256), (1, 64)):
        if (dtype, head_dim) != (DType.FLOAT32, 256) or ARCHITECTURES[arch].shared_bytes > 200 * 1024:
            tuned = default_attention_tuned(head_dim, rows, dtype, arch)
            check_attention("rope_attention", head_dim, dtype, arch, tuned)


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        *(("sm_80", "sm_80"), ("sm_86", "sm_80"), ("sm_89", "sm_80"), ("sm_90a", "sm_90")),
        *(("sm_103", "sm_100"), ("sm_120", "sm_80"), ("sm_121", "sm_80"), ("gfx942", "gfx942")),
    ],
)
def test_a_part_takes_the_defaults_of_the_newest_one_that_it_can_do_all_of(name, known_as):
    assert architecture_of(name) == known_as


@pytest.mark.parametrize("name", ["sm_75", "gfx90a", "cpu", "sm_"])
def test_a_part_that_no_kernel_is_compiled_for_is_an_error(name):
    with pytest.raises(ConfigError, match=f"device: got {name}, need sm_80 or newer"):
        architecture_of(name)


def test_launches_start_early_from_compute_capability_9_on():
    assert [can_launch_early(name) for name in ("sm_80", "sm_89", "gfx942")] == [False] * 3
    assert [can_launch_early(name) for name in ("sm_90", "sm_100", "sm_120")] == [True] * 3
