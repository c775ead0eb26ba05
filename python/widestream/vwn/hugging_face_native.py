"""`VWNForCausalLM`: a `VWNTransformer` as a Hugging Face model; registered as model_type "widestream_vwn".

Shape suffixes: B rows, S row length, T = B S tokens, D backbone width, V vocabulary, H query heads, K key/value
heads, h head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from widestream.vwn.attention import Attention
from widestream.vwn.config import VWNConfig
from widestream.vwn.model import VWNTransformer


class VWNHuggingFaceConfig(PreTrainedConfig):  # type: ignore[misc]
    """`vwn` holds `VWNConfig.to_dict()`; the sizes that the library looks for are derived from it."""

    model_type = "widestream_vwn"
    vwn: dict[str, Any] | None = None
    vocab_size: int = 2
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    num_nextn_predict_layers: int = 0
    tie_word_embeddings: bool = False
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        config = self.vwn_config()
        self.vwn = config.to_dict()
        self.vocab_size, self.hidden_size = config.vocabulary_size, config.d_model
        self.num_hidden_layers, self.num_attention_heads = config.layers, config.heads
        self.num_key_value_heads, self.num_nextn_predict_layers = config.kv_heads, config.mtp_depth
        self.tie_word_embeddings = config.tie_embeddings
        super().__post_init__(**kwargs)

    def vwn_config(self) -> VWNConfig:
        """The model's config. Raises ValueError where sizes do not fit each other."""
        return VWNConfig.from_dict(self.vwn or {"vocabulary_size": 2})


class _LibraryCache:
    """An attention context over the library's cache; each row of the batch attends to its own real tokens."""

    def __init__(self, cache: Any, layers: dict[nn.Module, int], rows: int, past: int, attention_mask: Tensor | None):
        self.cache, self.layers, self.rows, self.past, self.attention_mask = cache, layers, rows, past, attention_mask

    def attend(self, layer: nn.Module, q_THh: Tensor, k_TKh: Tensor, v_TKh: Tensor) -> Tensor:
        """See `AttentionContext`."""
        q, k, v = (x.unflatten(0, (self.rows, -1)).transpose(1, 2) for x in (q_THh, k_TKh, v_TKh))
        k, v = self.cache.update(k, v, self.layers[layer])
        new, total = q.shape[2], k.shape[2]
        mask = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
        if self.attention_mask is not None:
            own = torch.eye(total, dtype=torch.bool, device=q.device)[total - new :]  # padding attends to itself
            mask = (mask & self.attention_mask[:, None, None, :total].bool()) | own
        grouped = q.shape[1] != k.shape[1]
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
        return out.transpose(1, 2).flatten(0, 1)


class VWNForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A `VWNTransformer` (`transformer`) with the library's forward, generation, saving and loading."""

    config_class = VWNHuggingFaceConfig
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = False  # VWNTransformer.set_recompute
    _keep_in_fp32_modules_strict = ("mixer",)
    _no_split_modules = ("VWNLayer",)
    _tied_weights_keys: dict[str, str] = {"transformer.head.weight": "transformer.embedding.table.weight"}  # noqa: RUF012

    def __init__(self, config: VWNHuggingFaceConfig) -> None:
        super().__init__(config)
        self.transformer = VWNTransformer(config.vwn_config())
        self.post_init()

    @classmethod
    def from_transformer(cls, model: VWNTransformer) -> VWNForCausalLM:
        """A Hugging Face model with a copy of the weights of `model`."""
        wrapped = cls(VWNHuggingFaceConfig(vwn=model.config.to_dict()))
        reference = model.head.weight
        wrapped.to(device=reference.device, dtype=reference.dtype)
        wrapped.transformer.load_state_dict(model.state_dict())
        wrapped.train(model.training)
        return wrapped

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: every module of a VWNTransformer has its initial values from its constructor."""

    def get_input_embeddings(self) -> nn.Module:
        """The table; its rows are rD wide with `embedding: table`."""
        return self.transformer.embedding.table

    def get_output_embeddings(self) -> nn.Module:
        """The LM head."""
        return self.transformer.head

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Refused."""
        raise NotImplementedError("the vocabulary of a VWNTransformer cannot be resized; build one of the new size")

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> Any:
        """Logits [B, S, V], the cache, and the loss where there are labels.

        Args:
            input_ids: [B, S].
            attention_mask: [B, past + S], 0 for padding. Padding gives results without meaning.
            position_ids: [B, S]. Default: the number of real tokens before.
            cache: the library's; of width D, whatever the virtual width.
            labels: [B, S] as the library has them: shifted inside, -100 for none. The loss is the next-token
                loss and, weighted as `VWNConfig` says, those of the multi-token depths and the routers.
            use_cache: give a cache back. Default: the config's, and never with labels.
            logits_to_keep: logits of the last tokens only; 0 for all.
        """
        if kwargs.get("output_hidden_states") or kwargs.get("output_attentions"):
            raise ValueError("output_hidden_states and output_attentions are not available: the states are rD wide")
        rows, length = input_ids.shape
        past = 0 if cache is None else cache.get_seq_length()
        if use_cache is None:
            use_cache = self.config.use_cache and labels is None
        if position_ids is None:
            if attention_mask is not None:
                position_ids = (attention_mask.long().cumsum(-1) - 1).clamp_min(0)[:, -length:]
            else:
                position_ids = (torch.arange(length, device=input_ids.device) + past).expand(rows, length)
        position_ids = position_ids.expand(rows, length)
        loss = None
        if use_cache or cache is not None:
            if labels is not None:
                raise ValueError("labels and a cache do not go together; call with use_cache=False")
            cache = DynamicCache() if cache is None else cache
            attentions = [part for part in self.transformer.layers.modules() if isinstance(part, Attention)]
            modules: dict[nn.Module, int] = {part: index for index, part in enumerate(attentions)}
            context = _LibraryCache(cache, modules, rows, past, attention_mask)
            wide = self.transformer.run_layers(input_ids.flatten(), position_ids.flatten(), context)
            hidden = self.transformer.exit(wide)
        else:
            padding = None if attention_mask is None else attention_mask == 0
            out = self.transformer(
                input_ids, position_ids, _borders(input_ids, padding), mtp=labels is not None, padding=padding
            )
            hidden = out.hidden[0]
            if labels is not None:
                loss = self._loss(out, labels, padding)
        kept = hidden.view(rows, length, -1)[:, -logits_to_keep:]
        return CausalLMOutputWithPast(loss=loss, logits=self.transformer.logits(kept), cache=cache)

    def _loss(self, out: Any, labels: Tensor, padding: Tensor | None) -> Tensor:
        config, losses = self.transformer.config, []
        if padding is not None:
            labels = labels.masked_fill(padding, -100)
        flat = labels.flatten()
        position = torch.arange(flat.numel(), device=flat.device)
        for depth, hidden in enumerate(out.hidden, start=1):
            target = functional.pad(flat[depth:], (0, depth), value=-100)
            target = target.masked_fill(position + depth >= out.document_end, -100)
            total = functional.cross_entropy(
                self.transformer.logits(hidden).float(), target, ignore_index=-100, reduction="sum"
            )
            losses.append(total / (target != -100).sum().clamp_min(1))
        loss = losses[0]
        for further in losses[1:]:
            loss = loss + further * (config.mtp_loss_weight / (len(losses) - 1))
        if out.router_loss is not None:
            loss = loss + config.load_balance_weight * out.router_loss
        return loss


def _borders(input_ids: Tensor, padding: Tensor | None) -> Tensor | None:
    """Borders where a row begins, or real tokens and padding meet: nothing real attends to padding."""
    if padding is None:
        return None
    begins = torch.ones_like(padding)
    begins[:, 1:] = padding[:, 1:] != padding[:, :-1]
    starts = begins.flatten().nonzero().squeeze(1).cpu()
    return torch.cat((starts, torch.tensor([input_ids.numel()])))


AutoConfig.register(VWNHuggingFaceConfig.model_type, VWNHuggingFaceConfig)
AutoModelForCausalLM.register(VWNHuggingFaceConfig, VWNForCausalLM)
