"""Tiny policies as Hugging Face folders, one per family, and what transformers says about them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from megatron_rl.training.micro_batches import Samples

# The engine's CPU attention wants heads of a multiple of 32 elements.
_SHAPE = {
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = ("llama_tied", "qwen2", "qwen3")
"""Tied embeddings and stretched RoPE; a bias on q, k, v and a head of its own; QK-norm and a head dimension of its own."""
_SMOLLM2_SHAPE = {"hidden_size": 288, "num_attention_heads": 9, "num_key_value_heads": 3}


def _untrained(family: str, vocab_size: int, eos: int, num_layers: int) -> PreTrainedModel:
    shape = {**_SHAPE, "vocab_size": vocab_size, "eos_token_id": eos, "num_hidden_layers": num_layers}
    if family == "llama_tied":
        return LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True, rope_parameters=_LLAMA3_ROPE))
    if family == "llama_mha":
        return LlamaForCausalLM(LlamaConfig(**{**shape, "num_key_value_heads": 4}, tie_word_embeddings=False))
    if family == "smollm2":
        return LlamaForCausalLM(LlamaConfig(**{**shape, **_SMOLLM2_SHAPE}, tie_word_embeddings=True))
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**{**shape, "hidden_size": 96}, tie_word_embeddings=False, head_dim=32))
    assert family == "qwen2", family
    return Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=False))


def write_policy(
    folder: Path,
    family: str,
    *,
    vocab_size: int = 263,
    eos: int = 1,
    num_layers: int = 4,
    seed: int = 0,
    scale: float = 0.12,
) -> Path:
    """Write a policy whose norms and biases matter too; with ``scale`` 0.12 it is far from uniform. Returns the folder.

    The vocabulary covers the spelling tokenizer's 260 ids and is a prime, so that no degree divides it.
    """
    generator = torch.Generator().manual_seed(seed)
    model = _untrained(family, vocab_size, eos, num_layers).float()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() == 2:
                parameter.normal_(0.0, scale, generator=generator)
            else:
                center = 1.0 if "norm" in name else 0.0
                parameter.normal_(center, scale, generator=generator)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return folder


def load_policy(folder: Path) -> PreTrainedModel:
    """What transformers makes of a folder; fails where a tensor is missing or unknown."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    assert isinstance(model.config, PretrainedConfig)
    return model.eval()


@torch.no_grad()
def reference_logprobs(folder: Path, samples: Samples, temperature: float = 1.0) -> np.ndarray:
    """Log-prob of each response token ``[B, S]``, zero elsewhere: one unpadded sample after the other."""
    model = load_policy(folder)
    found = np.zeros(tuple(samples.tokens_BS.shape), dtype=np.float32)
    starts, lengths = samples.prompt_lengths_B.tolist(), samples.response_lengths_B.tolist()
    for b, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        ids = samples.tokens_BS[b, : start + length]
        logprobs = torch.log_softmax(model(ids[None]).logits[0] / temperature, dim=-1)
        for s in range(start, start + length):
            found[b, s] = logprobs[s - 1, ids[s]]
    return found
