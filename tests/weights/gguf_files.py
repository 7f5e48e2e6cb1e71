"""A tiny Llama as llama.cpp would store it: permuted query and key rows, its own tensor names, a byte-level vocabulary."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from megatron_rl.config.model import ModelConfig
from megatron_rl.weights.names import logical_tensors

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = (*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab")
MODEL = ModelConfig(
    name="tiny_llama",
    architecture="llama",
    num_layers=2,
    hidden_size=16,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=len(VOCABULARY),
    max_position_embeddings=128,
    tie_word_embeddings=True,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
)
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
}


def hf_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Random f32 weights by their Hugging Face names."""
    rng = np.random.default_rng(seed)
    return {tensor.name: rng.standard_normal(tensor.shape).astype(np.float32) for tensor in logical_tensors(MODEL)}


def _permuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of each head from [first half; second half] to pairs, llama.cpp's order."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _stored(name: str, weight: np.ndarray) -> np.ndarray:
    if "q_proj" in name:
        return _permuted(weight, MODEL.num_attention_heads)
    return _permuted(weight, MODEL.num_key_value_heads) if "k_proj" in name else weight


def write_tiny_gguf(file: Path, weights: dict[str, np.ndarray], architecture: str = "llama") -> Path:
    """Write ``weights`` (of ``MODEL``, Hugging Face names) unquantised."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(MODEL.num_layers)
    writer.add_context_length(MODEL.max_position_embeddings)
    writer.add_embedding_length(MODEL.hidden_size)
    writer.add_feed_forward_length(MODEL.intermediate_size)
    writer.add_head_count(MODEL.num_attention_heads)
    writer.add_head_count_kv(MODEL.num_key_value_heads)
    writer.add_rope_dimension_count(MODEL.kv_channels)
    writer.add_rope_freq_base(MODEL.rope_theta)
    writer.add_layer_norm_rms_eps(MODEL.rms_norm_eps)
    writer.add_vocab_size(MODEL.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(VOCABULARY)
    special = [gguf.TokenType.CONTROL if token in SPECIAL_TOKENS else gguf.TokenType.NORMAL for token in VOCABULARY]
    writer.add_token_types(special)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, weight in weights.items():
        stored_name = name
        for theirs, ours in _NAMES.items():
            stored_name = stored_name.replace(theirs, ours)
        writer.add_tensor(stored_name, _stored(name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
