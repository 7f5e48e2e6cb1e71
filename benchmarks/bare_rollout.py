"""vLLM by itself, as ``LLM(...).generate(...)`` starts it: what the rollout phase of a step is compared with.

Run: ``python -m benchmarks.bare_rollout JOB.json`` in a process of its own; prints one JSON object as the last line. On a GPU
the engine core gets one more process, which is vLLM's default. Weights are random; every answer has its given length.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import last_json
from launchers.environment import num_visible_gpus
from megatron_rl.rollout.vllm_environment import set_engine_environment

if TYPE_CHECKING:
    from vllm import LLM, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class BareJob:
    """What one engine is to answer, and its settings by vLLM's names."""

    model_folder: str
    """Holds ``config.json``."""
    dtype: str
    tensor_parallel_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    enforce_eager: bool
    kv_cache_memory_bytes: int
    temperature: float
    num_stop_ids: int
    """Stop ids that no answer contains: looking a sampled id up among them takes its time."""
    batches: list[list[tuple[list[int], int]]]
    """Per call of generate, prompt ids and response length of every request. The first call warms up."""
    stop_below: int
    """The stop ids are counted down from here, and lie above every id of the model."""

    def write(self, path: Path) -> None:
        """Leave it for the other process."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> BareJob:
        """What :meth:`write` left."""
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True, slots=True, kw_only=True)
class BareRollout:
    """What vLLM alone took, call by call, the first one left out."""

    start_s: float
    seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    """Generated."""


def measure_apart(job: BareJob, folder: Path) -> BareRollout:
    """Measure in a process of its own; the job's file is left in ``folder``. Raises RuntimeError where it fails."""
    path = folder / "bare_job.json"
    job.write(path)
    found = last_json([sys.executable, "-m", "benchmarks.bare_rollout", str(path)])
    return BareRollout(start_s=found["start_s"], seconds=tuple(found["seconds"]), tokens=tuple(found["tokens"]))


def measure(job: BareJob) -> dict[str, object]:
    """Seconds of each call after the first, and the tokens each generated."""
    # Asking torch for a GPU would start CUDA here, and the engine core is forked.
    if num_visible_gpus(os.environ) == 0:
        set_engine_environment("cpu")
    from vllm import LLM

    began = time.perf_counter()
    llm = LLM(
        model=job.model_folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        dtype=job.dtype,  # type: ignore[arg-type]
        tensor_parallel_size=job.tensor_parallel_size,
        max_model_len=job.max_model_len,
        max_num_seqs=job.max_num_seqs,
        max_num_batched_tokens=job.max_num_batched_tokens,
        enable_prefix_caching=job.enable_prefix_caching,
        enforce_eager=job.enforce_eager,
        kv_cache_memory_bytes=job.kv_cache_memory_bytes,
        seed=0,
    )
    start_s = time.perf_counter() - began
    seconds = [_generate(llm, job, batch) for batch in job.batches]
    tokens = [sum(length for _, length in batch) for batch in job.batches]
    return {"start_s": start_s, "seconds": seconds[1:], "tokens": tokens[1:]}


def _generate(llm: LLM, job: BareJob, batch: list[tuple[list[int], int]]) -> float:
    from vllm import TokensPrompt

    prompts = [TokensPrompt(prompt_token_ids=ids) for ids, _ in batch]
    parameters = [_parameters(job, length, seed) for seed, (_, length) in enumerate(batch)]
    llm.reset_prefix_cache()
    began = time.perf_counter()
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    seconds = time.perf_counter() - began
    assert [len(output.outputs[0].token_ids) for output in outputs] == [length for _, length in batch]
    return seconds


def _parameters(job: BareJob, length: int, seed: int) -> SamplingParams:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=job.temperature,
        seed=seed,
        max_tokens=length,
        ignore_eos=True,
        stop_token_ids=[job.stop_below - index for index in range(job.num_stop_ids)],
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
    )


if __name__ == "__main__":
    print(json.dumps(measure(BareJob.read(Path(sys.argv[1])))))
