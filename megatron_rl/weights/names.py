"""The one table of weight names and fusion rules: Hugging Face checkpoint, Megatron-Core module, vLLM module.

A *rule* says which local parameter of an engine holds which checkpoint tensors, and how the engine's tensor-parallel
ranks cut it. Layouts, loading, export and synchronisation all derive from these rules; no other file spells a name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from megatron_rl.config.model import ModelConfig
from megatron_rl.resharding.spec import LogicalTensor

MegatronSpec = Literal["local", "te"]
"""``local``: norms are modules of their own. ``te``: Transformer Engine fuses a norm into the linear after it."""

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
_LAYER = "model.layers.{layer}."

QKV_WEIGHTS = tuple(f"self_attn.{p}_proj.weight" for p in "qkv")
QKV_BIASES = tuple(f"self_attn.{p}_proj.bias" for p in "qkv")
GATE_UP_WEIGHTS = ("mlp.gate_proj.weight", "mlp.up_proj.weight")
DOWN_WEIGHT = "mlp.down_proj.weight"
_EXPERT = "mlp.experts.{expert}."
_EXPERT_GATE_UP = ("gate_proj.weight", "up_proj.weight")
_EXPERT_DOWN = "down_proj.weight"
ROUTER = "mlp.gate.weight"


class Cut(Enum):
    """How tensor-parallel rank ``r`` of ``t`` holds the tensors of a rule."""

    REPLICATED = "the whole tensor"
    VOCAB = "rows r of t of the padded vocabulary"
    COLUMNS = "columns r of t"
    STACKED_ROWS = "rows r of t of every part, one part below the other"
    GROUPED_HEADS = "rows r of t of all key/value groups in turn, each as [its query heads; its key head; its value head]"
    STACKED_HEADS = "[own query heads; own key heads; own value heads], key/value heads replicated where t exceeds them"


@dataclass(frozen=True, slots=True)
class Rule:
    """One local parameter: its name, the checkpoint tensors inside it and the way it is cut.

    Example: ``Rule("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), Cut.COLUMNS)``. Names inside a layer leave out
    the layer's prefix until ``at_layer`` adds it.
    """

    local: str
    parts: tuple[str, ...]
    cut: Cut

    def at_layer(self, layer: int, local_prefix: str) -> Rule:
        """The same rule with full names for one layer (global index)."""
        prefix = _LAYER.format(layer=layer)
        return Rule(local_prefix.format(layer=layer) + self.local, tuple(prefix + p for p in self.parts), self.cut)


_MEGATRON_LAYER = "decoder.layers.{layer}."
_MEGATRON_LAYER_RULES = (
    Rule("input_layernorm.weight", ("input_layernorm.weight",), Cut.REPLICATED),
    Rule("self_attention.linear_qkv.weight", QKV_WEIGHTS, Cut.GROUPED_HEADS),
    Rule("self_attention.linear_qkv.bias", QKV_BIASES, Cut.GROUPED_HEADS),
    Rule("self_attention.q_layernorm.weight", ("self_attn.q_norm.weight",), Cut.REPLICATED),
    Rule("self_attention.k_layernorm.weight", ("self_attn.k_norm.weight",), Cut.REPLICATED),
    Rule("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), Cut.COLUMNS),
    Rule("pre_mlp_layernorm.weight", ("post_attention_layernorm.weight",), Cut.REPLICATED),
    Rule("mlp.linear_fc1.weight", GATE_UP_WEIGHTS, Cut.STACKED_ROWS),
    Rule("mlp.linear_fc2.weight", (DOWN_WEIGHT,), Cut.COLUMNS),
    Rule("mlp.router.weight", (ROUTER,), Cut.REPLICATED),
)
_MEGATRON_EXPERT_NAMES = {
    "local": ("mlp.experts.local_experts.{expert}.linear_fc1.weight", "mlp.experts.local_experts.{expert}.linear_fc2.weight"),
    "te": ("mlp.experts.linear_fc1.weight{expert}", "mlp.experts.linear_fc2.weight{expert}"),
}
_TE_LOCAL_NAMES = {
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
}
_VLLM_LAYER_RULES = (
    Rule("input_layernorm.weight", ("input_layernorm.weight",), Cut.REPLICATED),
    Rule("self_attn.qkv_proj.weight", QKV_WEIGHTS, Cut.STACKED_HEADS),
    Rule("self_attn.qkv_proj.bias", QKV_BIASES, Cut.STACKED_HEADS),
    Rule("self_attn.q_norm.weight", ("self_attn.q_norm.weight",), Cut.REPLICATED),
    Rule("self_attn.k_norm.weight", ("self_attn.k_norm.weight",), Cut.REPLICATED),
    Rule("self_attn.o_proj.weight", ("self_attn.o_proj.weight",), Cut.COLUMNS),
    Rule("post_attention_layernorm.weight", ("post_attention_layernorm.weight",), Cut.REPLICATED),
    Rule("mlp.gate_up_proj.weight", GATE_UP_WEIGHTS, Cut.STACKED_ROWS),
    Rule("mlp.down_proj.weight", (DOWN_WEIGHT,), Cut.COLUMNS),
    Rule("mlp.gate.weight", (ROUTER,), Cut.REPLICATED),
)
_VLLM_EXPERT_NAMES = ("mlp.experts.routed_experts.w13_weight", "mlp.experts.routed_experts.w2_weight")

MEGATRON_EMBEDDING = Rule("embedding.word_embeddings.weight", (EMBEDDING,), Cut.VOCAB)
MEGATRON_FINAL_NORM = Rule("decoder.final_layernorm.weight", (FINAL_NORM,), Cut.REPLICATED)
MEGATRON_OUTPUT = Rule("output_layer.weight", (LM_HEAD,), Cut.VOCAB)
MEGATRON_TIED_OUTPUT = Rule("output_layer.weight", (EMBEDDING,), Cut.VOCAB)
"""A tied model with pipeline stages: the last stage keeps its own copy of the embedding."""


def megatron_layer_rules(model: ModelConfig, layer: int, spec: MegatronSpec = "local") -> tuple[Rule, ...]:
    """Rules of one decoder layer under Megatron-Core's names, routed experts left out; ``layer`` is the global index."""
    rules = _present(_MEGATRON_LAYER_RULES, model, layer)
    if spec == "te":
        rules = tuple(Rule(_TE_LOCAL_NAMES.get(r.local, r.local), r.parts, r.cut) for r in rules)
    return tuple(rule.at_layer(layer, _MEGATRON_LAYER) for rule in rules)


def megatron_expert_rules(model: ModelConfig, layer: int, expert: int, spec: MegatronSpec = "local") -> tuple[Rule, ...]:
    """Rules of one routed expert (global index), cut over the expert-tensor ranks; none in a dense layer."""
    if not has_experts(model, layer):
        return ()
    up_name, down_name = (name.format(expert=expert) for name in _MEGATRON_EXPERT_NAMES[spec])
    return tuple(rule.at_layer(layer, _MEGATRON_LAYER) for rule in _expert_rules(up_name, down_name, expert))


def vllm_layer_rules(model: ModelConfig, layer: int) -> tuple[Rule, ...]:
    """Rules of one decoder layer under the names of vLLM's modules, routed experts left out."""
    return tuple(rule.at_layer(layer, _LAYER) for rule in _present(_VLLM_LAYER_RULES, model, layer))


def vllm_expert_rules(model: ModelConfig, layer: int, expert: int) -> tuple[Rule, ...]:
    """Rules of one routed expert; vLLM stacks the local experts of a layer in the parameter that every rule names."""
    if not has_experts(model, layer):
        return ()
    return tuple(rule.at_layer(layer, _LAYER) for rule in _expert_rules(*_VLLM_EXPERT_NAMES, expert))


def vllm_end_rules(model: ModelConfig) -> tuple[Rule, ...]:
    """Rules of what lies outside the layers."""
    ends = (Rule(EMBEDDING, (EMBEDDING,), Cut.VOCAB), Rule(FINAL_NORM, (FINAL_NORM,), Cut.REPLICATED))
    return ends if model.tie_word_embeddings else (*ends, Rule(LM_HEAD, (LM_HEAD,), Cut.VOCAB))


def has_experts(model: ModelConfig, layer: int) -> bool:
    """Whether a layer (global index) has routed experts instead of a dense MLP."""
    return model.moe is not None and layer >= model.moe.num_dense_layers


def is_routed_expert(name: str) -> bool:
    """Whether a checkpoint tensor belongs to one routed expert."""
    return ".mlp.experts." in name


def logical_tensors(model: ModelConfig) -> tuple[LogicalTensor, ...]:
    """Every tensor of the model's Hugging Face checkpoint, in file order; a tied model has no ``lm_head.weight``."""
    vocab = (model.vocab_size, model.hidden_size)
    tensors = [LogicalTensor(EMBEDDING, vocab)]
    for layer in range(model.num_layers):
        prefix = _LAYER.format(layer=layer)
        shapes = (*_layer_shapes(model, layer), *_expert_shapes(model, layer))
        tensors += [LogicalTensor(prefix + name, shape) for name, shape in shapes]
    tensors.append(LogicalTensor(FINAL_NORM, (model.hidden_size,)))
    if not model.tie_word_embeddings:
        tensors.append(LogicalTensor(LM_HEAD, vocab))
    return tuple(tensors)


def _layer_shapes(model: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    _require_known(model)
    hidden, inner, head = model.hidden_size, model.intermediate_size, model.kv_channels
    query, key = model.num_attention_heads * head, model.num_key_value_heads * head
    yield "input_layernorm.weight", (hidden,)
    for weight, bias, rows in zip(QKV_WEIGHTS, QKV_BIASES, (query, key, key), strict=True):
        yield weight, (rows, hidden)
        if model.qkv_bias:
            yield bias, (rows,)
    if model.qk_norm:
        yield "self_attn.q_norm.weight", (head,)
        yield "self_attn.k_norm.weight", (head,)
    yield "self_attn.o_proj.weight", (hidden, query)
    yield "post_attention_layernorm.weight", (hidden,)
    if has_experts(model, layer):
        assert model.moe is not None
        yield ROUTER, (model.moe.num_experts, hidden)
    else:
        for name in GATE_UP_WEIGHTS:
            yield name, (inner, hidden)
        yield DOWN_WEIGHT, (hidden, inner)


def _expert_shapes(model: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    if model.moe is None or not has_experts(model, layer):
        return
    hidden, inner = model.hidden_size, model.moe.expert_intermediate_size
    for expert in range(model.moe.num_experts):
        prefix = _EXPERT.format(expert=expert)
        for name in _EXPERT_GATE_UP:
            yield prefix + name, (inner, hidden)
        yield prefix + _EXPERT_DOWN, (hidden, inner)


def _expert_rules(up_name: str, down_name: str, expert: int) -> tuple[Rule, Rule]:
    prefix = _EXPERT.format(expert=expert)
    gate_up = tuple(prefix + name for name in _EXPERT_GATE_UP)
    return Rule(up_name, gate_up, Cut.STACKED_ROWS), Rule(down_name, (prefix + _EXPERT_DOWN,), Cut.COLUMNS)


def _present(rules: tuple[Rule, ...], model: ModelConfig, layer: int) -> tuple[Rule, ...]:
    """Rules whose checkpoint tensors this layer has."""
    names = {name for name, _ in _layer_shapes(model, layer)}
    return tuple(rule for rule in rules if names.issuperset(rule.parts))


def _require_known(model: ModelConfig) -> None:
    if model.mla is not None or (model.moe is not None and model.moe.num_shared_experts):
        raise ValueError(
            f"model.architecture={model.architecture}: weight names are known for Llama, Qwen2, Qwen3 and Qwen3-MoE; "
            "latent attention (model.mla) and shared experts (model.moe.num_shared_experts) are not planned yet"
        )
