"""A tiny target, and what can propose for it."""

from pathlib import Path

import pytest
from support.checkpoints import edit_json

from autotune.policy_run import Job
from tspec.build import BuildOptions
from tspec.core.speculative_config import SpeculativeConfig

PROMPTS = (
    "abcabcabcabcab",
    "the cat and the dog and the cat and",
    "0101010101",
    "once upon a time, once upon a",
)
MAX_TOKENS = 24


@pytest.fixture(scope="session")
def proposer_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders: target, copy (a draft model that is right about everything), other (one of its own), eagle, medusa."""
    from support.head_checkpoints import write_authors, write_medusa  # slow: not for every test
    from support.tiny_heads import tiny_eagle, tiny_medusa
    from support.tiny_models import EOS, byte_tokenizer, tiny_checkpoint

    from tspec.build import load_config

    root = tmp_path_factory.mktemp("proposers")
    for name, layers, seed in (("target", 3, 0), ("copy", 3, 0), ("other", 1, 1)):
        tiny_checkpoint(root / name, "llama", layers=layers, vocab=EOS + 2, seed=seed)
        byte_tokenizer(root / name)
        edit_json(root / name / "config.json", eos_token_id=EOS)
    target = load_config(root / "target")
    write_authors(root / "eagle", tiny_eagle(target, 3, aux=(0, 1, 2)))
    write_medusa(root / "medusa", tiny_medusa(target))
    return root


@pytest.fixture
def job(proposer_folders: Path) -> Job:
    """What is asked of a policy for the tiny target, without models."""
    options = BuildOptions(num_threads=1, kv_cache_mib=32, max_num_seqs=2)
    models: tuple[SpeculativeConfig, ...] = ()
    return Job(
        proposer_folders / "target", models, PROMPTS, MAX_TOKENS, options, lambda what, done, total: None
    )
