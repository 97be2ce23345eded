"""The same prompt in several engines, a few tokens each in turn: what slows the machine for a while slows all alike."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tspec import LLM, SamplingParams
from tspec.llm import Result
from tspec.requests.handle import RequestHandle

TOKENS_A_TURN = 8
"""Tokens that an engine says before the next one goes on: about a tenth of a second."""

REST_S = 0.01
"""Between turns: the idle worker of the last engine yields the CPU for some milliseconds before it sleeps."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What an engine said, and the seconds of its steps after the one that gave the first token."""

    result: Result
    decode_s: float

    @property
    def num_decoded(self) -> int:
        """Tokens after the first one, which prefill gives."""
        return len(self.result.token_ids) - 1


@dataclass(slots=True)
class _Way:
    llm: LLM
    handle: RequestHandle
    decode_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        return len(self.handle.sequence.output_ids)

    def turn(self) -> None:
        """Step until there are TOKENS_A_TURN tokens more, or no more come."""
        enough = self.num_tokens + TOKENS_A_TURN
        while not self.handle.is_finished and self.num_tokens < enough:
            is_decoding = self.num_tokens > 0
            start_s = time.perf_counter()
            self.llm.step()
            if is_decoding:
                self.decode_s += time.perf_counter() - start_s


def decode_side_by_side(
    engines: Mapping[str, LLM], prompt: Sequence[int], params: SamplingParams
) -> dict[str, Timed]:
    """Decode a prompt in each engine; whoever is behind in the text is next. Returns results by the engines' names."""
    ways = {name: _Way(llm, llm.add_request(list(prompt), params)) for name, llm in engines.items()}
    while left := [way for way in ways.values() if not way.handle.is_finished]:
        min(left, key=lambda way: way.num_tokens).turn()
        time.sleep(REST_S)
    return {name: Timed(way.handle.finished_result(), way.decode_s) for name, way in ways.items()}
