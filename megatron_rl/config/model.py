"""Model shapes, weights and tokenizer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from megatron_rl.config.base import Section

TransformerImpl = Literal["auto", "transformer_engine", "local"]


class RopeScalingConfig(Section):
    """Llama-3 style frequency scaling of rotary embeddings."""

    rope_type: Literal["llama3"] = Field("llama3", description="Scaling rule.")
    factor: PositiveFloat = Field(8.0, description="How far the context is stretched.")
    low_freq_factor: PositiveFloat = Field(1.0, description="Wavelengths above context / this are stretched fully.")
    high_freq_factor: PositiveFloat = Field(4.0, description="Wavelengths below context / this are left alone.")
    original_max_position_embeddings: PositiveInt = Field(8192, description="Context length before the stretch.")


class MoeConfig(Section):
    """Mixture-of-experts shape (planned and estimated today; trained by a later release)."""

    num_experts: PositiveInt = Field(description="Routed experts per MoE layer.")
    experts_per_token: PositiveInt = Field(description="Routed experts chosen for each token.")
    expert_intermediate_size: PositiveInt = Field(description="Inner width of one routed expert.")
    num_shared_experts: NonNegativeInt = Field(0, description="Experts every token passes through.")
    num_dense_layers: NonNegativeInt = Field(0, description="Leading layers that keep a dense MLP.")


class MlaConfig(Section):
    """Multi-head latent attention shape (DeepSeek; planned and estimated today)."""

    q_lora_rank: PositiveInt = Field(description="Rank of the compressed query.")
    kv_lora_rank: PositiveInt = Field(description="Rank of the compressed key and value.")
    qk_nope_head_dim: PositiveInt = Field(description="Head dimension without rotary position.")
    qk_rope_head_dim: PositiveInt = Field(description="Head dimension with rotary position.")
    v_head_dim: PositiveInt = Field(description="Head dimension of the value.")


class ModelConfig(Section):
    """Shape, weights and tokenizer of the policy and of every role that inherits it."""

    name: str = Field(description="Readable name, used in logs and tables.")
    architecture: Literal["llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3"] = Field(
        description="Family: decides bias, QK-norm and weight names."
    )
    path: str | None = Field(
        None, description="Hugging Face folder with config.json and safetensors; null = random weights from the shape."
    )
    tokenizer_path: str | None = Field(
        None, description="Tokenizer folder, tokenizer.json or sentencepiece .model or pkg://package/name; null = model.path."
    )
    chat_template: str | None = Field(None, description="Jinja chat template file that replaces the tokenizer's own.")
    num_layers: PositiveInt = Field(description="Transformer layers.")
    hidden_size: PositiveInt = Field(description="Width of the residual stream.")
    intermediate_size: PositiveInt = Field(description="Inner width of the dense MLP.")
    num_attention_heads: PositiveInt = Field(description="Query heads.")
    num_key_value_heads: PositiveInt = Field(description="Key/value heads (GQA groups).")
    head_dim: PositiveInt | None = Field(None, description="Head dimension; null = hidden_size / num_attention_heads.")
    vocab_size: PositiveInt = Field(description="Rows of the embedding matrix.")
    max_position_embeddings: PositiveInt = Field(4096, description="Longest sequence the model was made for, tokens.")
    tie_word_embeddings: bool = Field(False, description="The output layer is the embedding matrix.")
    qkv_bias: bool = Field(False, description="Query, key and value projections have a bias.")
    qk_norm: bool = Field(False, description="RMSNorm over each query and key head.")
    rms_norm_eps: PositiveFloat = Field(1e-6, description="Epsilon of RMSNorm.")
    rope_theta: PositiveFloat = Field(10000.0, description="Base of the rotary embedding.")
    rope_scaling: RopeScalingConfig | None = Field(None, description="Rotary frequency scaling; null = none.")
    moe: MoeConfig | None = Field(None, description="Mixture-of-experts shape; null = dense.")
    mla: MlaConfig | None = Field(None, description="Latent-attention shape; null = ordinary attention.")
    transformer_impl: TransformerImpl = Field(
        "auto",
        description="Where layers come from; auto = Transformer Engine, if installed, on GPUs in bf16 from hidden_size 1536.",
    )

    @property
    def kv_channels(self) -> int:
        """Head dimension in elements."""
        return self.head_dim if self.head_dim is not None else self.hidden_size // self.num_attention_heads

    @property
    def tokenizer(self) -> str | None:
        """Where the tokenizer is read from."""
        return self.tokenizer_path or self.path
