"""What a user may ask of speculation. Impossible values raise ConfigError on construction."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tspec.core.checks import need_choice, need_int
from tspec.core.errors import ConfigError
from tspec.core.tree import MAX_NODES

METHODS = ("ngram", "none")
OCCURRENCES = ("latest", "earliest")
ACCEPTANCES = ("auto", "match", "ratio")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Which proposer guesses, and how far.

    method                  "ngram" or "none"
    num_speculative_tokens  most candidates a sequence and verify pass; None: as many as the machine verifies at
                            little more than the price of one token (7 with AVX-512, 3 with AVX2)
    prompt_lookup_min/max   shortest and longest suffix that n-gram lookup matches, in tokens
    occurrence              which earlier copy n-gram lookup continues: "latest" or "earliest"
    acceptance              for a proposer that draws its candidates: "match", coupled to the target by the same noise,
                            so that the same seed gives the same text as plain decoding; "ratio", rejection sampling;
                            "auto": what accepts more, ratio for chains and match for trees. Certain candidates are
                            always matched, which is the same

    Errors: ConfigError for unknown keys, unknown methods and bounds that exclude each other.
    """

    method: str = "ngram"
    num_speculative_tokens: int | None = None
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 6
    occurrence: str = "latest"
    acceptance: str = "auto"

    def __post_init__(self) -> None:
        need_choice("speculative method", self.method, METHODS)
        if self.num_speculative_tokens is not None:
            need_int("num_speculative_tokens", self.num_speculative_tokens, low=1, high=MAX_NODES - 1)
        need_int("prompt_lookup_min", self.prompt_lookup_min, low=1)
        need_int("prompt_lookup_max", self.prompt_lookup_max, low=1, high=16)
        need_choice("occurrence", self.occurrence, OCCURRENCES)
        need_choice("acceptance", self.acceptance, ACCEPTANCES)
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
