"""A checkpoint's tokenizer: text to ids and back, and its chat template."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tspec.core.decode_rules import DecodeRules, read_decode_rules
from tspec.core.errors import CheckpointError, ConfigError

Message = Mapping[str, str]


class TextCodec:
    """Encodes and decodes by `tokenizer.json`; renders chats by the checkpoint's template.

    vocab_size   ids of the model, of which the tokenizer may leave some unused
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with the special tokens that the tokenizer adds by itself."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def encode_piece(self, text: str) -> list[int]:
        """Ids of a text alone, as it may stand inside another one: no special tokens are added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def forbidden_sequences(self, text: str) -> list[tuple[int, ...]]:
        """Token sequences that forbid a bad word: that of the word, and that of a space and the word.

        The second is left out where it is longer, since it then ends in the first one, or begins with the same token.
        White space before the word is dropped. The word may still be said in other pieces than the tokenizer's own.

        Errors   ConfigError for a text that has no tokens
        Source   vLLM, `SamplingParams.update_from_tokenizer`
        """
        bare = text.lstrip() or text
        ids, spaced = tuple(self.encode_piece(bare)), tuple(self.encode_piece(f" {bare}"))
        if not ids:
            raise ConfigError("bad_words", got=repr(text), need="texts that have tokens", fix="Leave it out.")
        is_other = len(spaced) == len(ids) and spaced[0] != ids[0]
        return [ids, spaced] if is_other else [ids]

    def to_json(self) -> str:
        """The tokenizer as the text of a `tokenizer.json`."""
        text: str = self._tokenizer.to_str()
        return text

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    @cached_property
    def decode_rules(self) -> DecodeRules:
        """What `decode` does with each token, for text that is decoded as tokens come."""
        decoder = self._tokenizer.decoder
        added = self._tokenizer.get_added_tokens_decoder()
        return read_decode_rules(
            None if decoder is None else json.loads(decoder.__getstate__()),
            self._tokenizer.id_to_token,
            {token for token, each in added.items() if each.special},
        )

    @cached_property
    def _template(self) -> Any:
        """transformers' tokenizer, which takes about half a second to make."""
        from transformers import PreTrainedTokenizerFast  # slow to import, and only chats need it

        return PreTrainedTokenizerFast.from_pretrained(self._folder, local_files_only=True)

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
        return self.encode_piece(text)  # the template writes the special tokens itself

    def around_user_turn(self) -> tuple[list[int], list[int]] | None:
        """Ids that the template writes before what a user says first, and those after it.

        None without a template, and for one that writes another thing than what was said.
        Errors   as `encode_chat`
        """
        content = "what-the-user-says"
        text = self._render_chat([{"role": "user", "content": content}])
        if text is None or content not in text:
            return None
        before, _, after = text.partition(content)
        return self.encode_piece(before), self.encode_piece(after)

    def _render_chat(self, messages: Sequence[Message]) -> str | None:
        """Text of a chat, None without a template."""
        try:
            template = self._template
            if not template.chat_template:
                return None
            return str(
                template.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
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
    return TextCodec(folder, tokenizer, vocab_size)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
