"""Seconds, bytes and memory of handing weights from the actor to the engine, against gathering and loading them whole.

One GPU, actor and engine:  ``python -m benchmarks.reshard --model qwen2_5_1_5b --engine --out outputs/reshard``
Any number of GPUs:         ``torchrun --nproc-per-node 2 -m benchmarks.reshard --model qwen2_5_1_5b --pairs all``
Two processes, one GPU:     the same with one visible GPU: they read each other's memory (CUDA IPC)
CPU ranks (gloo):           ``python -m benchmarks.reshard --model tiny --pairs all --ranks 2``
To FP8 on the way:          ``python -m benchmarks.reshard --model qwen2_7b --fp8 tp1_to_tp1``
Rates of one rank's packs:  ``python -m benchmarks.reshard --model qwen2_7b --pack tp2_to_tp1dp2``
Writes ``<out>.json`` and ``<out>.md`` on the first rank; several calls with one ``--out`` add up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import get_args

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from benchmarks.reshard_figures import Figure, table
from benchmarks.reshard_fp8 import measure_quantised
from benchmarks.reshard_layouts import PAIRS, Transfer, measure_all, measure_packing, pairs_of
from megatron_rl.cli.compose import compose_run
from megatron_rl.config.model import ModelConfig
from megatron_rl.resharding.transports.selection import TransportName


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model of hydra_conf/model")
    parser.add_argument("--engine", action="store_true", help="actor and vLLM engine on one rank")
    parser.add_argument("--trained", action="store_true", help="with --engine: gradients and optimizer too")
    parser.add_argument("--pairs", nargs="*", default=[], help=f"layouts, or all: {', '.join(PAIRS)}")
    parser.add_argument("--pack", nargs="*", default=[], help="layouts whose first rank packs and unpacks, without a wire")
    parser.add_argument("--fp8", nargs="*", default=[], help="layouts whose linear weights arrive in block-scaled FP8")
    parser.add_argument("--ranks", type=int, default=1, help="without torchrun: CPU ranks to start")
    parser.add_argument("--transport", choices=get_args(TransportName), default="auto", help="see weight_sync.transport")
    parser.add_argument("--budget-mib", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("outputs/reshard"))
    parser.add_argument("overrides", nargs="*", help="configuration keys, after --; for example model.num_layers=8")
    return parser.parse_args()


def main() -> None:
    """Measure what is asked for."""
    arguments = _arguments()
    if arguments.ranks > 1 and "WORLD_SIZE" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            start_processes(_spawned, (arguments, f"{folder}/store"), nprocs=arguments.ranks)  # type: ignore[no-untyped-call]
        return
    figures = _engine_figures(arguments) if arguments.engine else _layout_figures(arguments)
    if int(os.environ.get("RANK", "0")) == 0:
        _write(arguments.out, figures)


def _spawned(rank: int, arguments: argparse.Namespace, store: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(arguments.ranks))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=arguments.ranks)
    figures = _layout_figures(arguments)
    if rank == 0:
        _write(arguments.out, figures)
    dist.destroy_process_group()


def _model(arguments: argparse.Namespace) -> ModelConfig:
    model = compose_run(["experiment=tiny_cpu", f"model={arguments.model}", *arguments.overrides]).model
    changed = ", ".join(override.removeprefix("model.") for override in arguments.overrides)
    return model.model_copy(update={"name": f"{model.name} ({changed})"}) if changed else model


def _engine_figures(arguments: argparse.Namespace) -> list[Figure]:
    from benchmarks.reshard_engine import EngineCase

    on_gpu = torch.cuda.is_available()
    config = compose_run(
        [
            "experiment=tiny_cpu",
            f"model={arguments.model}",
            f"trainer.device={'cuda' if on_gpu else 'cpu'}",
            f"trainer.dtype={'bfloat16' if on_gpu else 'float32'}",
            "actor.parallel.tensor=1",
            f"rollout.kv_cache_gib={8 if on_gpu else 0.25}",
            "rollout.max_num_seqs=16",
            "rollout.enforce_eager=true",
            f"weight_sync.budget_mib={arguments.budget_mib}",
            *arguments.overrides,
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        return list(EngineCase(config, Path(folder), trained=arguments.trained).measure(arguments.repeats))


def _layout_figures(arguments: argparse.Namespace) -> list[Figure]:
    on_gpu, local_rank = torch.cuda.is_available(), int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    dtype = torch.bfloat16 if on_gpu else torch.float32
    if on_gpu:
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        # NCCL does not work between processes of one GPU; what they share goes through its memory.
        own_gpu = on_gpu and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
        backend = "cpu:gloo,cuda:nccl" if own_gpu else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=120), device_id=device if own_gpu else None)
    joined = dist.is_initialized()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    model, budget = _model(arguments), arguments.budget_mib * 2**20
    figures = []
    for pair in pairs_of(world_size, model) if arguments.pairs == ["all"] else arguments.pairs:
        transfer = Transfer.build(model, pair, rank, device, dtype, budget)
        group = dist.group.WORLD if joined else None
        figures += measure_all(transfer, rank, group, budget, arguments.repeats, arguments.transport)
    for pair in arguments.fp8:
        figures += measure_quantised(model, pair, rank, dist.group.WORLD if joined else None, device, budget, arguments.repeats)
    for pair in arguments.pack:
        figures += measure_packing(model, pair, device, dtype, arguments.repeats)
    return figures


def _write(out: Path, figures: list[Figure]) -> None:
    """Add to what earlier calls have left."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.with_suffix(".json")
    earlier = [Figure(**entry) for entry in json.loads(file.read_text())["figures"]] if file.exists() else []
    on_gpu = torch.cuda.is_available()
    header = {
        "device": torch.cuda.get_device_name() if on_gpu else f"CPU, {platform.machine()}, gloo",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    everything = earlier + figures
    file.write_text(json.dumps({**header, "figures": [f.to_json_object() for f in everything]}, indent=1) + "\n")
    out.with_suffix(".md").write_text(table(everything) + "\n")
    print(table(figures), flush=True)


if __name__ == "__main__":
    main()
