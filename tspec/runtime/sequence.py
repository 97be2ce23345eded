"""One request on its way: its tokens, its place in the KV cache, and where it ends."""

import time
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from tspec.core.sampling import NO_TOKEN, TokenLogprobs
from tspec.core.sampling_params import SamplingParams
from tspec.runtime.kv_blocks import BlockTable
from tspec.runtime.request_tables import RequestTables
from tspec.runtime.speed_up import RoundTimes
from tspec.runtime.text import OutputText


class FinishReason(Enum):
    """Why a sequence ended: at a stop token, at max_tokens or the context limit, dropped by the user, or in error."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True)
class SequenceStats:
    """What decoding one sequence took. Counts of candidates are those of verify passes, none of prefill.

    num_prefilled  tokens that prefill computed, those that were lost to preemption again
    num_reused     tokens that needed no pass, since other requests had computed them; after the end
    rounds         what rounds with candidates took, and the speed-up that follows
    """

    num_prefilled: int = 0
    num_reused: int = 0
    num_passes: int = 0
    num_emitted: int = 0
    num_from_prefill: int = 0
    num_preemptions: int = 0
    num_drafts: int = 0
    num_candidates: int = 0
    num_accepted: int = 0
    candidates_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    rounds: RoundTimes = field(default_factory=RoundTimes)
    start_s: float = field(default_factory=time.perf_counter)
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    end_s: float | None = None

    @property
    def tokens_per_pass(self) -> float | None:
        """Mean num_emitted a verify pass, bonus included; a first token that prefill gave is left out."""
        return (self.num_emitted - self.num_from_prefill) / self.num_passes if self.num_passes else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted candidates over all candidates, None before the first."""
        return self.num_accepted / self.num_candidates if self.num_candidates else None

    @property
    def time_to_first_token_s(self) -> float | None:
        """Seconds from the request to its first token."""
        return None if self.first_token_s is None else self.first_token_s - self.start_s

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last."""
        return 0.0 if self.first_token_s is None or self.end_s is None else self.end_s - self.first_token_s

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed after the first token, None for a text of one token."""
        return (self.num_emitted - 1) / self.decode_s if self.num_emitted > 1 and self.decode_s > 0 else None

    @property
    def time_per_token_s(self) -> float | None:
        """Mean seconds a token after the first, None for a text of one token."""
        return self.decode_s / (self.num_emitted - 1) if self.num_emitted > 1 and self.end_s else None

    @property
    def e2e_s(self) -> float | None:
        """Seconds from the request to its end."""
        return None if self.end_s is None else self.end_s - self.start_s

    @property
    def queue_s(self) -> float | None:
        """Seconds from the request to its first slot."""
        return None if self.admitted_s is None else self.admitted_s - self.start_s

    def mark_admitted(self) -> None:
        """Note when the sequence got a slot, the first time."""
        if self.admitted_s is None:
            self.admitted_s = time.perf_counter()

    def add_tokens(self, num_emitted: int, now_s: float) -> None:
        """Count tokens that came together."""
        if num_emitted == 0:
            return
        self.num_emitted += num_emitted
        self.last_token_s = now_s
        if self.first_token_s is None:
            self.first_token_s = now_s

    def add_pass(self, num_candidates: int, num_accepted: int, depth: int | None = None) -> None:
        """Count one verify pass of this sequence: a chain, or a tree whose deepest node is at `depth`."""
        depth = num_candidates if depth is None else depth
        self.num_passes += 1
        self.num_drafts += num_candidates > 0
        self.num_candidates += num_candidates
        self.num_accepted += num_accepted
        for counts, reached in (
            (self.candidates_by_position, depth),
            (self.accepted_by_position, num_accepted),
        ):
            counts.extend([0] * (depth - len(counts)))
            for position in range(reached):
                counts[position] += 1


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in the engine. `tokens` are prompt and output; all but the root have committed KV once decoding.

    text   the output's text, where a stop string may end it
    """

    prompt: np.ndarray
    params: SamplingParams
    stop_ids: frozenset[int]
    max_length: int
    tokens: list[int]
    tables: RequestTables
    text: OutputText | None = None
    priority: int = 0
    arrival: int = 0
    slot: int = -1
    table: BlockTable | None = None
    prefix_len: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    stats: SequenceStats = field(default_factory=SequenceStats)

    @property
    def num_output(self) -> int:
        """Tokens emitted so far."""
        return len(self.tokens) - len(self.prompt)

    @property
    def output_ids(self) -> list[int]:
        """The tokens emitted so far."""
        return self.output_from(0)

    def output_from(self, start: int) -> list[int]:
        """The tokens emitted after the first `start`."""
        return self.tokens[len(self.prompt) + start :]

    @property
    def is_scored(self) -> bool:
        """Whether the passes of its prompt give log-probabilities: then the prompt's last token is decoded after."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.prompt) - 1

    @property
    def gives_token(self) -> bool:
        """Whether the last chunk of prefill gives the first token.

        Else the newest token is left to be the root of the next verify pass: of a text that has output already, since
        it was preempted, and of a prompt whose log-probabilities are asked for.
        """
        return self.num_output == 0 and self.params.prompt_logprobs is None

    @property
    def may_reuse(self) -> bool:
        """Whether keys and values that others computed will do: not where each place of the prompt is scored."""
        return not self.is_scored

    @property
    def num_prefilled(self) -> int:
        """Tokens that prefill takes."""
        return len(self.tokens) - (not self.gives_token)

    @property
    def is_prefilling(self) -> bool:
        """Whether the prompt has tokens left that are not in the KV cache."""
        return self.prefix_len < self.num_prefilled

    @property
    def num_remaining(self) -> int:
        """Most tokens that may still be emitted."""
        return self.max_length - len(self.tokens)

    @property
    def stop_reason(self) -> int | str | None:
        """The stop string, or the id of stop_token_ids, that ended the text; None for an end-of-sequence id."""
        if self.finish_reason is not FinishReason.STOP:
            return None
        if self.text is not None and self.text.stop is not None:
            return self.text.stop
        return self.tokens[-1] if self.tokens[-1] in self.params.stop_token_ids else None

    def fail(self, error: str) -> None:
        """End the sequence with an error."""
        self.error = error
        self.end(FinishReason.ERROR)

    def end(self, reason: FinishReason) -> None:
        """End the sequence now."""
        self.finish_reason = reason
        self.stats.end_s = time.perf_counter()

    def commit(self, tokens: TokenSequence[int]) -> int:
        """Append tokens one by one, each through the checks of plain decoding; returns how many were emitted.

        What comes after the first stop is dropped: a run of accepted candidates ends where plain decoding ends.
        NO_TOKEN ends the sequence with an error of its own.
        """
        now = time.perf_counter()
        emitted = []
        for token in tokens:
            if token == NO_TOKEN:
                self.finish_reason = FinishReason.ERROR
                break
            self.tokens.append(int(token))
            emitted.append(int(token))
            self.finish_reason = self._end_with(int(token))
            if self.finish_reason is not None:
                break
        self.tables.commit(emitted)
        if self.finish_reason is FinishReason.ERROR and self.error is None:
            self.error = self.tables.why_no_token(self.tokens, self.num_output)
        self.stats.add_tokens(len(emitted), now)
        if self.finish_reason is not None:
            self.stats.end_s = now
        return len(emitted)

    def _end_with(self, token: int) -> FinishReason | None:
        """Why the sequence ends with `token`, its newest one; None if it goes on."""
        is_last, is_stop = len(self.tokens) >= self.max_length, token in self.stop_ids
        if self.text is not None:
            try:
                self.text.push(token, is_stop=is_stop)
                if is_stop or is_last:
                    self.text.finish()  # which may complete a stop string, too
            except Exception as error:  # of a tokenizer, which is not our code: it is this request's alone
                self.error = f"text of the output: {error}"
                return FinishReason.ERROR
            is_stop = is_stop or self.text.stop is not None
        if is_stop:
            return FinishReason.STOP
        return FinishReason.LENGTH if is_last else None
