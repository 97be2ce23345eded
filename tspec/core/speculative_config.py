"""What a user may ask of speculation. Impossible values raise ConfigError on construction."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tspec.core.checks import need_choice, need_int
from tspec.core.errors import ConfigError
from tspec.core.tree import MAX_NODES

MODEL_METHODS = ("draft_model", "eagle", "eagle3", "medusa")
"""Methods that need a model of their own."""
UNION_METHODS = ("auto", "union")
"""Methods that ask several proposers: lookups, and a model where one is given."""
METHODS = ("auto", "ngram", "suffix", *MODEL_METHODS, "union", "none")
SAMPLE_METHODS = ("greedy", "probabilistic")
MAX_TOP_K = 16
OCCURRENCES = ("latest", "earliest")
ACCEPTANCES = ("auto", "match", "ratio")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Which proposer guesses, and how far.

    method                  "auto": all lookups, and the model if one is given, as far as their candidates pay, none
                            included; "union": the same without weighing; "ngram"; "suffix"; "draft_model", a small
                            model of the target's family; "eagle" or "eagle3", "medusa": heads on the target's hidden
                            states; "none"
    model                   folder of the draft model or head
    num_speculative_tokens  most candidates a sequence and verify pass; None: for "auto" 15, else as many as the machine
                            verifies at little more than the price of one token (7 with AVX-512, 3 with AVX2); of a
                            chain from a model at most 4
    draft_depth             levels of a model's candidate tree; None: as many as candidates, in a tree at most 5
    draft_top_k             candidates of each node, and nodes of a level that go on; 1 proposes a chain
    draft_sample_method     "greedy": a model's likeliest tokens; "probabilistic": chains drawn at the request's
                            temperature, which are accepted more often where that is high
    aux_layer_offset        added to the ids of the target's layers that an EAGLE-3 head reads: -1 or 1 tries the other
                            convention where a head was published with the wrong one
    prompt_lookup_min/max   shortest and longest suffix that n-gram lookup matches, in tokens
    occurrence              which earlier copy n-gram lookup continues: "latest" or "earliest"
    suffix_corpus           file of JSON lines, each with a "text": what suffix lookup knows from the start, as if
                            earlier requests had said it
    acceptance              for a proposer that draws its candidates: "match", coupled to the target by the same noise,
                            so that the same seed gives the same text as plain decoding; "ratio", rejection sampling;
                            "auto": what accepts more, ratio for chains and match for trees. Certain candidates are
                            always matched, which is the same

    Errors: ConfigError for unknown keys, unknown methods and bounds that exclude each other.
    """

    method: str = "auto"
    model: str | Path | None = None
    num_speculative_tokens: int | None = None
    draft_depth: int | None = None
    draft_top_k: int = 1
    draft_sample_method: str = "greedy"
    aux_layer_offset: int = 0
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 6
    occurrence: str = "latest"
    suffix_corpus: str | Path | None = None
    acceptance: str = "auto"

    def __post_init__(self) -> None:
        need_choice("speculative method", self.method, METHODS)
        if self.num_speculative_tokens is not None:
            need_int("num_speculative_tokens", self.num_speculative_tokens, low=1, high=MAX_NODES - 1)
        self._check_model()
        need_int("prompt_lookup_min", self.prompt_lookup_min, low=1)
        need_int("prompt_lookup_max", self.prompt_lookup_max, low=1, high=16)
        need_choice("occurrence", self.occurrence, OCCURRENCES)
        self._check_corpus()
        need_choice("acceptance", self.acceptance, ACCEPTANCES)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                "prompt_lookup_min",
                got=self.prompt_lookup_min,
                need=f"at most prompt_lookup_max ({self.prompt_lookup_max})",
                fix="Lower prompt_lookup_min or raise prompt_lookup_max.",
            )

    def _check_corpus(self) -> None:
        if self.suffix_corpus is not None and self.method not in ("suffix", *UNION_METHODS):
            raise ConfigError(
                "suffix_corpus",
                got=f"a file with method {self.method}",
                need=f"method suffix, or one of {', '.join(UNION_METHODS)}",
                fix="Change the method, or leave suffix_corpus out.",
            )

    def _check_model(self) -> None:
        if self.draft_depth is not None:
            need_int("draft_depth", self.draft_depth, low=1, high=MAX_NODES - 1)
        need_int("draft_top_k", self.draft_top_k, low=1, high=MAX_TOP_K)
        need_choice("draft_sample_method", self.draft_sample_method, SAMPLE_METHODS)
        need_int("aux_layer_offset", self.aux_layer_offset, low=-1, high=1)
        needs_model = self.method in MODEL_METHODS
        if needs_model and self.model is None:
            raise ConfigError(
                "speculative model", got=None, need=f"a folder for method {self.method}", fix="Set model."
            )
        if not needs_model and self.method not in UNION_METHODS and self.model is not None:
            raise ConfigError(
                "speculative model",
                got=repr(str(self.model)),
                need=f"none for method {self.method}",
                fix=f"Set method to one of {', '.join((*UNION_METHODS, *MODEL_METHODS))}, or leave model out.",
            )
        is_drawn = self.draft_sample_method == "probabilistic"
        if is_drawn and (self.draft_top_k > 1 or self.method == "medusa"):
            raise ConfigError(
                "draft_sample_method",
                got=f"probabilistic with method {self.method} and draft_top_k {self.draft_top_k}",
                need="a chain from a draft model or an EAGLE head",
                fix="Set draft_top_k to 1, or draft_sample_method to greedy.",
            )

    @classmethod
    def of(cls, options: "Mapping[str, Any] | SpeculativeConfig | None") -> "SpeculativeConfig":
        """Read what a user passed as `speculative_config`; None means the default, "auto"."""
        if options is None:
            return cls()
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
