"""This pipeline stage's part of a Llama / Qwen2 / Qwen3 model, built from our configuration.

The last stage returns hidden states; heads are applied by the forward step, so that a fused head needs no other model.

Shape suffixes: T packed tokens, H hidden.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.training import RecomputeConfig
from megatron_rl.models.attention import packed_documents
from megatron_rl.models.layer_spec import accumulate_into_main_grad, block_spec
from megatron_rl.models.rotary import rotary_frequencies
from megatron_rl.models.transformer_impl import LayerImplementation, has_apex_accumulation, layer_implementation
from megatron_rl.models.value_head import ValueHead
from megatron_rl.parallel.groups import RoleGroups
from megatron_rl.parallel.layout import ParallelLayout, padded_vocab_size
from megatron_rl.runtime.platform import Platform
from megatron_rl.types.batches import PackedTokens
from megatron_rl.weights.names import parameter_name

Head = Literal["lm", "value"]

_EXTRA_STATE = "_extra_state"
"""Ends the name of a module's scales for quantised products; nothing here is quantised."""
_LOCAL_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")


class TransformerStage(GPTModel):  # type: ignore[misc]
    """One chunk of layers; the first also embeds, the last also normalises and owns the head's weight."""

    def __init__(self, model_config: ModelConfig, head: Head, **megatron_arguments: Any) -> None:
        """Build the chunk; weights are allocated, not initialised (see ``initialise``)."""
        super().__init__(**megatron_arguments)
        self.head = head
        self.rotary_frequencies = rotary_frequencies(model_config).to(torch.cuda.current_device())
        if head == "value" and self.post_process:
            del self.output_layer
            self.value_head = ValueHead(self.config)
        self.register_load_state_dict_post_hook(_do_not_miss_extra_state)

    def forward(self, packed: PackedTokens) -> Tensor:
        """Hidden states of this chunk, ``[T, 1, H]``; under sequence parallelism this rank's slice of T.

        Collectives: the tensor-parallel group, with the same pack on each of its ranks.
        """
        # Later chunks take their input from the pipeline (set_input_tensor), not from here.
        embedded = self.embedding(input_ids=packed.tokens_T[None], position_ids=None) if self.pre_process else None
        hidden: Tensor = self.decoder(
            hidden_states=embedded,
            attention_mask=None,
            packed_seq_params=packed_documents(packed, self.rotary_frequencies, self.config.params_dtype),
        )
        return hidden

    def head_weight(self) -> Tensor:
        """This rank's rows of the LM head, ``[padded_vocab / TP, H]``; the embedding itself where they are tied."""
        weight: Tensor
        if self.share_embeddings_and_output_weights:
            weight = self.shared_embedding_or_output_weight()
        else:
            weight = self.output_layer.weight
        return weight

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Shards of this chunk for a distributed checkpoint."""
        if self.head == "value":
            # The language model's rules about its output layer do not apply.
            shards: dict[str, Any] = MegatronModule.sharded_state_dict(self, prefix, sharded_offsets, metadata)
        else:
            shards = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        return {name: shard for name, shard in shards.items() if not name.endswith(_EXTRA_STATE)}


def _do_not_miss_extra_state(_: torch.nn.Module, incompatible: Any) -> None:
    """Let a checkpoint load that has no scales of quantised layers: which modules want them depends on the layer spec."""
    incompatible.missing_keys[:] = [key for key in incompatible.missing_keys if not key.endswith(_EXTRA_STATE)]


def transformer_config(
    model: ModelConfig,
    layout: ParallelLayout,
    platform: Platform,
    recompute: RecomputeConfig,
    implementation: LayerImplementation,
) -> TransformerConfig:
    """Translate our configuration into Megatron's.

    Raises ValueError where the layout does not fit the shape.
    """
    _check_fit(model, layout)
    on_cuda = platform.device.type == "cuda"
    full = recompute.granularity == "full"
    interleaved = layout.virtual_pipeline > 1
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.intermediate_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_key_value_heads,
        kv_channels=model.kv_channels,
        normalization="RMSNorm",
        layernorm_epsilon=model.rms_norm_eps,
        qk_layernorm=model.qk_norm,
        add_bias_linear=False,
        add_qkv_bias=model.qkv_bias,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        transformer_impl=implementation,
        # Our fused activation, in the slot that Megatron has for Transformer Engine's (see layer_spec.SwiGlu).
        use_te_activation_func=on_cuda,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        # Of Megatron's own linears; Transformer Engine's are told by ``accumulate_into_main_grad``.
        gradient_accumulation_fusion=on_cuda and implementation == "local" and has_apex_accumulation(),
        # Transformer Engine then adds every gradient to the buffer, the first one of a step too.
        disable_parameter_transpose_cache=True,
        params_dtype=platform.dtype,
        pipeline_dtype=platform.dtype,
        bf16=platform.dtype == torch.bfloat16,
        use_cpu_initialization=not on_cuda,
        perform_initialization=False,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline if interleaved else None,
        sequence_parallel=layout.sequence_parallel,
        # Packs differ in length; Megatron then wants this dispatcher, also for dense models. Its exchange of lengths
        # pairs messages wrongly on an interleaved pipeline of two stages, so there all packs get one length.
        variable_seq_lengths=not interleaved,
        moe_token_dispatcher_type="alltoall",
        # With two stages the next and the previous rank are the same one, and batched sends and receives of an
        # interleaved schedule then pair up wrongly, silently.
        batch_p2p_comm=not (interleaved and layout.pipeline == 2),
        # Megatron must not divide by anything: our loss weights hold the global denominator.
        calculate_per_token_loss=True,
        recompute_granularity=recompute.granularity,
        recompute_method=recompute.method if full else None,
        recompute_num_layers=recompute.num_layers if full else None,
    )


def _check_fit(model: ModelConfig, layout: ParallelLayout) -> None:
    chunks = layout.pipeline * layout.virtual_pipeline
    problems = [
        f"{what}={size} is not divisible by {axis}={degree}"
        for what, size, axis, degree in (
            ("model.num_attention_heads", model.num_attention_heads, "parallel.tensor", layout.tensor),
            ("model.num_key_value_heads", model.num_key_value_heads, "parallel.tensor", layout.tensor),
            ("model.intermediate_size", model.intermediate_size, "parallel.tensor", layout.tensor),
            ("model.num_layers", model.num_layers, "parallel.pipeline * parallel.virtual_pipeline", chunks),
        )
        if size % degree
    ]
    if layout.virtual_pipeline > 1 and layout.pipeline == 1:
        problems.append(f"parallel.virtual_pipeline={layout.virtual_pipeline} needs parallel.pipeline > 1")
    if layout.sequence_parallel and layout.tensor == 1:
        problems.append("parallel.sequence_parallel=true needs parallel.tensor > 1")
    if layout.context > 1 or layout.expert > 1:
        problems.append("parallel.context and parallel.expert above 1 are not trained by this release")
    if model.moe is not None or model.mla is not None:
        problems.append(f"model.name={model.name}: mixture-of-experts and latent attention are not trained by this release")
    if problems:
        raise ValueError("; ".join(problems))


def build_stage(
    model: ModelConfig,
    groups: RoleGroups,
    platform: Platform,
    *,
    head: Head = "lm",
    recompute: RecomputeConfig | None = None,
) -> list[TransformerStage]:
    """Chunks of this rank, in the order Megatron's schedules want them; the only place that builds a model.

    Collectives: with tied embeddings and several stages, the embedding group.
    """
    layout, coordinates = groups.layout, groups.coordinates
    assert coordinates is not None, "this rank is outside the role's layout"
    implementation = layer_implementation(model, platform)
    config = transformer_config(model, layout, platform, recompute or RecomputeConfig(), implementation)
    stage, last = coordinates.pipeline, layout.pipeline - 1
    chunks = []
    for index in range(layout.virtual_pipeline):
        vp_stage = index if layout.virtual_pipeline > 1 else None
        num_layers = get_num_layers_to_build(config, vp_stage=vp_stage, pp_rank=stage)
        with groups.as_megatron_globals():
            chunk = TransformerStage(
                model,
                head,
                config=config,
                transformer_layer_spec=block_spec(config, num_layers, implementation),
                vocab_size=padded_vocab_size(model.vocab_size, layout.tensor),
                max_sequence_length=model.max_position_embeddings,
                pre_process=stage == 0 and index == 0,
                post_process=stage == last and index == layout.virtual_pipeline - 1,
                share_embeddings_and_output_weights=model.tie_word_embeddings and head == "lm",
                # Angles come from rotary.py, per packed token.
                position_embedding_type="none",
                pg_collection=groups.collection,
                vp_stage=vp_stage,
            )
        if implementation == "transformer_engine":
            accumulate_into_main_grad(chunk)
        chunks.append(chunk)
    return chunks


def _with_global_layer(name: str, offset: int) -> str:
    """``decoder.layers.0.x`` of a chunk whose first layer is ``offset`` -> ``decoder.layers.<offset>.x``."""
    return _LOCAL_LAYER.sub(lambda match: f"decoder.layers.{int(match[1]) + offset}.", name)


def named_local_parameters(chunks: Sequence[torch.nn.Module], groups: RoleGroups) -> dict[str, torch.nn.Parameter]:
    """Parameters of this rank by Megatron's name with the *global* layer index, so that no two ranks' names clash.

    Names do not depend on the layer spec (``weights.names.parameter_name``).

    Example: the first layer of the second of two stages of four layers is ``decoder.layers.2.…``. With tied embeddings
    and several stages the last stage also lists its copy, ``output_layer.weight``.

    Args:
        chunks: stages as built, without data-parallel wrappers.
        groups: of the role.
    """
    assert groups.coordinates is not None
    parameters = {}
    for chunk in chunks:
        offset = get_transformer_layer_offset(chunk.config, chunk.vp_stage, groups.coordinates.pipeline)
        for name, parameter in chunk.named_parameters():
            parameters[parameter_name(_with_global_layer(name, offset))] = parameter
    return parameters
