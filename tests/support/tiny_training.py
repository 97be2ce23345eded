"""What tests of training share: a target that says things a head can learn, prompts for it, settings for seconds.

What a random model says after its prompt is chaos, which no head of one layer foresees.
"""

import json
from pathlib import Path
from typing import Any

FIRST, COUNT = 32, 64
PROMPTS = tuple(
    chr(FIRST + 1 + number) * (1 + number % 3) + chr(FIRST + 7 * number % COUNT) for number in range(40)
)


def learnable_checkpoint(folder: Path, sureness: float = 0.5, layers: int = 2) -> Path:
    """A llama with the byte tokenizer whose next token depends on the newest one alone.

    The tokens 32 to 95 follow each other in one long circle, in no order that anyone would guess. With less `sureness`
    others are drawn, too. What layers between the first and the last do counts.
    """
    import torch
    from support.tiny_models import EOS, byte_tokenizer, tiny_checkpoint

    model = tiny_checkpoint(folder, "llama", layers=layers, vocab=EOS + 2)
    circle = (FIRST + torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))).tolist()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
        for layer in (model.model.layers[0], model.model.layers[-1]):
            layer.mlp.down_proj.weight.zero_()
        for layer in model.model.layers[1:-1]:
            layer.mlp.down_proj.weight *= 4
        model.lm_head.weight.zero_()
        reads = model.model.embed_tokens.weight
        if layers > 2:
            reads = torch.zeros_like(reads)
            reads[circle] = model.model(torch.tensor(circle)[:, None]).last_hidden_state[:, 0]
        for token, after in zip(circle, circle[1:] + circle[:1], strict=True):
            model.lm_head.weight[after] = sureness * reads[token]
    model.save_pretrained(folder)
    byte_tokenizer(folder)
    return folder


def tiny_settings(**changes: Any) -> Any:
    """Settings for a head that is trained in a few seconds."""
    from tspec.training.settings import TrainSettings

    settings = {
        "num_tokens": 1000,
        "max_answer_tokens": 40,
        "num_epochs": 2,
        "vocab_size": 62,
        "batch_tokens": 128,
        "learning_rate": 1e-2,
    }
    return TrainSettings(**settings | changes)


def tiny_draft_settings(**changes: Any) -> Any:
    """Settings for a draft model that is trained in a few seconds."""
    from tspec.training.settings import DraftSettings

    settings = {
        "num_tokens": 1000,
        "max_answer_tokens": 40,
        "num_epochs": 2,
        "batch_tokens": 128,
        "learning_rate": 1e-2,
        "num_layers": 1,
    }
    return DraftSettings(**settings | changes)


def write_prompts(file: Path) -> Path:
    """PROMPTS as the command line reads them."""
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return file


def files_of(folder: Path) -> dict[str, bytes]:
    """Contents of the files of a folder by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}
