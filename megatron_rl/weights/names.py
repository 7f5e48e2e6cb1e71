"""The one table of weight names and fusion rules: Hugging Face checkpoint, Megatron-Core module, vLLM module.

A *rule* says which local parameter of an engine holds which checkpoint tensors, and how the engine's tensor-parallel
ranks cut it. Layouts, loading, export and synchronisation all derive from these rules; no other file spells a name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from megatron_rl.config.model import MlaConfig, ModelConfig, MoeConfig
from megatron_rl.resharding.spec import LogicalTensor

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
ROUTER_BIAS = "mlp.gate.e_score_correction_bias"
SHARED_GATE_UP_WEIGHTS = ("mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight")
SHARED_DOWN_WEIGHT = "mlp.shared_experts.down_proj.weight"
LATENT_DOWN_WEIGHTS = ("self_attn.q_a_proj.weight", "self_attn.kv_a_proj_with_mqa.weight")
LATENT_UP_WEIGHTS = ("self_attn.q_b_proj.weight", "self_attn.kv_b_proj.weight")
LATENT_NORMS = ("self_attn.q_a_layernorm.weight", "self_attn.kv_a_layernorm.weight")


class Cut(Enum):
    """How tensor-parallel rank ``r`` of ``t`` holds the tensors of a rule."""

    REPLICATED = "every part whole, one below the other"
    VOCAB = "rows r of t of the padded vocabulary"
    COLUMNS = "columns r of t"
    STACKED_ROWS = "rows r of t of every part, one part below the other"
    STACKED_HEADS = "[own query heads; own key heads; own value heads], key/value heads replicated where t exceeds them"
    ACTOR_HEADS = "as STACKED_HEADS while t divides the key/value heads; beyond, Megatron-Core's groups [q.. k v] cut evenly"


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
    Rule("self_attention.linear_qkv.weight", QKV_WEIGHTS, Cut.ACTOR_HEADS),
    Rule("self_attention.linear_qkv.bias", QKV_BIASES, Cut.ACTOR_HEADS),
    Rule("self_attention.q_layernorm.weight", ("self_attn.q_norm.weight",), Cut.REPLICATED),
    Rule("self_attention.k_layernorm.weight", ("self_attn.k_norm.weight",), Cut.REPLICATED),
    Rule("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), Cut.COLUMNS),
    Rule("pre_mlp_layernorm.weight", ("post_attention_layernorm.weight",), Cut.REPLICATED),
    Rule("mlp.linear_fc1.weight", GATE_UP_WEIGHTS, Cut.STACKED_ROWS),
    Rule("mlp.linear_fc2.weight", (DOWN_WEIGHT,), Cut.COLUMNS),
    Rule("mlp.router.weight", (ROUTER,), Cut.REPLICATED),
    Rule("mlp.router.expert_bias", (ROUTER_BIAS,), Cut.REPLICATED),
    Rule("mlp.shared_experts.linear_fc1.weight", SHARED_GATE_UP_WEIGHTS, Cut.STACKED_ROWS),
    Rule("mlp.shared_experts.linear_fc2.weight", (SHARED_DOWN_WEIGHT,), Cut.COLUMNS),
    Rule("self_attention.linear_q_down_proj.weight", LATENT_DOWN_WEIGHTS[:1], Cut.STACKED_ROWS),
    Rule("self_attention.linear_kv_down_proj.weight", LATENT_DOWN_WEIGHTS[1:], Cut.STACKED_ROWS),
    Rule("self_attention.q_layernorm.weight", LATENT_NORMS[:1], Cut.REPLICATED),
    Rule("self_attention.kv_layernorm.weight", LATENT_NORMS[1:], Cut.REPLICATED),
    Rule("self_attention.linear_q_up_proj.weight", LATENT_UP_WEIGHTS[:1], Cut.STACKED_ROWS),
    Rule("self_attention.linear_kv_up_proj.weight", LATENT_UP_WEIGHTS[1:], Cut.STACKED_ROWS),
)
_MEGATRON_EXPERT_NAMES = (
    "mlp.experts.local_experts.{slot}.linear_fc1.weight",
    "mlp.experts.local_experts.{slot}.linear_fc2.weight",
)
NORMS_INSIDE_LINEARS = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}
"""Names inside a layer of norms that Transformer Engine computes in the linear after them -> the name of the norm here."""
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
    Rule(ROUTER_BIAS, (ROUTER_BIAS,), Cut.REPLICATED),
    Rule("mlp.shared_experts.gate_up_proj.weight", SHARED_GATE_UP_WEIGHTS, Cut.STACKED_ROWS),
    Rule(SHARED_DOWN_WEIGHT, (SHARED_DOWN_WEIGHT,), Cut.COLUMNS),
    Rule("self_attn.fused_qkv_a_proj.weight", LATENT_DOWN_WEIGHTS, Cut.REPLICATED),
    *(Rule(name, (name,), Cut.REPLICATED) for name in LATENT_NORMS),
    *(Rule(name, (name,), Cut.STACKED_ROWS) for name in LATENT_UP_WEIGHTS),
)
_VLLM_EXPERT_NAMES = ("mlp.experts.routed_experts.w13_weight", "mlp.experts.routed_experts.w2_weight")

MEGATRON_EMBEDDING = Rule("embedding.word_embeddings.weight", (EMBEDDING,), Cut.VOCAB)
MEGATRON_FINAL_NORM = Rule("decoder.final_layernorm.weight", (FINAL_NORM,), Cut.REPLICATED)
MEGATRON_OUTPUT = Rule("output_layer.weight", (LM_HEAD,), Cut.VOCAB)
MEGATRON_TIED_OUTPUT = Rule("output_layer.weight", (EMBEDDING,), Cut.VOCAB)
MEGATRON_VOCABULARY = (MEGATRON_EMBEDDING.local, MEGATRON_OUTPUT.local)
"""Megatron's parameters with a row for each token of the padded vocabulary."""
"""A tied model with pipeline stages: the last stage keeps its own copy of the embedding."""


def parameter_name(module_name: str) -> str:
    """Our name of a Megatron-Core parameter: the same whichever layer spec built the module.

    Example: ``decoder.layers.0.mlp.linear_fc1.layer_norm_weight`` is ``decoder.layers.0.pre_mlp_layernorm.weight``.
    """
    for inside, norm in NORMS_INSIDE_LINEARS.items():
        if module_name.endswith(f".{inside}"):
            return module_name.removesuffix(inside) + norm
    return module_name


def megatron_layer_rules(model: ModelConfig, layer: int) -> tuple[Rule, ...]:
    """Rules of one decoder layer under Megatron-Core's names, routed experts left out; ``layer`` is the global index."""
    return tuple(rule.at_layer(layer, _MEGATRON_LAYER) for rule in _present(_MEGATRON_LAYER_RULES, model, layer))


def megatron_expert_rules(model: ModelConfig, layer: int, expert: int, slot: int) -> tuple[Rule, ...]:
    """Rules of one routed expert (global index), cut over the expert-tensor ranks; none in a dense layer.

    ``slot``: its place among the experts of its rank, by which Megatron-Core names it.
    """
    if not has_experts(model, layer):
        return ()
    up_name, down_name = (name.format(slot=slot) for name in _MEGATRON_EXPERT_NAMES)
    return tuple(rule.at_layer(layer, _MEGATRON_LAYER) for rule in _expert_rules(up_name, down_name, expert))


def vllm_layer_rules(model: ModelConfig, layer: int) -> tuple[Rule, ...]:
    """Rules of one decoder layer under the names of vLLM's modules, routed experts left out."""
    return tuple(rule.at_layer(layer, _LAYER) for rule in _present(_VLLM_LAYER_RULES, model, layer))


def vllm_expert_rules(model: ModelConfig, layer: int, expert: int) -> tuple[Rule, ...]:
    """Rules of one routed expert; vLLM stacks the local experts of a layer in the parameter that every rule names."""
    if not has_experts(model, layer):
        return ()
    return tuple(rule.at_layer(layer, _LAYER) for rule in _expert_rules(*_VLLM_EXPERT_NAMES, expert))


def vllm_end_rules(model: ModelConfig, *, first: bool = True, last: bool = True) -> tuple[Rule, ...]:
    """Rules of what lies outside the layers on the first or the last pipeline stage, or on the only one.

    A tied model has its embedding on both. vLLM builds Qwen3-MoE with both ends on every stage.
    """
    if model.architecture == "qwen3_moe":
        first = last = True
    rules = []
    if first or (last and model.tie_word_embeddings):
        rules.append(Rule(EMBEDDING, (EMBEDDING,), Cut.VOCAB))
    if last:
        rules.append(Rule(FINAL_NORM, (FINAL_NORM,), Cut.REPLICATED))
    if last and not model.tie_word_embeddings:
        rules.append(Rule(LM_HEAD, (LM_HEAD,), Cut.VOCAB))
    return tuple(rules)


def has_experts(model: ModelConfig, layer: int) -> bool:
    """Whether a layer (global index) has routed experts instead of a dense MLP."""
    return model.moe is not None and layer >= model.moe.num_dense_layers


def renumbered(name: str, layer: int, other: int) -> str:
    """The name of a tensor or parameter of one layer in another layer, under any of the three naming schemes."""
    return name.replace(f".layers.{layer}.", f".layers.{other}.", 1)


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
    hidden = model.hidden_size
    yield "input_layernorm.weight", (hidden,)
    yield from _attention_shapes(model) if model.mla is None else _latent_attention_shapes(model, model.mla)
    yield "post_attention_layernorm.weight", (hidden,)
    if model.moe is not None and has_experts(model, layer):
        yield from _moe_shapes(model, model.moe)
    else:
        yield from _mlp_shapes(GATE_UP_WEIGHTS, DOWN_WEIGHT, model.intermediate_size, hidden)


def _attention_shapes(model: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, head = model.hidden_size, model.kv_channels
    query, key = model.num_attention_heads * head, model.num_key_value_heads * head
    for weight, bias, rows in zip(QKV_WEIGHTS, QKV_BIASES, (query, key, key), strict=True):
        yield weight, (rows, hidden)
        if model.qkv_bias:
            yield bias, (rows,)
    if model.qk_norm:
        yield "self_attn.q_norm.weight", (head,)
        yield "self_attn.k_norm.weight", (head,)
    yield "self_attn.o_proj.weight", (hidden, query)


def _latent_attention_shapes(model: ModelConfig, mla: MlaConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Multi-head latent attention: queries and key/values go down to a latent vector and up again, head by head."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    ranks = (mla.q_lora_rank, mla.kv_lora_rank)
    up_rows = (mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.qk_nope_head_dim + mla.v_head_dim)
    for name, rows in zip(LATENT_DOWN_WEIGHTS, (ranks[0], ranks[1] + mla.qk_rope_head_dim), strict=True):
        yield name, (rows, hidden)
    yield from ((name, (rank,)) for name, rank in zip(LATENT_NORMS, ranks, strict=True))
    for name, rows, rank in zip(LATENT_UP_WEIGHTS, up_rows, ranks, strict=True):
        yield name, (heads * rows, rank)
    yield "self_attn.o_proj.weight", (hidden, heads * mla.v_head_dim)


def _moe_shapes(model: ModelConfig, moe: MoeConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Router and shared experts. DeepSeek-V3 balances its experts by a bias on the router's scores."""
    yield ROUTER, (moe.num_experts, model.hidden_size)
    if model.architecture == "deepseek_v3":
        yield ROUTER_BIAS, (moe.num_experts,)
    if moe.num_shared_experts:
        inner = moe.num_shared_experts * moe.expert_intermediate_size
        yield from _mlp_shapes(SHARED_GATE_UP_WEIGHTS, SHARED_DOWN_WEIGHT, inner, model.hidden_size)


def _mlp_shapes(gate_up: tuple[str, ...], down: str, inner: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((name, (inner, hidden)) for name in gate_up)
    yield down, (hidden, inner)


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
