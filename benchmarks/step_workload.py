"""What a benchmarked step works on: random prompts, and a tokenizer whose end-of-sequence ids decide how long responses get.

With random weights every token is about equally likely. Of V ids, ``V / mean`` end a response, so its length is geometric with
that mean, cut at the budget: lengths spread as they do in training, and nothing in the product has to know of it.
"""

from __future__ import annotations

import json
import random
import string
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.engine_memory import KV_BLOCK_TOKENS, kv_bytes_per_token

PAD_ID, EOS_ID = 0, 1
MOST_SEQUENCES = 512
REWARD = f"{Path(__file__).with_name('step_reward.py')}:score"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Work of one step of the whole job, tokens and counts.

    Example: ``Workload(prompts=32, samples=8, prompt_tokens=512, response_tokens=1024, mean_response_tokens=1024)``.
    """

    prompts: int
    samples: int
    """Responses to each prompt."""
    prompt_tokens: int
    response_tokens: int
    """Budget of a response."""
    mean_response_tokens: int | None
    """Mean of the geometric law before the cut; None = every response uses up its budget."""

    @property
    def law(self) -> str:
        """How long responses are, in words."""
        if self.mean_response_tokens is None:
            return f"{self.response_tokens} tokens each"
        return f"geometric with mean {self.mean_response_tokens}, cut at {self.response_tokens} tokens"


def write_workload(folder: Path, model: ModelConfig, workload: Workload, steps: int) -> list[str]:
    """Write prompts and tokenizer into ``folder``; returns the overrides that make a run use them.

    Args:
        folder: made if absent.
        model: gives the size of the vocabulary, at least 258.
        workload: of each step.
        steps: of the run; no prompt occurs twice.
    """
    folder = folder.absolute()
    prompts = folder / "prompts.jsonl"
    write_tokenizer(folder / "tokenizer", model.vocab_size, workload.mean_response_tokens)
    texts = random_texts(steps * workload.prompts, workload.prompt_tokens)
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return [
        f"model.tokenizer_path={folder / 'tokenizer'}",
        f"data.train_files=[{prompts}]",
        "data.apply_chat_template=false",
        "data.shuffle=false",
        f"data.train_batch_size={workload.prompts}",
        f"data.max_prompt_length={workload.prompt_tokens}",
        f"data.max_response_length={workload.response_tokens}",
        f"rollout.n={workload.samples}",
        f"rollout.ignore_eos={str(workload.mean_response_tokens is None).lower()}",
        f"reward.function={REWARD}",
    ]


def write_tokenizer(folder: Path, vocab_size: int, mean_response_tokens: int | None) -> None:
    """A byte-level tokenizer of ``vocab_size`` ids, of which every ``mean_response_tokens``-th ends a response."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    symbols = ["<|pad|>", "<|eos|>", *alphabet]
    assert vocab_size >= len(symbols), f"a vocabulary of {vocab_size} cannot hold {len(symbols)} symbols"
    symbols += [f"filler{index}" for index in range(len(symbols), vocab_size)]
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in symbols[:2]])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": symbols[PAD_ID], "eos_token": symbols[EOS_ID]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos_ids(vocab_size, mean_response_tokens)}))


def eos_ids(vocab_size: int, mean_response_tokens: int | None) -> list[int]:
    """Ids that end a response. Example: ``eos_ids(300, 100)`` is ``[1, 101, 201]``."""
    if mean_response_tokens is None:
        return [EOS_ID]
    count = max(1, round(vocab_size / mean_response_tokens))
    return [EOS_ID + index * (vocab_size - EOS_ID) // count for index in range(count)]


def random_texts(count: int, length: int, seed: int = 0) -> list[str]:
    """Texts of ``length`` letters, which are as many tokens."""
    letters = random.Random(seed)
    return ["".join(letters.choices(string.ascii_letters, k=length)) for _ in range(count)]


def engine_overrides(config: RunConfig, workload: Workload, num_engines: int, element_bytes: int) -> list[str]:
    """Room for all samples of an engine at once, at full length; ``element_bytes`` are those of a cached number."""
    prompts = -(-workload.prompts // num_engines)
    sequences = min(MOST_SEQUENCES, prompts * workload.samples)
    # Blocks are handed out whole, and vLLM keeps one for itself.
    tokens = sequences * (workload.prompt_tokens + workload.response_tokens + 2 * KV_BLOCK_TOKENS)
    size = tokens * kv_bytes_per_token(config.model, config.rollout.tensor_parallel_size, element_bytes)
    return [f"rollout.max_num_seqs={sequences}", f"rollout.kv_cache_gib={size / 2**30:.4f}"]
