"""A checkpoint's tokenizer: text to ids and back, and its chat template."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from tspec.core.errors import CheckpointError, ConfigError

Message = Mapping[str, str]


class TextCodec:
    """Encodes and decodes by `tokenizer.json`; renders chats by the checkpoint's template."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self._folder = folder
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with the special tokens that the tokenizer adds by itself."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a chat up to the point where the model has to answer.

        Errors   ConfigError when the checkpoint has no chat template; CheckpointError when it has one that
                 cannot be read, or that refuses these messages
        """
        text = self._render_chat(messages)
        if text is None:
            raise ConfigError(
                f"{self._folder}: chat template",
                got="none",
                need="chat_template.jinja, or chat_template in tokenizer_config.json",
                fix="Give plain prompts to this model.",
            )
        # The template writes the special tokens itself.
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _render_chat(self, messages: Sequence[Message]) -> str | None:
        """Text of a chat, None without a template."""
        from transformers import PreTrainedTokenizerFast  # slow to import, and only chats need it

        try:
            hf_tokenizer = PreTrainedTokenizerFast.from_pretrained(self._folder, local_files_only=True)
            if not hf_tokenizer.chat_template:
                return None
            return str(
                hf_tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
            )
        except Exception as error:  # a template is code of the checkpoint, and may raise whatever it likes
            raise CheckpointError(
                f"{self._folder}: chat template",
                got=_first_line(error),
                need="a template that renders these messages",
                fix="Correct it or tokenizer_config.json, or give a plain prompt.",
            ) from error


def load_codec(folder: Path, vocab_size: int) -> TextCodec:
    """Load the tokenizer beside the weights.

    Errors   CheckpointError when there is none, it cannot be read, or it has ids that the model has not
    """
    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the tokenizers library raises bare Exception for all that can be wrong
        raise CheckpointError(
            str(file),
            got=_first_line(error),
            need="a tokenizers file",
            fix="Copy it from the model's repository.",
        ) from error
    tokenizer.no_truncation()  # a prompt is never cut or filled up silently, whatever the file was saved with
    tokenizer.no_padding()
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= vocab_size:
        raise CheckpointError(
            f"{file}: largest token id",
            got=largest,
            need=f"less than {vocab_size}, the model's vocab_size",
            fix="Use the tokenizer that belongs to this checkpoint.",
        )
    return TextCodec(folder, tokenizer)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
