"""Engine throughput: tokens per second of one in-process engine with random weights.

Run: ``python -m benchmarks.rollout --hidden 1536 --layers 28 --prompts 64 --samples 8 --prompt-tokens 128 --new-tokens 256``
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from megatron_rl.config.rollout import RolloutConfig
from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.rollout.sampling import SamplingSettings, request_seed
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--intermediate", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=320)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def _write_config(arguments: argparse.Namespace, folder: Path) -> None:
    shape = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": arguments.hidden,
        "intermediate_size": arguments.intermediate,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": arguments.heads,
        "num_key_value_heads": arguments.kv_heads,
        "vocab_size": arguments.vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(shape))


def _fill(engine: VllmEngine) -> None:
    engine.begin_weight_update()
    for parameter in engine.parameters().values():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, 0.02)
    engine.finish_weight_update(0)


def main() -> None:
    """Start, warm up once, then time ``--repeats`` calls."""
    arguments = _arguments()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sequences = arguments.prompts * arguments.samples
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        _write_config(arguments, Path(folder))
        spec = EngineSpec(
            model_folder=Path(folder),
            rollout=RolloutConfig(max_num_seqs=min(sequences, 512)),
            layout=RolloutLayout(),
            device=torch.device("cuda", 0) if on_gpu else torch.device("cpu"),
            dtype=torch.bfloat16 if on_gpu else torch.float32,
            max_model_len=arguments.prompt_tokens + arguments.new_tokens,
        )
        engine = VllmEngine(spec, dist.group.WORLD)
        start_s = time.perf_counter() - started
        _fill(engine)
        settings = SamplingSettings(n=arguments.samples, max_new_tokens=arguments.new_tokens, ignore_eos=True)
        seconds = []
        for step in range(arguments.repeats + 1):
            prompts = [
                [(7 * step + 31 * p + i) % arguments.vocab for i in range(arguments.prompt_tokens)]
                for p in range(arguments.prompts)
            ]
            began = time.perf_counter()
            engine.generate(prompts, settings, [request_seed(0, step, p) for p in range(arguments.prompts)])
            seconds.append(time.perf_counter() - began)
        engine.shutdown()
    median_s = statistics.median(seconds[1:])
    report = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "arguments": vars(arguments),
        "start_s": round(start_s, 2),
        "first_call_s": round(seconds[0], 3),
        "median_s": round(median_s, 3),
        "spread_s": [round(min(seconds[1:]), 3), round(max(seconds[1:]), 3)],
        "generated_tokens_per_s": round(sequences * arguments.new_tokens / median_s),
    }
    print(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
