"""vLLM inside the trainer's processes, one engine shard per rank, weights written in place.

vLLM is imported when an engine is built (or probed), after its environment is set.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from megatron_rl.config.rollout import RolloutConfig
from megatron_rl.parallel.gather import gather_objects
from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.rollout.answer_collector import Answer, AnswerCollector
from megatron_rl.rollout.broadcaster import drop_broadcaster
from megatron_rl.rollout.engine import MemoryTag
from megatron_rl.rollout.engine_versions import installed_versions, version_warnings
from megatron_rl.rollout.group_ranks import engine_groups, require_ascending
from megatron_rl.rollout.outputs import Completion
from megatron_rl.rollout.plain_weights import plain_cpu_weights, require_plain_parameters
from megatron_rl.rollout.prefix_cache import drop_prefix_cache
from megatron_rl.rollout.process_isolation import isolated_rng, preserved_process_settings
from megatron_rl.rollout.sampling import SamplingSettings, generation_config_differences, require_same_eos
from megatron_rl.rollout.shared_memory import named_segments, new_identity, sweep_leftovers, unlink_segments
from megatron_rl.rollout.shared_weights import SharedPlaces, register_sharing_loader
from megatron_rl.rollout.vllm_environment import set_engine_environment
from megatron_rl.rollout.weight_state import WeightState
from megatron_rl.runtime.quick_imports import quick_imports

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor import Executor

_LOG = logging.getLogger(__name__)
_GIB = 2**30
_CPU_BLOCK_SIZE = 32
"""Tokens per KV block on CPU: the smallest its kernels like, so that short shared prefixes are reused."""
_NO_SHARE_ASKED = 0.01
"""With an explicit cache budget the share only checks free memory at the start, which other roles may hold by then."""
_HIGHEST_ACCEPTED_TEMPERATURE = 2.0
"""The constructor of vLLM's parameters refuses more; its sampler has no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What one engine is built from."""

    model_folder: Path
    """Holds ``config.json`` and, where the model has one, ``generation_config.json``; weights are not read."""
    rollout: RolloutConfig
    layout: RolloutLayout
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    """Longest prompt + response, tokens."""
    sleep_mode: bool = False
    """Whether sleep() gives up device memory; on CPU it only changes what may be called."""

    shared: Mapping[str, Tensor] = field(default_factory=dict)
    """Parameters that live in someone else's storage: engine's name -> flat run from its first element, maybe longer.

    They must stay there; sleep() neither frees nor loses them.
    """

    @property
    def frees_memory(self) -> bool:
        """Whether sleep() has an effect on this device."""
        return self.sleep_mode and self.device.type == "cuda"


class VllmEngine:
    """This rank's shard of a vLLM engine; a ``RolloutEngine``.

    One engine per process. Weights of its own start as zeros; none are valid before the first update.
    """

    def __init__(self, spec: EngineSpec, group: ProcessGroup) -> None:
        """Start the engine.

        Args:
            spec: what to build.
            group: all ranks of ``spec.layout``; carries CPU tensors (gloo).

        Raises ValueError where the layout does not cover the job, or has a group out of rank order.
        Collectives: all ranks of the job, which must have joined ``torch.distributed``.
        """
        _require_whole_job(spec.layout)
        require_ascending(spec.layout)
        self._spec = spec
        self._warned_about_defaults = False
        sweep_leftovers()
        identity = _engine_identity(spec.layout, group)
        set_engine_environment("cuda" if spec.device.type == "cuda" else "cpu")
        for warning in version_warnings(installed_versions()) if dist.get_rank() == 0 else ():
            _LOG.warning(warning)
        with (
            quick_imports(),
            isolated_rng(spec.device),
            preserved_process_settings(),
            plain_cpu_weights(spec.device),
            named_segments(identity),
            engine_groups(spec.layout),
        ):
            self._engine = _start(spec, identity)
        self._places = SharedPlaces(self._model(), spec.shared)
        self._state = WeightState(survives_deep_sleep=self._places.shares_all)
        dist.barrier(group)
        unlink_segments(identity)

    @property
    def policy_version(self) -> int | None:
        """Version of the weights it may sample from; None where they are not known to be valid."""
        return self._state.version

    @property
    def max_model_len(self) -> int:
        """Longest prompt + response, tokens."""
        return self._spec.max_model_len

    def generate(
        self, prompts: Sequence[Sequence[int]], settings: SamplingSettings, seeds: Sequence[int]
    ) -> list[list[Completion]]:
        """See ``RolloutEngine.generate``."""
        self._state.require_ready()
        assert len(prompts) == len(seeds), (len(prompts), len(seeds))
        self._require_fitting(prompts, settings)
        self._compare_with_model_defaults(settings)
        with isolated_rng(self._spec.device):
            return self._generate(prompts, settings, seeds)

    def parameters(self) -> dict[str, Tensor]:
        """See ``RolloutEngine.parameters``."""
        return {name: p.data for name, p in self._model().named_parameters(remove_duplicate=False)}

    def invalidate_weights(self) -> None:
        """See ``RolloutEngine.invalidate_weights``."""
        self._state.invalidate()
        # Void from now on: forgotten beside the update, it does not lengthen the push, which drops what is left or fails.
        drop_prefix_cache(self._engine)

    def begin_weight_update(self) -> None:
        """See ``RolloutEngine.begin_weight_update``."""
        self._places.require_unmoved()
        self._state.begin_update()

    def finish_weight_update(self, version: int) -> None:
        """See ``RolloutEngine.finish_weight_update``."""
        self._state.require_updating()
        if not drop_prefix_cache(self._engine):
            raise RuntimeError("the engine could not drop its prefix cache (requests in flight?): weights stay invalid")
        self._state.finish_update(version)

    def sleep(self, level: Literal[1, 2]) -> None:
        """See ``RolloutEngine.sleep``."""
        self._state.sleep(level)
        if self._spec.frees_memory:
            self._engine.sleep(level)

    def wake(self, tags: Sequence[MemoryTag] = ("weights", "kv_cache")) -> None:
        """See ``RolloutEngine.wake``."""
        if self._spec.frees_memory:
            self._engine.wake_up(list(tags))
        self._state.wake(tags)

    def shutdown(self) -> None:
        """See ``RolloutEngine.shutdown``."""
        from vllm.distributed.parallel_state import destroy_model_parallel

        # The engine core's own shutdown would also end the job's process group.
        self._engine.model_executor.shutdown()
        destroy_model_parallel()  # type: ignore[no-untyped-call]

    def _model(self) -> torch.nn.Module:
        return self._engine.apply_model(lambda model: model)[0]

    def _require_fitting(self, prompts: Sequence[Sequence[int]], settings: SamplingSettings) -> None:
        room = self.max_model_len - settings.max_new_tokens
        vocab_size = self._engine.model_config.get_vocab_size()
        for index, prompt in enumerate(prompts):
            if not 1 <= len(prompt) <= room:
                raise ValueError(
                    f"prompt {index} of the batch has {len(prompt)} tokens, but rollout.max_model_len={self.max_model_len} "
                    f"minus data.max_response_length={settings.max_new_tokens} leaves room for 1 to {room}"
                )
            if not 0 <= min(prompt) <= max(prompt) < vocab_size:
                raise ValueError(
                    f"prompt {index} of the batch has ids in [{min(prompt)}, {max(prompt)}], but model.vocab_size="
                    f"{vocab_size}: the tokenizer does not belong to this model"
                )

    def _compare_with_model_defaults(self, settings: SamplingSettings) -> None:
        folder = self._spec.model_folder
        require_same_eos(settings, folder)
        if self._warned_about_defaults:
            return
        self._warned_about_defaults = True
        differences = generation_config_differences(folder, settings)
        if differences and dist.get_rank() == 0:
            listed = ", ".join(f"{name} {theirs} (used: {ours})" for name, (theirs, ours) in differences.items())
            _LOG.warning("%s/generation_config.json recommends other sampling; it is ignored: %s", folder, listed)

    def _generate(
        self, prompts: Sequence[Sequence[int]], settings: SamplingSettings, seeds: Sequence[int]
    ) -> list[list[Completion]]:
        from vllm.inputs import tokens_input

        names = [str(index) for index in range(len(prompts))]
        found: dict[tuple[str, int], Completion] = {}
        try:
            for name, prompt, seed in zip(names, prompts, seeds, strict=True):
                self._engine.add_request(name, tokens_input(list(prompt)), _sampling_params(settings, seed))
            while self._engine.has_unfinished_requests():
                for answer in self._engine.step():
                    assert isinstance(answer, Answer)
                    found[answer.request, answer.sample] = answer.completion
        except BaseException:
            # What is left in flight would hold cache blocks and turn up in the next call.
            self._engine.abort_request(names)
            raise
        return [[found[name, sample] for sample in range(settings.n)] for name in names]


def _require_whole_job(layout: RolloutLayout) -> None:
    world = dist.get_world_size()
    if layout.offset != 0 or layout.world_size != world:
        raise ValueError(
            f"rollout.tensor_parallel_size={layout.tensor} * rollout.data_parallel_size={layout.data} must cover all "
            f"{world} ranks of the job"
        )


def _engine_identity(layout: RolloutLayout, group: ProcessGroup) -> str:
    """One identity per engine: that of its first rank, which shares a host with the others.

    Collectives: all ranks of ``group``.
    """
    identities = gather_objects(new_identity(), group)
    rank = dist.get_rank()
    ranks = next(ranks for ranks in layout.tensor_groups() if rank in ranks)
    return identities[ranks[0]]


def _start(spec: EngineSpec, identity: str) -> LLMEngine:
    from vllm.v1.engine.llm_engine import LLMEngine

    load_format = f"megatron_rl_{identity}".lower()
    register_sharing_loader(load_format, spec.shared)
    engine = LLMEngine(_engine_config(spec, load_format), _executor_class(spec, identity), log_stats=False)
    engine.output_processor = AnswerCollector()  # type: ignore[assignment]
    drop_broadcaster()
    require_plain_parameters(engine.apply_model(lambda model: model)[0])
    return engine


def _engine_config(spec: EngineSpec, load_format: str) -> VllmConfig:
    from vllm.engine.arg_utils import EngineArgs

    rollout, on_cpu = spec.rollout, spec.device.type == "cpu"
    # The start-up run takes a full iteration: no larger than one that can occur.
    num_batched_tokens = min(rollout.max_num_batched_tokens, rollout.max_num_seqs * spec.max_model_len)
    config: VllmConfig = EngineArgs(
        model=str(spec.model_folder),
        skip_tokenizer_init=True,
        dtype=str(spec.dtype).removeprefix("torch."),  # type: ignore[arg-type]
        seed=0,
        load_format=load_format,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        distributed_executor_backend="external_launcher",
        tensor_parallel_size=spec.layout.tensor,
        max_model_len=spec.max_model_len,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=max(num_batched_tokens, spec.max_model_len),
        quantization=rollout.quantization,
        # Others repack the scales, which then could not be written in place.
        linear_backend="auto" if rollout.quantization is None else "cutlass",
        enable_prefix_caching=rollout.enable_prefix_caching,
        # A part of a prompt yields a sample that is thrown away, which the seeded CPU sampler cannot take back.
        enable_chunked_prefill=False if on_cpu else None,
        # Compiling on CPU takes longer than a small run, and the eager step is as fast.
        enforce_eager=rollout.enforce_eager or on_cpu,
        block_size=_CPU_BLOCK_SIZE if on_cpu else None,
        gpu_memory_utilization=rollout.gpu_memory_utilization if rollout.kv_cache_gib is None else _NO_SHARE_ASKED,
        kv_cache_memory_bytes=None if rollout.kv_cache_gib is None else int(rollout.kv_cache_gib * _GIB),
        enable_sleep_mode=spec.frees_memory,
        disable_log_stats=True,
    ).create_engine_config()
    if on_cpu and rollout.kv_cache_gib is None:
        config.cache_config.kv_cache_memory_bytes = min(_GIB, _largest_useful_cache_bytes(config, spec.dtype.itemsize))
    return config


def _largest_useful_cache_bytes(config: VllmConfig, element_bytes: int) -> int:
    """KV cache in which all concurrent sequences fit at full length."""
    model, parallel, block = config.model_config, config.parallel_config, config.cache_config.block_size
    token_bytes = 2 * model.get_num_kv_heads(parallel) * model.get_head_size() * element_bytes
    blocks = config.scheduler_config.max_num_seqs * -(-model.max_model_len // block) + 1
    return int(blocks * block * token_bytes * model.get_num_layers(parallel))


def _executor_class(spec: EngineSpec, identity: str) -> type[Executor]:
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    class InProcessExecutor(ExecutorWithExternalLauncher):
        """Takes rank and device from the job instead of torchrun's variables, and names the run's shared memory."""

        def _distributed_args(self) -> tuple[str, int, int]:
            # The job has joined torch.distributed, so the address is never used to meet. What follows its last colon
            # becomes the prefix of the engine's segment names.
            return f"env://:{identity}", dist.get_rank(), spec.device.index or 0

    executor: type[Executor] = InProcessExecutor
    return executor


def _sampling_params(settings: SamplingSettings, seed: int) -> SamplingParams:
    from vllm import SamplingParams

    params = SamplingParams(
        n=settings.n,
        temperature=min(settings.temperature, _HIGHEST_ACCEPTED_TEMPERATURE),
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        seed=seed,
        max_tokens=settings.max_new_tokens,
        stop_token_ids=[] if settings.ignore_eos else list(settings.stop_token_ids),
        ignore_eos=settings.ignore_eos,
        logprobs=0,
        detokenize=False,
        # Made for this request alone; a deep copy would also check the temperature again.
        skip_clone=True,
    )
    params.temperature = settings.temperature
    return params


def probe_engine() -> dict[str, str]:
    """Versions, warnings, and whether each private hook used here exists: for an environment report.

    Imports vLLM; builds nothing.
    """
    versions = installed_versions()
    report = {**versions, **{f"warning {i}": text for i, text in enumerate(version_warnings(versions))}}
    if versions["vllm"] == "not installed":
        return report
    set_engine_environment("cuda" if torch.cuda.is_available() else "cpu")
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators import cpu_communicator
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor import model_loader
    from vllm.model_executor.layers import utils as layer_functions
    from vllm.v1.core.block_pool import BlockHashToBlockMap
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    hooks = {
        "executor takes rank and address from us": (ExecutorWithExternalLauncher, "_distributed_args"),
        "groups of ranks chosen by us": (parallel_state, "init_model_parallel_group"),
        "linear weights stay plain on CPU": (layer_functions, "dispatch_cpu_unquantized_gemm"),
        "answers collected by us": (OutputProcessor, "process_outputs"),
        "prefix cache reset": (LLMEngine, "reset_prefix_cache"),
        "prefix cache's blocks": (BlockHashToBlockMap(), "_cache"),  # type: ignore[no-untyped-call]
        "sleep": (LLMEngine, "sleep"),
        "wake": (LLMEngine, "wake_up"),
        "model access": (LLMEngine, "apply_model"),
        "log-prob mode": (EngineArgs, "logprobs_mode"),
        "cache budget": (EngineArgs, "kv_cache_memory_bytes"),
        "weights loaded by us": (model_loader, "register_model_loader"),
        "shared memory named by us": (cpu_communicator._CPUSHMDistributed, "make_group_name"),
    }
    return {**report, **{hook: "found" if name in dir(owner) else "MISSING" for hook, (owner, name) in hooks.items()}}
