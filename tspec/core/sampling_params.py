"""What a user may ask of one request. Impossible values raise ConfigError on construction, before anything runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tspec.core.checks import need_choice, need_int, need_number
from tspec.core.constraint import LogitsConstraint
from tspec.core.errors import ConfigError
from tspec.core.tree import MAX_NODES

MAX_LOGPROBS = 20
"""Most alternatives whose log-probabilities a request may ask for."""

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy decoding: the noise would vanish beside logits divided by them."""

MAX_SEED = (1 << 63) - 1
MAX_BIAS = 100.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is decoded. Names and meanings are those that users of vLLM know.

    temperature            0 is greedy decoding. None: 1 if top_k, top_p, min_p or seed ask for sampling, else 0
    top_k                  keep the k likeliest tokens, and ties of the last; 0 or -1 keeps all
    top_p                  keep the likeliest tokens that together have at least this probability; in (0, 1]
    min_p                  keep tokens of at least this share of the likeliest one's probability; in [0, 1]
    seed                   makes the text repeatable, whichever proposer runs; None: one from the system, see the result
    n                      samples of the prompt; sample j has the seed `seed + j`
    repetition_penalty     above 1 makes tokens of prompt and output less likely (logits divided, or multiplied below 0)
    presence_penalty       taken off the logits of tokens of the output; in [-2, 2]
    frequency_penalty      taken off once for each time; in [-2, 2]
    logit_bias             token id -> what is added to its logit; in [-100, 100]
    bad_words              token sequences (or texts) that never come out
    allowed_token_ids      the only tokens that may come out; None for all
    constraint             decides after each token which may come next (grammars: tspec.constraints)
    min_tokens             no stop token before this many tokens, and no stop string that is complete within them
    max_tokens             most tokens to emit; 0 emits nothing
    stop_token_ids         token ids that end the text, beside the checkpoint's own end-of-sequence ids
    stop                   texts that end the output where one is first complete; the prompt is not searched
    include_stop_str_in_output  whether the text keeps what ended it: the stop string, or a token of stop_token_ids
    ignore_eos             go on after an end-of-sequence id (stop_token_ids still stop)
    logprobs               give each token's log-probability and those of this many likeliest ones; None for nothing
    prompt_logprobs        the same for the prompt's own tokens
    speculative            "auto": as the engine's proposer sees fit; "off": plain decoding; n: at most n candidates

    The order is bias, penalties, masks, temperature, top-k, top-p, min-p; log-probabilities are those before all of it.
    None for a list or a mapping is the same as leaving it out. Ids past the vocabulary are refused with the request.

    Errors: ConfigError for a value that cannot be honoured.
    """

    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[str | Sequence[int]] = ()
    allowed_token_ids: Sequence[int] | None = None
    constraint: LogitsConstraint | None = None
    min_tokens: int = 0
    max_tokens: int = 256
    stop_token_ids: Sequence[int] = ()
    stop: str | Sequence[str] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    speculative: str | int = "auto"

    def __post_init__(self) -> None:
        if self.temperature is not None:
            need_number("temperature", self.temperature, low=0)
        need_int("top_k", self.top_k, low=-1)
        need_number("top_p", self.top_p, low=0, high=1, is_open=True)
        need_number("min_p", self.min_p, low=0, high=1)
        if self.seed is not None:
            need_int("seed", self.seed, low=0, high=MAX_SEED)
        need_int("n", self.n, low=1)
        need_number("repetition_penalty", self.repetition_penalty, low=0, is_open=True)
        for name in ("presence_penalty", "frequency_penalty"):
            need_number(name, getattr(self, name), low=-2, high=2)
        need_int("max_tokens", self.max_tokens, low=0)
        need_int("min_tokens", self.min_tokens, low=0)
        if self.min_tokens > self.max_tokens:
            raise ConfigError(
                "min_tokens",
                got=self.min_tokens,
                need=f"at most max_tokens ({self.max_tokens})",
                fix="Lower min_tokens or raise max_tokens.",
            )
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                need_int(name, getattr(self, name), low=0, high=MAX_LOGPROBS)
        self._check_tokens()
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        if isinstance(self.speculative, str):
            need_choice("speculative", self.speculative, ("auto", "off"))
        else:
            need_int("speculative", self.speculative, low=0, high=MAX_NODES - 1)

    def _check_tokens(self) -> None:
        """Check the fields that hold token ids, and freeze them."""
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            allowed = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise ConfigError(
                    "allowed_token_ids", got="an empty list", need="at least one id", fix="Or leave it out."
                )
            object.__setattr__(self, "allowed_token_ids", allowed)
        object.__setattr__(self, "bad_words", _bad_words(self.bad_words))
        object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))
        if self.constraint is not None and not isinstance(self.constraint, LogitsConstraint):
            raise ConfigError(
                "constraint",
                got=repr(self.constraint),
                need="a grammar",
                fix="Make one with tspec.constraints: regex, json_schema or lark.",
            )

    @property
    def effective_temperature(self) -> float:
        """The temperature that is sampled at; 0 for greedy decoding."""
        if self.temperature is None:
            asks = self.top_k > 0 or self.top_p < 1 or self.min_p > 0 or self.seed is not None
            return 1.0 if asks else 0.0
        return 0.0 if self.temperature < GREEDY_TEMPERATURE else self.temperature

    @property
    def max_candidates(self) -> int:
        """Most candidates that this request allows a round."""
        if isinstance(self.speculative, int):
            return self.speculative
        return MAX_NODES - 1 if self.speculative == "auto" else 0

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on how often tokens came before."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def has_mask(self) -> bool:
        """Whether some tokens may be forbidden."""
        return self.has_forbidden or self.min_tokens > 0

    @property
    def has_forbidden(self) -> bool:
        """Whether some tokens may be forbidden however long the text is."""
        return bool(self.bad_words) or self.allowed_token_ids is not None or self.constraint is not None

    @property
    def has_filter(self) -> bool:
        """Whether top-k, top-p or min-p may drop tokens."""
        return self.effective_temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


def _entries(name: str, values: object, need: str) -> tuple[Any, ...]:
    """The entries of a list; a text is none, though Python would take it for a list of its letters."""
    if values is None:
        return ()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigError(name, got=repr(values), need=need, fix="Put it into a list, or leave it out.")
    return tuple(values)


def _token_ids(name: str, values: object) -> tuple[int, ...]:
    ids = _entries(name, values, "a list of token ids")
    for token in ids:
        need_int(f"{name} entry", token, low=0)
    return ids


def _bad_words(values: object) -> tuple[str | tuple[int, ...], ...]:
    need = "a list of texts or of lists of token ids"
    words = []
    for word in _entries("bad_words", values, need):
        if not isinstance(word, str | Sequence) or isinstance(word, bytes):
            raise ConfigError("bad_words", got=f"{word!r} in it", need=need, fix="Put its ids into a list.")
        words.append(word if isinstance(word, str) else _token_ids("bad_words", word))
        if not words[-1]:
            raise ConfigError(
                "bad_words", got="an empty word", need="words of at least one token", fix="Drop it."
            )
    return tuple(words)


def _logit_bias(values: object) -> dict[int, float]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(
            "logit_bias",
            got=repr(values),
            need="a mapping of token ids to numbers",
            fix="Write {token_id: bias}.",
        )
    for token, bias in values.items():
        need_int("logit_bias token id", token, low=0)
        need_number(f"logit_bias of token {token}", bias, low=-MAX_BIAS, high=MAX_BIAS)
    return dict(values)


def _stop_strings(stop: object) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = (stop,) if isinstance(stop, str) or not isinstance(stop, Sequence) else tuple(stop)
    for each in stops:
        if not isinstance(each, str) or not each:
            raise ConfigError("stop", got=repr(each), need="texts that are not empty", fix="Drop it.")
    return stops


def split_samples(params: SamplingParams) -> list[SamplingParams]:
    """Return the parameters of each of the `n` samples: the same but for their seeds, `seed + j` for sample j.

    Without a seed, and where decoding is greedy, each is left as it is.
    """
    if params.n == 1:
        return [params]
    fixed = replace(params, n=1, temperature=params.effective_temperature)
    if params.seed is None:
        return [fixed] * params.n
    return [replace(fixed, seed=(params.seed + sample) & MAX_SEED) for sample in range(params.n)]
