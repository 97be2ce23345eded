"""What was measured of a model on a machine, for an engine that then measures nothing: costs, priors, and settings."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tspec.core.errors import ConfigError
from tspec.core.pass_costs import PassCosts
from tspec.core.speculative_config import MODEL_METHODS, UNION_METHODS, SpeculativeConfig

AGAIN = "Run `tspec autotune policy` again, or leave policy out."


@dataclass(frozen=True, slots=True)
class PolicyKey:
    """What a policy was measured with: it holds for nothing else.

    device     the machine's own name of its CPU or GPU, and how many there are
    backend    vector width of the CPU, or the GPU's architecture
    dtype      of weights and KV
    threads    of a pass
    model      hash of the checkpoint's configuration
    libraries  versions of tspec and of what compiles its kernels
    """

    device: str
    backend: str
    dtype: str
    threads: int
    model: str
    libraries: str

    def check(self, here: "PolicyKey", source: str) -> None:
        """Raise ConfigError, naming the first difference, unless `here` is the same. `source` names the file."""
        for each in fields(self):
            found, needed = getattr(self, each.name), getattr(here, each.name)
            if found != needed:
                raise ConfigError(
                    f"{source}, measured {each.name}", got=repr(found), need=repr(needed), fix=AGAIN
                )


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Seconds of a round of a proposer's model for one sequence: see proposers/model_turns.DraftCosts."""

    first_s: float
    level_s: float
    token_s: float


@dataclass(frozen=True, slots=True)
class MethodPolicy:
    """What a method does where the user does not say how many candidates.

    num_candidates      most of a sequence and pass
    depth, width        levels of a model's tree, and candidates of each node; None, 1 for lookups
    tree                parents of the best static tree with so many candidates, root first: what the numbers are from
    predicted_speed_up  over plain decoding
    measured_speed_up   the same on prompts that the prediction is not from; None where there were none
    model               hash of the configuration of the proposer's model
    costs               of its rounds, at `depth` and `width`
    """

    num_candidates: int
    depth: int | None
    width: int
    tree: tuple[int, ...]
    predicted_speed_up: float
    measured_speed_up: float | None = None
    model: str | None = None
    costs: RoundCosts | None = None

    def settings(self) -> dict[str, Any]:
        """As keys of SpeculativeConfig."""
        return {
            "num_speculative_tokens": self.num_candidates,
            "draft_depth": self.depth,
            "draft_top_k": self.width,
        }


@dataclass(frozen=True, slots=True)
class Policy:
    """Costs of passes, and for each proposer how good its candidates are and how many of them pay.

    costs    of verify passes, for a controller and for prompts that go along
    priors   by the name of a proposer: the chance that a candidate of each class of evidence is right
    methods  by speculative method
    figures  all that was measured, for reports; JSON, of no meaning for an engine
    source   where it was read from, for errors
    """

    key: PolicyKey
    costs: PassCosts
    priors: Mapping[str, tuple[float, ...]]
    methods: Mapping[str, MethodPolicy]
    figures: Mapping[str, Any]
    source: str = "policy"

    def with_settings(self, asked: SpeculativeConfig, model: str | None) -> SpeculativeConfig:
        """`asked` with this policy's settings, where the user gave none; as it is for a method that was not tuned.

        `auto` and `union` decide for themselves, but for how their model's rounds are shaped: as it was measured.
        model    hash of the configuration of the proposer's model
        Errors   ConfigError where the method was tuned with another model
        """
        tuned = self.of_method(asked, model)
        is_open = (
            asked.num_speculative_tokens is None and asked.draft_depth is None and asked.draft_top_k == 1
        )
        is_possible = tuned is not None and (tuned.width == 1 or asked.draft_sample_method == "greedy")
        if tuned is None or not is_open or not is_possible:
            return asked
        settings = tuned.settings()
        if asked.method in UNION_METHODS:
            del settings["num_speculative_tokens"]
        return replace(asked, **settings)

    def of_method(self, asked: SpeculativeConfig, model: str | None) -> MethodPolicy | None:
        """What was found for a method, or for the model of `auto` and `union`.

        Errors   ConfigError where it was found for another model
        """
        if model is None:
            return self.methods.get(asked.method)
        tuned = {name: self.methods[name] for name in MODEL_METHODS if name in self.methods}
        for each in tuned.values():
            if each.model == model:  # "eagle" and "eagle3" name the same head
                return each
        if tuned and asked.method in (*UNION_METHODS, *tuned):
            raise ConfigError(
                f"{self.source}, model of {' and '.join(tuned)}",
                got=", ".join(str(each.model) for each in tuned.values()),
                need=f"{model}, that of {asked.model}",
                fix=AGAIN,
            )
        return None
