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


def learnable_checkpoint(folder: Path, sureness: float = 0.5) -> Path:
    """A llama of two layers with the byte tokenizer whose next token depends on the newest one alone.

    The tokens 32 to 95 follow each other in one long circle, in no order that anyone would guess. With less `sureness`
    others are drawn, too.
    """
    import torch
    from support.tiny_models import EOS, byte_tokenizer, tiny_checkpoint

    model = tiny_checkpoint(folder, "llama", vocab=EOS + 2)
    circle = (FIRST + torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))).tolist()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        model.lm_head.weight.zero_()
        for token, after in zip(circle, circle[1:] + circle[:1], strict=True):
            model.lm_head.weight[after] = sureness * model.model.embed_tokens.weight[token]
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


def write_prompts(file: Path) -> Path:
    """PROMPTS as the command line reads them."""
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return file


def files_of(folder: Path) -> dict[str, bytes]:
    """Contents of the files of a folder by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}
