"""Whether a draft model speaks the target's tokens: the same text for the same id, padding apart.

Model vocabularies are padded differently (151,936 rows against 152,064 for one tokenizer), so sizes may differ; texts
may not. Reads `tokenizer.json` of both folders as data, and tokenizes nothing.
"""

from pathlib import Path
from typing import Any

from tspec.checkpoint.json_object import read_object, shown
from tspec.core.errors import CheckpointError

TOKENIZER_FILE = "tokenizer.json"
_MAX_SHOWN = 3


def check_vocabularies(target_folder: Path, draft_folder: Path, target_vocab: int, draft_vocab: int) -> None:
    """Raise CheckpointError unless every id that both models have means the same text.

    target_vocab, draft_vocab  rows of the models; an id beyond either one is not compared
    An id that only one of the tokenizers knows is padding to the other, and passes. Folders that both have no
    tokenizer.json pass where the sizes are equal.
    Errors  names the first ids that differ and both of their texts
    """
    folders = {"target": Path(target_folder), "draft": Path(draft_folder)}
    has_file = {name: (folder / TOKENIZER_FILE).exists() for name, folder in folders.items()}
    if not any(has_file.values()) and target_vocab == draft_vocab:
        return
    for name, folder in folders.items():
        if not has_file[name]:
            raise CheckpointError(
                f"{folder / TOKENIZER_FILE} of the {name} model",
                got="no such file",
                need="it, to compare the draft model's tokens with the target's",
                fix="Copy it from the model's repository.",
            )
    ours, theirs = (_texts(folder / TOKENIZER_FILE) for folder in folders.values())
    shared = min(target_vocab, draft_vocab)
    bad = sorted(token for token, text in theirs.items() if token < shared and ours.get(token, text) != text)
    if bad:
        first = "; ".join(f"{token} is {theirs[token]!r}, not {ours[token]!r}" for token in bad[:_MAX_SHOWN])
        raise CheckpointError(
            f"tokens of the draft model {folders['draft']}",
            got=f"{len(bad)} other than the target's: {first}{'; …' if len(bad) > _MAX_SHOWN else ''}",
            need=f"the texts that {folders['target'] / TOKENIZER_FILE} has for the same ids",
            fix="Use a draft model of the target's family.",
        )


def _texts(file: Path) -> dict[int, str]:
    """Text of each id. Errors: CheckpointError for a file that is not a tokenizers file."""
    data = read_object(file)
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    pairs: list[tuple[Any, Any]]
    if isinstance(vocabulary, dict):
        pairs = [(token, text) for text, token in vocabulary.items()]
    elif isinstance(vocabulary, list):  # Unigram: texts and scores, in the order of their ids
        pairs = [
            (token, each[0] if isinstance(each, list) and each else None)
            for token, each in enumerate(vocabulary)
        ]
    else:
        raise _bad(file, "model.vocab", vocabulary, "tokens and their ids")
    added = data.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(each, dict) for each in added):
        raise _bad(file, "added_tokens", added, "a list of tokens")
    pairs += [(each.get("id"), each.get("content")) for each in added]
    for token, text in pairs:
        if type(token) is not int or token < 0 or not isinstance(text, str):
            raise _bad(file, "token", [text, token], "a text and an id of at least 0")
    return dict(pairs)


def _bad(file: Path, what: str, got: object, need: str) -> CheckpointError:
    fix = "Copy the file from the model's repository again."
    return CheckpointError(f"{file}: {what}", got=shown(got), need=need, fix=fix)
