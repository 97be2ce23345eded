"""What `config.json` of a draft head may say, as far as tspec reads it: keys, types, ranges.

As `hf_schema`: types are strict and other keys are ignored. What the keys mean is `eagle_config`'s and
`medusa_config`'s business.
"""

from typing import Annotated, Any

from pydantic import Field

from tspec.checkpoint.hf_schema import Positions, Raw, RawConfig, Size

_Count = Annotated[int, Field(ge=1, le=1000)]
_Vocab = Annotated[int, Field(ge=1, le=2**31 - 1)]
_LayerId = Annotated[int, Field(ge=0, le=10_000)]
_Scale = Annotated[float, Field(allow_inf_nan=False)]


class RawLayer(RawConfig):
    """The keys of the decoder layers: the whole file in EAGLE's own layout, else `transformer_layer_config`."""

    architectures: list[str] = Field(default_factory=list)
    max_position_embeddings: Positions = 2048
    bias: bool | None = None
    qkv_bias: bool = False


class RawEagle(Raw):
    """`eagle_config`, in which SGLang and SpecForge put what they add."""

    eagle_aux_hidden_state_layer_ids: list[_LayerId] | None = None
    use_aux_hidden_state: bool = True
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None


class RawVerifier(Raw):
    """The target that a head was trained for."""

    name_or_path: str | None = None
    architectures: list[str] = Field(default_factory=list)


class RawTraining(Raw):
    """`speculators_config`."""

    verifier: RawVerifier = Field(default_factory=RawVerifier)


class RawHead(RawEagle):
    """The keys around the layers. Those of `eagle_config` may stand at the top level, too."""

    architectures: list[str] = Field(default_factory=list)
    speculators_model_type: str | None = None
    speculators_config: RawTraining | None = None
    transformer_layer_config: Any = None
    eagle_config: RawEagle | None = None
    target_hidden_size: Size | None = None
    draft_vocab_size: _Vocab | None = None
    add_para_norm: bool = False
    layernorms: bool = False
    fusion_bias: bool | None = None
    logit_scale: _Scale | None = None


class RawMedusa(Raw):
    """Medusa's own keys (`medusa_…`), and those that vLLM gives them."""

    medusa_num_heads: _Count | None = None
    num_heads: _Count | None = None
    medusa_num_layers: Annotated[int, Field(ge=0, le=1000)] | None = None
    num_hidden_layers: Annotated[int, Field(ge=0, le=1000)] | None = None
    hidden_size: Size | None = None
    vocab_size: _Vocab | None = None
    truncated_vocab_size: _Vocab | None = None
    original_lm_head: bool = False
    medusa_fc_bias: bool | None = None
    logit_scale: _Scale | None = None
