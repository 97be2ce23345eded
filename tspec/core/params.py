"""What a user may ask of one request, and of speculation. Impossible values raise ConfigError on construction."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tspec.core.errors import ConfigError
from tspec.core.tree import MAX_NODES

METHODS = ("ngram", "none")
OCCURRENCES = ("latest", "earliest")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is decoded.

    temperature      0 for greedy decoding, the only mode so far
    max_tokens       most tokens to emit; 0 emits nothing
    stop_token_ids   token ids that end the text, beside the checkpoint's own end-of-sequence ids
    ignore_eos       go on after an end-of-sequence id (stop_token_ids still stop)
    speculative      "auto": as the engine's proposer sees fit; "off": plain decoding; n: at most n candidates

    Errors: ConfigError for a value that cannot be honoured.
    """

    temperature: float = 0.0
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    speculative: str | int = "auto"

    def __post_init__(self) -> None:
        _need_number("temperature", self.temperature)
        if self.temperature != 0.0:
            raise ConfigError(
                "temperature",
                got=self.temperature,
                need="0 (greedy decoding)",
                fix="Leave it out; sampled decoding comes in a later version.",
            )
        _need_int("max_tokens", self.max_tokens, low=0)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for token in self.stop_token_ids:
            _need_int("stop_token_ids entry", token, low=0)
        if isinstance(self.speculative, str):
            _need_choice("speculative", self.speculative, ("auto", "off"))
        else:
            _need_int("speculative", self.speculative, low=0, high=MAX_NODES - 1)

    @property
    def max_candidates(self) -> int:
        """Most candidates that this request allows a round."""
        if isinstance(self.speculative, int):
            return self.speculative
        return MAX_NODES - 1 if self.speculative == "auto" else 0


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Which proposer guesses, and how far.

    method                  "ngram" or "none"
    num_speculative_tokens  most candidates a sequence and verify pass; None: as many as the machine verifies at
                            little more than the price of one token (7 with AVX-512, 3 with AVX2)
    prompt_lookup_min/max   shortest and longest suffix that n-gram lookup matches, in tokens
    occurrence              which earlier copy n-gram lookup continues: "latest" or "earliest"

    Errors: ConfigError for unknown keys, unknown methods and bounds that exclude each other.
    """

    method: str = "ngram"
    num_speculative_tokens: int | None = None
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 6
    occurrence: str = "latest"

    def __post_init__(self) -> None:
        _need_choice("speculative method", self.method, METHODS)
        if self.num_speculative_tokens is not None:
            _need_int("num_speculative_tokens", self.num_speculative_tokens, low=1, high=MAX_NODES - 1)
        _need_int("prompt_lookup_min", self.prompt_lookup_min, low=1)
        _need_int("prompt_lookup_max", self.prompt_lookup_max, low=1, high=16)
        _need_choice("occurrence", self.occurrence, OCCURRENCES)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                "prompt_lookup_min",
                got=self.prompt_lookup_min,
                need=f"at most prompt_lookup_max ({self.prompt_lookup_max})",
                fix="Lower prompt_lookup_min or raise prompt_lookup_max.",
            )

    @classmethod
    def of(cls, options: "Mapping[str, Any] | SpeculativeConfig | None") -> "SpeculativeConfig":
        """Read what a user passed as `speculative_config`; None means no speculation."""
        if options is None:
            return cls(method="none")
        if isinstance(options, SpeculativeConfig):
            return options
        known = [each.name for each in fields(cls)]
        for key in options:
            if key not in known:
                raise ConfigError(
                    "speculative_config key",
                    got=repr(key),
                    need=f"one of {', '.join(known)}",
                    fix="Correct the key.",
                )
        return cls(**options)


def _need_number(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(what, got=repr(value), need="a number", fix="Pass a number.")


def _need_int(what: str, value: object, *, low: int, high: int | None = None) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < low or (high is not None and value > high):  # type: ignore[operator]
        need = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
        raise ConfigError(what, got=repr(value), need=need, fix="Change the value.")


def _need_choice(what: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(what, got=repr(value), need=f"one of {', '.join(choices)}", fix="Pick one of them.")
