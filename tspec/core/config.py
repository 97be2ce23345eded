"""A model's configuration, translated once from `config.json`; nothing else in tspec sees Hugging Face keys."""

from dataclasses import dataclass, field
from enum import Enum

from tspec.core.dtypes import DType


class RopeKind(Enum):
    """How rotary frequencies are scaled. Names follow Hugging Face's `rope_type`."""

    DEFAULT = "default"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding. Fields that `kind` does not use keep their defaults."""

    kind: RopeKind = RopeKind.DEFAULT
    base: float = 10000.0
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the graph builders need to know of a target or draft model.

    Shapes: `q` is [num_heads, head_dim], `k` and `v` are [num_kv_heads, head_dim] a token.
    `sliding_windows` has one entry a layer: None for full attention, else the window in tokens
    (a token sees itself and the window - 1 tokens before it).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    max_position: int
    dtype: DType
    rope: RopeConfig = field(default_factory=RopeConfig)
    tie_word_embeddings: bool = False
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    sliding_windows: tuple[int | None, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    def window(self, layer: int) -> int | None:
        """The sliding window of a layer in tokens, None for full attention."""
        return self.sliding_windows[layer] if self.sliding_windows else None
