"""What a run of training is asked for, and what it trains: the configuration of a head, the layers of a draft model."""

from dataclasses import dataclass

from tspec.core.config import ModelConfig, RopeConfig
from tspec.core.dtypes import DType
from tspec.core.errors import ConfigError
from tspec.core.head_config import EagleConfig, HeadFormat, LayerConvention


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What each run is asked for. What is the same for two runs gives the same proposer on the same machine.

    num_tokens         tokens of answers that the target generates
    max_answer_tokens  most tokens of one answer
    num_epochs         times that each text is seen
    batch_tokens       tokens of a batch, prompts and padding included
    learning_rate      the largest one, after the warm-up
    seed               of the order of the texts
    """

    num_tokens: int = 1_000_000
    max_answer_tokens: int = 256
    num_epochs: int = 4
    batch_tokens: int = 2048
    learning_rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        _check_least(self, num_tokens=2, max_answer_tokens=4, num_epochs=1)


@dataclass(frozen=True, slots=True)
class TrainSettings(RunSettings):
    """How a head is trained. Small batches: for as many texts, more updates cost little and teach more.

    vocab_size         rows of the head's own vocabulary; the target's whole one where that is smaller
    intermediate_size  width of the head's MLP; None for the target's
    num_steps          steps that are unrolled: the head learns to read what it put out itself
    """

    batch_tokens: int = 384
    learning_rate: float = 2e-3
    vocab_size: int = 4096
    intermediate_size: int | None = None
    num_steps: int = 3

    def __post_init__(self) -> None:
        RunSettings.__post_init__(self)
        _check_least(self, vocab_size=2, num_steps=1)
        if self.intermediate_size is not None and self.intermediate_size < 1:
            raise ConfigError(
                "intermediate_size", got=self.intermediate_size, need="at least 1", fix="Leave it out."
            )


@dataclass(frozen=True, slots=True)
class DraftSettings(RunSettings):
    """How a draft model is trained.

    num_layers         layers of the target that it keeps; None for an eighth of them
    """

    num_layers: int | None = None

    def __post_init__(self) -> None:
        RunSettings.__post_init__(self)
        if self.num_layers is not None:
            _check_least(self, num_layers=1)


def _check_least(settings: RunSettings, **least: int) -> None:
    for name, low in least.items():
        if getattr(settings, name) < low:
            raise ConfigError(
                name, got=getattr(settings, name), need=f"at least {low}", fix="Give a larger number."
            )


def kept_layers(target: ModelConfig, settings: DraftSettings) -> list[int]:
    """The target's layers that a draft model starts from: evenly spaced, with the first and the last.

    Errors   ConfigError where the target has not more layers than are asked for
    """
    count = max(1, target.num_layers // 8) if settings.num_layers is None else settings.num_layers
    if count >= target.num_layers:
        raise ConfigError(
            "num_layers", got=count, need=f"fewer than the target's {target.num_layers}",
            fix="Give a smaller number.",
        )  # fmt: skip
    return [round(place * (target.num_layers - 1) / max(1, count - 1)) for place in range(count)]


def head_config(target: ModelConfig, settings: TrainSettings) -> EagleConfig:
    """The EAGLE-3 head of one layer like the target's: its sizes and norms, its rotation's base, no biases.

    It joins what enters layers 2, L / 2 and L - 3, as is usual; of a target of fewer than 6 layers, what enters the
    first, the middle and what the last one puts out.
    """
    depth = target.num_layers
    aux = (2, depth // 2, depth - 3) if depth >= 6 else (0, depth // 2, depth)
    layer = ModelConfig(
        architecture="qwen3" if target.has_qk_norm else "llama",
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=settings.intermediate_size or target.intermediate_size,
        num_layers=1,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        rms_eps=target.rms_eps,
        max_position=target.max_position,
        dtype=DType.BFLOAT16,
        rope=RopeConfig(base=target.rope.base),
        has_qk_norm=target.has_qk_norm,
        sliding_windows=(None,),
    )
    return EagleConfig(
        format=HeadFormat.EAGLE3,
        layer=layer,
        target_hidden_size=target.hidden_size,
        target_vocab_size=target.vocab_size,
        draft_vocab_size=min(settings.vocab_size, target.vocab_size),
        aux_layers=aux,
        layer_convention=LayerConvention.INPUT_OF_LAYER,
    )
