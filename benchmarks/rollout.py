"""Generated tokens per second of one in-process engine on random weights, and of vLLM alone on the same requests.

Run: ``python -m benchmarks.rollout --model qwen2_5_1_5b --prompts 64 --samples 8 --bare --profile --out outputs/rollout``
Every answer has the full length. Writes ``<out>.json`` and ``<out>.md``; several calls with one ``--out`` add up.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pstats
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.bare_rollout import BareJob, measure_apart
from benchmarks.harness import best_device
from benchmarks.step_figures import Spread
from megatron_rl.config.model import ModelConfig
from megatron_rl.config.rollout import RolloutConfig
from megatron_rl.estimator.engine_memory import kv_bytes_per_token
from megatron_rl.estimator.presets import preset_model
from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.rollout.sampling import SamplingSettings, request_seed
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine
from megatron_rl.weights.hf_config import hf_config

PROFILE_ROWS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """One engine and one batch shape."""

    model: str
    engine: str
    device: str
    sequences: int
    prompt_tokens: int
    new_tokens: int
    tokens_per_s: Spread
    start_s: float
    profile: str | None = None
    """Functions of the host in which most time was spent, in one call more."""


def main() -> None:
    """Measure vLLM alone first, so that it has the device to itself, then our engine."""
    arguments = _arguments()
    model, rollout = preset_model(arguments.model), _rollout_config(arguments)
    figures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
        (folder / "config.json").write_text(json.dumps(hf_config(model, dtype=str(dtype).removeprefix("torch."))))
        if arguments.bare:
            figures.append(_bare_figures(arguments, model, rollout, folder))
        figures.append(_engine_figures(arguments, model, rollout, folder, dtype))
    for one in figures:
        print(_row(one), one.profile or "", sep="\n", flush=True)
    _append(arguments.out, figures)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="preset (model=)")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8, help="answers to each prompt")
    parser.add_argument("--prompt-tokens", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bare", action="store_true", help="vLLM alone too")
    parser.add_argument("--profile", action="store_true", help="profile the host in one call more")
    parser.add_argument("--out", type=Path, default=Path("outputs/rollout"))
    return parser.parse_args()


def _rollout_config(arguments: argparse.Namespace) -> RolloutConfig:
    sequences = min(arguments.prompts * arguments.samples, 512)
    tokens = sequences * (arguments.prompt_tokens + arguments.new_tokens + 64)
    element_bytes = 2 if torch.cuda.is_available() else 4
    size = tokens * kv_bytes_per_token(preset_model(arguments.model), 1, element_bytes)
    return RolloutConfig(max_num_seqs=sequences, kv_cache_gib=size / 2**30, n=arguments.samples)


def _prompts(arguments: argparse.Namespace, model: ModelConfig, call: int) -> list[list[int]]:
    """Other prompts in every call, so that no call finds the last one's in the cache."""
    return [
        [(7 * call + 31 * prompt + position) % model.vocab_size for position in range(arguments.prompt_tokens)]
        for prompt in range(arguments.prompts)
    ]


def _bare_figures(arguments: argparse.Namespace, model: ModelConfig, rollout: RolloutConfig, folder: Path) -> EngineFigures:
    assert rollout.kv_cache_gib is not None
    batches = []
    for call in range(arguments.repeats + 1):
        prompts = _prompts(arguments, model, call)
        batches.append([(prompt, arguments.new_tokens) for prompt in prompts for _ in range(arguments.samples)])
    job = BareJob(
        model_folder=str(folder),
        dtype="bfloat16" if torch.cuda.is_available() else "float32",
        tensor_parallel_size=1,
        max_model_len=arguments.prompt_tokens + arguments.new_tokens,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        enable_prefix_caching=rollout.enable_prefix_caching,
        enforce_eager=not torch.cuda.is_available(),
        kv_cache_memory_bytes=int(rollout.kv_cache_gib * 2**30),
        temperature=rollout.temperature,
        num_stop_ids=0,
        batches=batches,
    )
    found = measure_apart(job, folder)
    assert found.start_s is not None
    rates = [tokens / seconds for tokens, seconds in zip(found.tokens, found.seconds, strict=True)]
    return _figures(arguments, "vLLM alone", rates, found.start_s, None)


def _engine_figures(
    arguments: argparse.Namespace, model: ModelConfig, rollout: RolloutConfig, folder: Path, dtype: torch.dtype
) -> EngineFigures:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    began = time.perf_counter()
    spec = EngineSpec(
        model_folder=folder,
        rollout=rollout,
        layout=RolloutLayout(),
        device=best_device(),
        dtype=dtype,
        max_model_len=arguments.prompt_tokens + arguments.new_tokens,
    )
    engine = VllmEngine(spec, dist.group.WORLD)
    start_s = time.perf_counter() - began
    _fill(engine)
    settings = SamplingSettings(n=arguments.samples, max_new_tokens=arguments.new_tokens, ignore_eos=True)

    def generate(call: int) -> float:
        prompts, seeds = _prompts(arguments, model, call), [request_seed(0, call, p) for p in range(arguments.prompts)]
        began = time.perf_counter()
        engine.generate(prompts, settings, seeds)
        return time.perf_counter() - began

    tokens = arguments.prompts * arguments.samples * arguments.new_tokens
    rates = [tokens / generate(call) for call in range(arguments.repeats + 1)][1:]
    profile = _host_profile(lambda: generate(arguments.repeats + 1)) if arguments.profile else None
    engine.shutdown()
    dist.destroy_process_group()
    return _figures(arguments, "megatron_rl, in process", rates, start_s, profile)


def _fill(engine: VllmEngine) -> None:
    engine.begin_weight_update()
    for parameter in engine.parameters().values():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, 0.02)
    engine.finish_weight_update(0)


def _host_profile(run: Callable[[], object]) -> str:
    recorded, text = cProfile.Profile(), io.StringIO()
    recorded.runcall(run)
    pstats.Stats(recorded, stream=text).sort_stats("tottime").print_stats(PROFILE_ROWS)
    return text.getvalue()


def _figures(
    arguments: argparse.Namespace, engine: str, rates: Sequence[float], start_s: float, profile: str | None
) -> EngineFigures:
    on_gpu = torch.cuda.is_available()
    return EngineFigures(
        model=arguments.model,
        engine=engine,
        device=torch.cuda.get_device_name() if on_gpu else "CPU",
        sequences=arguments.prompts * arguments.samples,
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
        tokens_per_s=Spread.of(rates),
        start_s=start_s,
        profile=profile,
    )


def _row(one: EngineFigures) -> str:
    rate = one.tokens_per_s
    cells = [
        one.model,
        one.engine,
        str(one.sequences),
        f"{one.prompt_tokens} + {one.new_tokens}",
        f"{rate.median:,.0f} ({rate.low:,.0f} - {rate.high:,.0f})",
        f"{one.start_s:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _append(out: Path, figures: list[EngineFigures]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    json_file, markdown_file = out.with_suffix(".json"), out.with_suffix(".md")
    earlier = json.loads(json_file.read_text()) if json_file.exists() else {"figures": []}
    earlier["figures"] += [asdict(one) for one in figures]
    json_file.write_text(json.dumps(earlier, indent=1) + "\n")
    head = (
        "# Rollout engine on random weights\n\n| model | engine | sequences | prompt + new tokens | tokens/s | start s |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
    )
    text = markdown_file.read_text() if markdown_file.exists() else head
    markdown_file.write_text(text + "".join(_row(one) + "\n" for one in figures))


if __name__ == "__main__":
    main()
