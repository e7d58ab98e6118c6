"""The frozen target LLM: logits, features, KV cache, chat template; wraps Transformers."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from xpress_exp.few_rows import FewRows, LayoutChoice, shared
from xpress_exp.kv_cache import KVCache
from xpress_exp.readout import vocab_logits
from xpress_exp.target.fused import FusedDecoder, unfit
from xpress_exp.target.layer_ids import check_layer_ids
from xpress_exp.types import TargetOutput


class TargetCache:
    """KV cache of the target for one batch; grows with each forward, cropped after verification."""

    def __init__(self) -> None:
        # Without a config every layer keeps all tokens, so that cropping is always possible.
        self.layers = DynamicCache()

    @property
    def length(self) -> int:
        """Number of cached tokens per row."""
        return self.layers.get_seq_length()

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens; raises ValueError when fewer are cached."""
        surplus = self.length - length
        if surplus < 0:
            raise ValueError(f"cannot crop a cache of {self.length} tokens to {length}")
        if surplus:
            self.layers.crop(-surplus)

    def select_rows(self, rows: Tensor) -> None:
        """Keep only the given batch rows, int64 [k]."""
        self.layers.batch_select_indices(rows)


class TargetModel:
    """A frozen Hugging Face decoder-only LM. Not an nn.Module: it never enters an optimizer,
    a checkpoint or a train() call.

    `facts` are sizes declared in the config; each is checked against the model (None is skipped).
    Raises ValueError when a fact or a layer id does not fit the model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Any,
        name: str,
        layer_ids: Sequence[int],
        identity: Mapping[str, Any],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model.eval().requires_grad_(False)
        self._decoder: Any = model.get_decoder()  # type: ignore[operator]
        parameters = inspect.signature(type(self._decoder).forward).parameters
        # Renamed in Transformers 5; the old name is gone from 5.40 on.
        self._cache_keyword = "cache" if "cache" in parameters else "past_key_values"
        config: Any = model.config
        self.config = config
        self.name = name
        self.tokenizer = tokenizer
        self.hidden_size: int = config.hidden_size
        self.vocab_size: int = config.vocab_size
        self.num_layers: int = config.num_hidden_layers
        self.pad_token_id: int | None = config.pad_token_id
        self.stop_token_ids = _stop_token_ids(model, tokenizer)
        self.embedding: Tensor = model.get_input_embeddings().weight.detach()  # type: ignore
        self.lm_head: Tensor = model.get_output_embeddings().weight.detach()  # type: ignore
        self.rope_inv_freq: Tensor = self._decoder.rotary_emb.inv_freq.detach()
        self.rope_scale = float(getattr(self._decoder.rotary_emb, "attention_scaling", 1.0))
        self.layer_ids = tuple(layer_ids)
        check_layer_ids(self.layer_ids, self.num_layers)
        self._check_facts(facts or {})
        template = getattr(tokenizer, "chat_template", None) or ""
        if not isinstance(template, str):  # several templates by name
            template = json.dumps(template, sort_keys=True)
        self.identity: dict[str, Any] = {
            **identity,
            "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
        }
        self._fused: FusedDecoder | None = None
        self._fast_head: FewRows | None = None
        self._origin: TargetModel | None = None
        self._captured: dict[int, Tensor] = {}
        for layer_id in self.layer_ids:
            hook = self._decoder.layers[layer_id].register_forward_hook(self._capture(layer_id))
            # A model may be wrapped again and again; old wrappers must not go on capturing.
            weakref.finalize(self, hook.remove)

    def _capture(self, layer_id: int) -> Any:
        captured = self._captured  # not self: the hook must not keep its own wrapper alive

        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            captured[layer_id] = output if isinstance(output, Tensor) else output[0]

        return hook

    def _check_facts(self, facts: Mapping[str, Any]) -> None:
        actual: dict[str, Any] = {
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "num_layers": self.num_layers,
            "pad_token_id": self.pad_token_id,
            "stop_token_ids": sorted(self.stop_token_ids),
        }
        for field, declared in facts.items():
            if field not in actual:
                raise ValueError(f"target.{field} is no option or fact of {self.name}; remove it")
            if declared is None:
                continue
            declared = sorted(declared) if field == "stop_token_ids" else declared
            if declared != actual[field]:
                raise ValueError(
                    f"target.{field}={declared}, but {self.name} has {actual[field]}; "
                    f"set target.{field}={actual[field]}"
                )

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def generation_config(self) -> Any:
        """The model's own generation settings, a copy."""
        return copy.deepcopy(self._model.generation_config)

    def with_stop_tokens(self, stop_token_ids: Collection[int]) -> TargetModel:
        """The same model under other stop tokens."""
        other = copy.copy(self)
        other.stop_token_ids = frozenset(stop_token_ids)
        other._origin = self  # whose hooks it reads
        return other

    @property
    def feature_size(self) -> int:
        """F: width of the concatenated features."""
        return len(self.layer_ids) * self.hidden_size

    def make_fast(self, choice: LayoutChoice) -> str:
        """Decode through `FusedDecoder` from now on. Returns why this model cannot, or ''."""
        reason = unfit(self.config)
        if not reason and self._fused is None:
            self._fused = FusedDecoder(self._decoder, self.config, choice)
            self._fast_head = shared(self.lm_head, choice)
        return reason

    def new_cache(self) -> TargetCache:
        """A cache for padded batches, read and filled by the Transformers model."""
        return TargetCache()

    def new_decode_cache(self, batch: int = 1) -> TargetCache | KVCache:
        """A cache for decoding without padding; the fast one after `make_fast`."""
        return TargetCache() if self._fused is None else self._fused.new_cache(batch)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        cache: TargetCache | KVCache | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        num_logits: int | None = None,
    ) -> TargetOutput:
        """Run the target on input_ids int64 [b, q] after the cached tokens.

        attention_mask bool [b, cached + q] marks real tokens of padded rows, position_ids int64
        [b, q] their positions (default: consecutive). num_logits asks for the logits of the last k
        tokens only: None for all q, 0 for none. Features are the outputs of `layer_ids`. A KVCache
        takes the tokens of each row right behind its own; it has no use for mask and positions.
        """
        if isinstance(cache, KVCache):
            assert self._fused is not None and attention_mask is None and position_ids is None
            hidden, captured = self._fused(input_ids, cache, self.layer_ids)
            return self._output(hidden, captured, num_logits)
        arguments: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            arguments[self._cache_keyword] = cache.layers
        if attention_mask is not None:
            arguments["attention_mask"] = attention_mask.to(torch.int64)
        if position_ids is not None:
            arguments["position_ids"] = position_ids
        hidden = self._decoder(input_ids=input_ids, **arguments).last_hidden_state
        captured = [self._captured[layer_id] for layer_id in self.layer_ids]
        self._captured.clear()
        return self._output(hidden, captured, num_logits)

    def _output(
        self, hidden: Tensor, captured: Sequence[Tensor], num_logits: int | None
    ) -> TargetOutput:
        logits = None
        if num_logits != 0:
            wanted = hidden if num_logits is None else hidden[:, -num_logits:]
            logits = self.logits(wanted).float()
        return TargetOutput(logits, features=torch.cat(list(captured), -1), last_hidden=hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """LM head: hidden [..., H] -> [..., V] in hidden's dtype."""
        if self._fast_head is not None:
            return self._fast_head(hidden)
        return vocab_logits(hidden, self.lm_head)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation under the target's own chat template, with the generation
        prompt. One function for regeneration, training and evaluation, so they cannot differ."""
        encoded = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            add_generation_prompt=True,
            return_dict=True,
            enable_thinking=False,
        )
        return list(encoded["input_ids"])

    def decode_text(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


def _stop_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a response: of the generation config, the model config and the tokenizer."""
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None), model.config, tokenizer):
        value = getattr(owner, "eos_token_id", None)
        if value is not None:
            found.update([value] if isinstance(value, int) else value)
    return frozenset(found)
