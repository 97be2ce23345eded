"""Texts of the target itself, which a proposer is trained on: prompts answered by the batched engine, kept on disk.

The file grows by whole lines, so a killed run goes on where it was. Texts are numbered: number n answers prompt n, and
after the last one a prompt that the target makes up, drawn with the number as the seed. Which texts count is decided by
number and not by who ended first, so the same prompts give the same data however often the run was interrupted.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tspec.core.errors import ConfigError
from tspec.core.rope import context_limit
from tspec.core.sampling_params import SamplingParams
from tspec.requests.handle import RequestHandle, Result
from tspec.training.own_prompts import OwnPrompts

if TYPE_CHECKING:
    from tspec.build import Progress
    from tspec.llm import LLM

MAX_PROMPT_TOKENS = 768
"""Prompts that are longer are left out: they cost as much as several others, and teach no more."""

NUM_AT_A_TIME = 64
"""Sequences that the engine decodes at a time: `max_num_seqs` of the LLM that answers."""


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what the target answered, as token ids; `answer` has the token that ended it."""

    number: int
    prompt: list[int]
    answer: list[int]


def encode_prompts(llm: "LLM", prompts: Sequence[str], max_answer_tokens: int) -> list[list[int]]:
    """Ids of prompts through the chat template, or as they are where there is none; too long ones are left out.

    Errors    ConfigError where no prompt is left
    """
    most = _max_prompt_tokens(llm, max_answer_tokens)
    encoded = [each for each in map(_encoder(llm), prompts) if 0 < len(each) <= most]
    if not encoded:
        raise ConfigError(
            "prompts", got=f"{len(prompts)}, all empty or too long", need=f"one of 1 to {most} tokens",
            fix="Give shorter prompts.",
        )  # fmt: skip
    return encoded


def generate_texts(
    llm: "LLM",
    prompts: Sequence[Sequence[int]],
    file: Path,
    *,
    num_tokens: int,
    max_answer_tokens: int,
    on_progress: "Progress",
) -> list[Text]:
    """Answer prompts until the texts from number 0 on hold `num_tokens` tokens of answers; returns these texts.

    Answers to the given prompts, and to those that the target makes up after the last one, are greedy. Of a target
    without a chat template, and where it makes up none, the given ones come again, and answers are sampled with the
    text's number as the seed.
    Texts that `file` has already are taken from it, and new ones are added as they end.
    """
    texts = {text.number: text for text in read_texts(file)}
    with file.open("a", encoding="utf-8") as out:
        own = OwnPrompts(llm, _max_prompt_tokens(llm, max_answer_tokens))
        _Answers(llm, prompts, own, texts, max_answer_tokens, out).run(num_tokens, on_progress)
    return first_texts(texts.values(), num_tokens)


def read_texts(file: Path) -> list[Text]:
    """The texts of a file in the order of their numbers; none where there is no file. A torn last line is cut off.

    Errors    ConfigError for a line that is no text
    """
    if not file.exists():
        return []
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        with file.open("r+b") as out:
            out.truncate(len(whole))
    texts = {}
    for row, line in enumerate(whole.splitlines(), start=1):
        text = _read_line(line, f"{file}, line {row}")
        texts[text.number] = text
    return [texts[number] for number in sorted(texts)]


def _read_line(line: bytes, where: str) -> Text:
    try:
        return Text(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            where, got=repr(line[:40]), need="a text as this run writes them", fix="Delete the line."
        ) from error


def first_texts(texts: Iterable[Text], num_tokens: int) -> list[Text]:
    """The texts from number 0 on, without a gap, that hold `num_tokens` tokens of answers; fewer if there are fewer."""
    by_number = {text.number: text for text in texts}
    first: list[Text] = []
    total = 0
    while total < num_tokens and len(first) in by_number:
        first.append(by_number[len(first)])
        total += len(first[-1].answer)
    return first


class _Answers:
    """Requests in flight, twice as many as the engine decodes at a time, and what came of them."""

    def __init__(
        self,
        llm: "LLM",
        prompts: Sequence[Sequence[int]],
        own: OwnPrompts,
        texts: dict[int, Text],
        max_answer_tokens: int,
        out: TextIO,
    ) -> None:
        self._llm, self._prompts, self._own, self._texts, self._out = llm, prompts, own, texts, out
        self._max_answer_tokens = max_answer_tokens
        self._in_flight: dict[RequestHandle, int] = {}
        self._turns: set[RequestHandle] = set()  # those in flight which make up a prompt
        self._next_number = 0
        self._next_of_first = 0
        self._num_of_first = 0  # tokens of the texts from 0 on without a gap

    def run(self, num_tokens: int, on_progress: "Progress") -> None:
        """Step until there is enough."""
        try:
            while True:
                self._count_first()
                total = sum(len(text.answer) for text in self._texts.values())
                on_progress("tokens of the target", min(total, num_tokens), num_tokens)
                if self._num_of_first >= num_tokens:
                    return
                # With enough tokens in all, what is in flight fills the gaps.
                if total < num_tokens or not self._in_flight:
                    self._add()
                self._step()
        finally:
            for handle in self._in_flight:
                self._llm.abort(handle)

    def _count_first(self) -> None:
        while self._next_of_first in self._texts:
            self._num_of_first += len(self._texts[self._next_of_first].answer)
            self._next_of_first += 1

    def _add(self) -> None:
        while len(self._in_flight) < 2 * NUM_AT_A_TIME:
            number = self._next_number
            self._next_number += 1
            if number in self._texts:
                continue
            if number < len(self._prompts):
                self._answer(number, self._prompts[number])
            elif self._own.opening is None:
                self._answer_again(number)
            else:
                handle = self._llm.add_request(self._own.opening, self._own.params(number))
                self._in_flight[handle] = number
                self._turns.add(handle)

    def _answer(self, number: int, prompt: Sequence[int], **sampled: float) -> None:
        params = SamplingParams(max_tokens=self._max_answer_tokens, **sampled)  # type: ignore[arg-type]
        self._in_flight[self._llm.add_request(list(prompt), params)] = number

    def _answer_again(self, number: int) -> None:
        """Sample another answer to one of the given prompts."""
        self._answer(number, self._prompts[number % len(self._prompts)], temperature=1.0, seed=number)

    def _step(self) -> None:
        """Step until at least one request has ended, and write those down."""
        ended: list[RequestHandle] = []
        while not ended:
            ended = [each for each in self._llm.step() if each.is_finished and each in self._in_flight]
        for handle in ended:
            result, number = handle.finished_result(), self._in_flight.pop(handle)
            if handle in self._turns:
                self._turns.remove(handle)
                self._answer_turn(number, result)
                continue
            text = Text(number, result.prompt_token_ids, result.token_ids)
            self._texts[number] = text
            self._out.write(json.dumps(asdict(text)) + "\n")
        self._out.flush()

    def _answer_turn(self, number: int, turn: Result) -> None:
        prompt = self._own.prompt(turn)
        if prompt is None:
            self._answer_again(number)
        else:
            self._answer(number, prompt)


def _max_prompt_tokens(llm: "LLM", max_answer_tokens: int) -> int:
    return min(MAX_PROMPT_TOKENS, context_limit(llm.config) - max_answer_tokens)


def _encoder(llm: "LLM") -> Callable[[str], list[int]]:
    """What makes ids of a prompt."""

    def chat(prompt: str) -> list[int]:
        return llm.encode_chat([{"role": "user", "content": prompt}])

    try:
        chat("")
    except ConfigError:  # no template
        return llm.tokenizer.encode
    return chat
