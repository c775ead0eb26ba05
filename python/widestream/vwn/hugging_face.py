"""Virtual width for Hugging Face Transformers: models, configs, `save_pretrained`, `from_pretrained`, `generate`.

`VWNForCausalLM` holds a `VWNTransformer`. `VWNLlamaForCausalLM`, `VWNMistralForCausalLM`,
`VWNQwen2ForCausalLM` and `VWNQwen3ForCausalLM` are the library's models with a GHC around every sub-layer:
masks, caches (of width D) and generation are the library's own code. `widen` makes them from trained models.
All are registered with `AutoConfig` and `AutoModelForCausalLM` when this module is imported.

`output_hidden_states` is refused: the states between the layers are rD wide, and code that asks for them
expects D.

Shape suffixes: B rows, S row length, W = rD wide width, D backbone width, n slots, d slot width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from widestream.vwn.ghc import GHC
from widestream.vwn.upcycling import copy_embedding

_PLAN = {
    "layers.*.attention.block.self_attn.q_proj": "colwise",
    "layers.*.attention.block.self_attn.k_proj": "colwise",
    "layers.*.attention.block.self_attn.v_proj": "colwise",
    "layers.*.attention.block.self_attn.o_proj": "rowwise",
    "layers.*.feed_forward.block.mlp.gate_proj": "colwise",
    "layers.*.feed_forward.block.mlp.up_proj": "colwise",
    "layers.*.feed_forward.block.mlp.down_proj": "rowwise",
}


class VWNLlamaConfig(LlamaConfig):  # type: ignore[misc]
    """`LlamaConfig` with virtual width: `vwn_m`, `vwn_n`, `vwn_dynamic`, `vwn_carry`, `vwn_embedding`."""

    model_type = "vwn_llama"
    base_model_tp_plan = _PLAN
    vwn_m: int = 4
    vwn_n: int = 8
    vwn_dynamic: bool = True
    vwn_carry: str = "ghc"
    vwn_embedding: str = "linear"


class VWNMistralConfig(MistralConfig):  # type: ignore[misc]
    """`MistralConfig` with virtual width."""

    model_type = "vwn_mistral"
    base_model_tp_plan = _PLAN
    vwn_m: int = 4
    vwn_n: int = 8
    vwn_dynamic: bool = True
    vwn_carry: str = "ghc"
    vwn_embedding: str = "linear"


class VWNQwen2Config(Qwen2Config):  # type: ignore[misc]
    """`Qwen2Config` with virtual width."""

    model_type = "vwn_qwen2"
    base_model_tp_plan = _PLAN
    vwn_m: int = 4
    vwn_n: int = 8
    vwn_dynamic: bool = True
    vwn_carry: str = "ghc"
    vwn_embedding: str = "linear"


class VWNQwen3Config(Qwen3Config):  # type: ignore[misc]
    """`Qwen3Config` with virtual width."""

    model_type = "vwn_qwen3"
    base_model_tp_plan = _PLAN
    vwn_m: int = 4
    vwn_n: int = 8
    vwn_dynamic: bool = True
    vwn_carry: str = "ghc"
    vwn_embedding: str = "linear"


class WideEmbedding(nn.Embedding):
    """The table, and what makes its rows rD wide; `weight` stays the table, so that an LM head can be tied."""

    def __init__(self, config: Any, padding_idx: int | None) -> None:
        wide = config.hidden_size * config.vwn_n // config.vwn_m
        columns = wide if config.vwn_embedding == "table" else config.hidden_size
        super().__init__(config.vocab_size, columns, padding_idx)
        self.repeats = config.vwn_n // config.vwn_m if config.vwn_embedding == "repeat" else 1
        self.expand: nn.Linear | None = None
        if config.vwn_embedding == "linear":
            self.expand = nn.Linear(config.hidden_size, wide, bias=False)
            with torch.no_grad():
                self.expand.weight.normal_(std=config.hidden_size**-0.5)
                self.expand.weight[: config.hidden_size] = torch.eye(config.hidden_size)

    def forward(self, input: Tensor) -> Tensor:
        """[B, S] ids to [B, S, rD]."""
        rows = super().forward(input)
        if self.expand is not None:
            expanded: Tensor = self.expand(rows)
            return expanded
        return rows.repeat(1, 1, self.repeats) if self.repeats > 1 else rows


class ReducedNorm(nn.Module):
    """The model's exit: D x rD reduce, [I, 0, ...] at first, then the final norm."""

    def __init__(self, config: Any, norm: nn.Module) -> None:
        super().__init__()
        self.reduce = nn.Linear(config.hidden_size * config.vwn_n // config.vwn_m, config.hidden_size, bias=False)
        with torch.no_grad():
            self.reduce.weight.copy_(torch.eye(*self.reduce.weight.shape))
        self.norm = norm

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, S, rD] -> [B, S, D]."""
        result: Tensor = self.norm(self.reduce(hidden_states))
        return result


class AttentionBlock(nn.Module):
    """A layer's pre-norm and attention, without the residual."""

    def __init__(self, norm: nn.Module, self_attn: nn.Module) -> None:
        super().__init__()
        self.norm, self.self_attn = norm, self_attn

    def forward(self, x_BSD: Tensor, **kwargs: Any) -> Tensor:
        """[B, S, D] -> [B, S, D]; keywords go to the attention."""
        result: Tensor = self.self_attn(hidden_states=self.norm(x_BSD), **kwargs)[0]
        return result


class FeedForwardBlock(nn.Module):
    """A layer's pre-norm and MLP, without the residual."""

    def __init__(self, norm: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm, self.mlp = norm, mlp

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        result: Tensor = self.mlp(self.norm(x_BSD))
        return result


class WideDecoderLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """A decoder layer of the library with a GHC around its attention and its MLP; [B, S, rD] in and out."""

    def __init__(self, config: Any, layer: Any) -> None:
        super().__init__()
        self.slots = (config.vwn_n, config.hidden_size // config.vwn_m)

        def connect(block: nn.Module) -> GHC:
            return GHC(
                block,
                d_model=config.hidden_size,
                m=config.vwn_m,
                n=config.vwn_n,
                dynamic=config.vwn_dynamic,
                carry=config.vwn_carry,
                eps=config.rms_norm_eps,
            )

        self.attention = connect(AttentionBlock(layer.input_layernorm, layer.self_attn))
        self.feed_forward = connect(FeedForwardBlock(layer.post_attention_layernorm, layer.mlp))

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        """The next wide state."""
        h_BSnd = hidden_states.unflatten(-1, self.slots)
        result: Tensor = self.feed_forward(self.attention(h_BSnd, **kwargs)).flatten(-2)
        return result


class _Wide:
    """What the four model classes share: the library's model is built, then its parts are put into GHCs."""

    _keep_in_fp32_modules_strict = ("mixer",)
    _no_split_modules = ("WideDecoderLayer",)

    def _make_wide(self, config: Any) -> None:
        if config.hidden_size % config.vwn_m or config.vwn_n < config.vwn_m:
            raise ValueError(
                f"vwn_m = {config.vwn_m}, vwn_n = {config.vwn_n} do not fit hidden_size = {config.hidden_size}: "
                "hidden_size must be a multiple of vwn_m, and vwn_n at least vwn_m"
            )
        if config.tie_word_embeddings and config.vwn_embedding == "table" and config.vwn_n != config.vwn_m:
            raise ValueError("tie_word_embeddings needs a table of hidden_size columns: vwn_embedding 'linear'")
        if config.vwn_embedding == "repeat" and config.vwn_n % config.vwn_m:
            raise ValueError(f"vwn_embedding 'repeat' needs a whole n/m, not {config.vwn_n}/{config.vwn_m}")
        model: Any = self.model  # type: ignore[attr-defined]
        table = model.embed_tokens
        model.embed_tokens = WideEmbedding(config, table.padding_idx)
        with torch.no_grad():
            copy_embedding(model.embed_tokens.weight, table.weight)
        for index, layer in enumerate(model.layers):
            model.layers[index] = WideDecoderLayer(config, layer)
        model.norm = ReducedNorm(config, model.norm)
        self.tie_weights()  # type: ignore[attr-defined]

    def _init_weights(self, module: nn.Module) -> None:
        """The parts of GHC, the expansion and the reduce have their values from their constructors."""
        own = {id(part) for m in self.modules() if isinstance(m, ReducedNorm) for part in (m.reduce,)}  # type: ignore[attr-defined]
        own |= {id(m.expand) for m in self.modules() if isinstance(m, WideEmbedding)}  # type: ignore[attr-defined]
        if id(module) not in own:
            super()._init_weights(module)  # type: ignore[misc]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the library's model; `output_hidden_states` is refused."""
        if kwargs.get("output_hidden_states"):
            raise ValueError("output_hidden_states: the states between the layers of a wide model are rD wide, not D")
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: the library would replace the wide embedding by a narrow one."""
        raise NotImplementedError("resize the token embeddings before widening the model")


class VWNLlamaForCausalLM(_Wide, LlamaForCausalLM):  # type: ignore[misc]
    """Llama with virtual width."""

    config_class = VWNLlamaConfig

    def __init__(self, config: VWNLlamaConfig) -> None:
        super().__init__(config)
        self._make_wide(config)


class VWNMistralForCausalLM(_Wide, MistralForCausalLM):  # type: ignore[misc]
    """Mistral with virtual width."""

    config_class = VWNMistralConfig

    def __init__(self, config: VWNMistralConfig) -> None:
        super().__init__(config)
        self._make_wide(config)


class VWNQwen2ForCausalLM(_Wide, Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen2 with virtual width."""

    config_class = VWNQwen2Config

    def __init__(self, config: VWNQwen2Config) -> None:
        super().__init__(config)
        self._make_wide(config)


class VWNQwen3ForCausalLM(_Wide, Qwen3ForCausalLM):  # type: ignore[misc]
    """Qwen3 with virtual width."""

    config_class = VWNQwen3Config

    def __init__(self, config: VWNQwen3Config) -> None:
        super().__init__(config)
        self._make_wide(config)


_WIDE_CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (VWNLlamaConfig, VWNLlamaForCausalLM),
    "mistral": (VWNMistralConfig, VWNMistralForCausalLM),
    "qwen2": (VWNQwen2Config, VWNQwen2ForCausalLM),
    "qwen3": (VWNQwen3Config, VWNQwen3ForCausalLM),
}
for _config_class, _model_class in _WIDE_CLASSES.values():
    AutoConfig.register(_config_class.model_type, _config_class)
    AutoModelForCausalLM.register(_config_class, _model_class)

_RENAMED = {
    ".self_attn.": ".attention.block.self_attn.",
    ".mlp.": ".feed_forward.block.mlp.",
    ".input_layernorm.": ".attention.block.norm.",
    ".post_attention_layernorm.": ".feed_forward.block.norm.",
}


def widen_hugging_face(model: Any, *, m: int, n: int, embedding: str, carry: str, dynamic: bool) -> PreTrainedModel:
    """`widen` for the library's models; see there. Raises ValueError for another class of model."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind not in _WIDE_CLASSES or not type(model).__name__.endswith("ForCausalLM"):
        raise ValueError(
            f"widen: {type(model).__name__} (model_type {kind!r}) is not supported; it takes the ForCausalLM models "
            f"of {', '.join(_WIDE_CLASSES)}"
        )
    config_class, model_class = _WIDE_CLASSES[kind]
    values = {key: value for key, value in model.config.to_dict().items() if key not in ("model_type", "architectures")}
    width = {"vwn_m": m, "vwn_n": n, "vwn_embedding": embedding, "vwn_carry": carry, "vwn_dynamic": dynamic}
    wide: Any = model_class(config_class(**{**values, **width}))
    wide.config._attn_implementation = model.config._attn_implementation
    target = wide.state_dict()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name == "model.embed_tokens.weight":
                copy_embedding(target[name], value)
                continue
            renamed = "model.norm.norm.weight" if name == "model.norm.weight" else name
            for old, new in _RENAMED.items():
                renamed = renamed.replace(old, new)
            target[renamed].copy_(value)
    wide.generation_config = model.generation_config
    result: PreTrainedModel = wide.to(device=model.device, dtype=model.dtype).train(model.training)
    return result
