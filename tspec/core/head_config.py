"""Configurations of draft heads, EAGLE and Medusa, translated once from whichever published layout they came in.

A head proposes from the target's hidden states; it is no whole model. Reads no file: `checkpoint/heads.py` does.

Source    EAGLE, arXiv:2401.15077; EAGLE-2, arXiv:2406.16858; EAGLE-3, arXiv:2503.01840; Medusa, arXiv:2401.10774
"""

from dataclasses import dataclass
from enum import Enum

from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType


class HeadFormat(Enum):
    """What a head computes. EAGLE-2 heads are EAGLE-1 heads: only the tree differs."""

    EAGLE1 = "eagle1"
    EAGLE3 = "eagle3"
    MEDUSA = "medusa"


class LayerConvention(Enum):
    """What a layer id in a head's config.json counts. tspec's own ids are inputs of layers."""

    INPUT_OF_LAYER = "input-of-layer"
    OUTPUT_OF_LAYER = "output-of-layer"


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """An EAGLE head: `fc` joins hidden states to one, then one or more decoder layers, then a head.

    layer               the draft layers: sizes, rotation, biases, norms of q and k; `num_layers` of them. Rotation is
                        the head's own, never the target's. `max_position` is no limit: the context is the target's
    target_*            sizes of the target that the head belongs to
    draft_vocab_size    rows of the head's own lm_head where `d2t` maps them to the target's ids, also where these are
                        as many; None where they are the target's ids themselves
    aux_layers          hidden states that `fc` joins, in this order: id n is the residual stream that *enters* target
                        layer n, before any norm; n = num_layers is what the last layer puts out, before the final
                        norm. Empty for eagle1, whose one hidden state comes after the target's final norm
    layer_convention    what the ids of the file counted, None where it had none; `convention_reason` says why
    source              the layout that was read, in words

    A step of eagle3, h a hidden state and e the embedding of the token after it:

        h = fc(aux)              in the first step, each aux normed before with `fc_norm`, all of them together with
                                 `norm_before_fc`; in later steps h is what the step before put out, without fc
        x = layers(e, h)         layer 0 attends to [input_layernorm(e), hidden_norm(h)]; what it adds to is h, or
                                 hidden_norm(h) with `norm_before_residual`
        logits = lm_head(norm(x)); what is put out is x, or norm(x) with `norm_output`

    A step of eagle1: x = layers(fc([e, h])), logits = lm_head(x), and x is put out. `has_input_norm` says whether
    layer 0 norms what it attends to; `has_embedding_norm` and `has_hidden_norm`, whether e and h are normed before fc;
    `has_final_norm`, whether x is normed for lm_head.
    """

    format: HeadFormat
    layer: ModelConfig
    target_hidden_size: int
    target_vocab_size: int
    draft_vocab_size: int | None = None
    aux_layers: tuple[int, ...] = ()
    layer_convention: LayerConvention | None = None
    convention_reason: str = ""
    fc_bias: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    has_input_norm: bool = True
    has_embedding_norm: bool = False
    has_hidden_norm: bool = False
    has_final_norm: bool = True
    has_own_embedding: bool = False
    has_own_head: bool = True
    source: str = ""

    @property
    def num_logits(self) -> int:
        """Rows of the logits that the head puts out."""
        return self.target_vocab_size if self.draft_vocab_size is None else self.draft_vocab_size

    @property
    def fc_width(self) -> int:
        """Columns of `fc.weight`: what it joins in the first step."""
        if self.format is HeadFormat.EAGLE1:
            return self.layer.hidden_size + self.target_hidden_size
        return len(self.aux_layers) * self.target_hidden_size


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """Medusa heads: head n guesses the token n + 2 places after the one whose hidden state they all read.

    A head is `num_layers` blocks x + SiLU(linear(x)) on the target's hidden state after its final norm, then a linear
    layer of its own onto the vocabulary.

    dtype               of the weights
    draft_vocab_size    rows of the heads where a `token_map` names their target ids; None for the target's vocabulary
    shares_lm_head      all heads end in one linear layer, `lm_heads.0`
    source              the layout that was read, in words
    """

    num_heads: int
    num_layers: int
    hidden_size: int
    target_vocab_size: int
    has_bias: bool
    dtype: DType = DType.FLOAT32
    draft_vocab_size: int | None = None
    shares_lm_head: bool = False
    source: str = ""

    @property
    def num_logits(self) -> int:
        """Rows of the logits that each head puts out."""
        return self.target_vocab_size if self.draft_vocab_size is None else self.draft_vocab_size

    @property
    def format(self) -> HeadFormat:
        """Always MEDUSA."""
        return HeadFormat.MEDUSA
