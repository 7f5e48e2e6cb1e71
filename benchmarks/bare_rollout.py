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
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.harness import last_line
from launchers.environment import num_visible_gpus
from megatron_rl.rollout.vllm_environment import set_engine_environment

if TYPE_CHECKING:
    from vllm import LLM, SamplingParams

_NO_ID = 2**30
"""Above every id of every model."""


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
    """See ``request_parameters``."""
    batches: list[list[tuple[list[int], int]]]
    """Per call of generate, prompt ids and response length of every request. The first call warms up."""

    def write(self, path: Path) -> None:
        """Leave it for the other process."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> BareJob:
        """What :meth:`write` left."""
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True, slots=True, kw_only=True)
class BareRollout:
    """What vLLM alone took, call by call."""

    start_s: float | None
    """Of its engine; None where it was the run's."""
    seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    """Generated."""

    @property
    def tokens_per_s(self) -> float:
        """Median over the calls."""
        return median(tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True))

    @classmethod
    def read(cls, text: str) -> BareRollout:
        """From one JSON object."""
        found = json.loads(text)
        return cls(start_s=found["start_s"], seconds=tuple(found["seconds"]), tokens=tuple(found["tokens"]))


def measure_apart(job: BareJob, folder: Path) -> BareRollout:
    """Measure in a process of its own; the job's file is left in ``folder``. Raises RuntimeError where it fails."""
    path = folder / "bare_job.json"
    job.write(path)
    return BareRollout.read(last_line([sys.executable, "-m", "benchmarks.bare_rollout", str(path)]))


def measure(job: BareJob) -> BareRollout:
    """Every call after the first."""
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
    return BareRollout(start_s=start_s, seconds=tuple(seconds[1:]), tokens=tuple(tokens[1:]))


def _generate(llm: LLM, job: BareJob, batch: list[tuple[list[int], int]]) -> float:
    from vllm import TokensPrompt

    prompts = [TokensPrompt(prompt_token_ids=ids) for ids, _ in batch]
    parameters = [request_parameters(job.temperature, length, seed, job.num_stop_ids) for seed, (_, length) in enumerate(batch)]
    llm.reset_prefix_cache()
    began = time.perf_counter()
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    seconds = time.perf_counter() - began
    assert [len(output.outputs[0].token_ids) for output in outputs] == [length for _, length in batch]
    return seconds


def request_parameters(temperature: float, length: int, seed: int, num_stop_ids: int) -> SamplingParams:
    """Of a request that generates exactly ``length`` tokens.

    ``num_stop_ids`` ids that no model has end it too: looking each sampled id up among them takes its time.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=length,
        ignore_eos=True,
        stop_token_ids=[_NO_ID + index for index in range(num_stop_ids)],
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


if __name__ == "__main__":
    print(json.dumps(asdict(measure(BareJob.read(Path(sys.argv[1]))))))
