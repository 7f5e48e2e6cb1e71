"""All benchmarks of one kind of machine in one go: dated JSON files and one report (``make bench-gpu``, ``make bench-cpu``).

Run: ``python -m benchmarks.suite gpu --out benchmarks/results``; ``--only step rollout`` takes some parts. Every part runs in a
process of its own on all GPUs of the machine; one that fails is named in the report and does not stop the others.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks.harness import commit, last_line
from launchers.environment import num_visible_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One benchmark. Commands are arguments of ``python``; ``{out}`` stands for a folder of its own."""

    name: str
    title: str
    commands: tuple[str, ...]
    stem: str
    """Of the JSON and the Markdown file that the commands leave in their folder."""


def gpu_parts(num_gpus: int) -> list[Part]:
    """What one host with NVIDIA GPUs can measure."""
    pairs = f"-m torch.distributed.run --standalone --nproc-per-node {num_gpus} -m benchmarks.reshard --pairs all"
    between = [f"{pairs} --model {model} --out {{out}}/reshard" for model in ("qwen2_5_1_5b", "qwen2_7b")] * (num_gpus > 1)
    step = "-m benchmarks.step --bare inside --store {out}/measurements.json --out {out}/step"
    return [
        Part(
            name="kernels",
            title="Kernels",
            commands=("-m benchmarks.kernels --device cuda --out {out} --limit 500",),
            stem="kernels",
        ),
        Part(name="layers", title="Layers", commands=("-m benchmarks.layers --out {out}",), stem="layers"),
        Part(
            name="reshard",
            title="Weights from the actor to the engine",
            commands=(
                "-m benchmarks.reshard --model qwen2_5_1_5b --engine --trained --out {out}/reshard",
                "-m benchmarks.reshard --model qwen2_7b --engine --out {out}/reshard",
                "-m benchmarks.reshard --model qwen2_7b --pack tp2_to_tp1dp2 --out {out}/reshard",
                "-m benchmarks.reshard --model qwen3_30b_a3b --pack ep2_to_tp2 --out {out}/reshard -- model.num_layers=8",
                *between,
            ),
            stem="reshard",
        ),
        Part(
            name="rollout",
            title="Rollout engine",
            commands=tuple(
                f"-m benchmarks.rollout --model {model} --prompts {prompts} --samples 8 --prompt-tokens 512 --new-tokens 512 "
                "--repeats 3 --bare --out {out}/rollout"
                # vLLM alone in processes of its own; the steps below compare on the engine that they have.
                for model, prompts in (("qwen2_5_1_5b", 64), ("qwen2_7b", 16))
            ),
            stem="rollout",
        ),
        Part(
            name="step",
            title="RL step",
            commands=(
                f"{step} --model qwen2_5_0_5b qwen2_5_1_5b qwen2_7b --algorithm grpo",
                f"{step} --model qwen2_5_0_5b qwen2_5_1_5b --algorithm ppo",
            ),
            stem="step",
        ),
    ]


def cpu_parts() -> list[Part]:
    """What a machine without a GPU can measure: planning, exact bytes between gloo ranks, and the tiny model's step."""
    experts = "model.num_layers=2 model.hidden_size=128 model.vocab_size=4096"
    tiny = "--prompt-tokens 16 --response-tokens 32 --mean-response-tokens 24 --prompts 8"
    return [
        Part(name="planner", title="Planning", commands=("-m benchmarks.planner --out {out}/planner",), stem="planner"),
        Part(
            name="reshard",
            title="Weights between layouts",
            commands=(
                "-m benchmarks.reshard --model tiny --pairs all --ranks 2 --out {out}/reshard",
                f"-m benchmarks.reshard --model qwen3_30b_a3b --pairs ep2_to_tp2 --ranks 2 --out {{out}}/reshard -- {experts}",
            ),
            stem="reshard",
        ),
        Part(
            name="rollout",
            title="Rollout engine",
            commands=("-m benchmarks.rollout --bare --out {out}/rollout",),
            stem="rollout",
        ),
        Part(
            name="step",
            title="RL step",
            commands=(f"-m benchmarks.step --model tiny --algorithm grpo ppo {tiny} --bare inside --out {{out}}/step",),
            stem="step",
        ),
    ]


def main() -> int:
    """Run the parts; 1 where a command failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine", choices=("gpu", "cpu"))
    parser.add_argument("--only", nargs="+", help="names of parts")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    chosen = parser.parse_args()
    parts = gpu_parts(num_visible_gpus(os.environ)) if chosen.machine == "gpu" else cpu_parts()
    unknown = set(chosen.only or ()) - {part.name for part in parts}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in parts)}")
    device = str(json.loads(last_line([sys.executable, "-m", "benchmarks.ceilings"]))["device"])
    prefix = f"{date.today().isoformat()}_{device_slug(device)}"
    sections, failures = [f"# Benchmarks, {device}, {date.today().isoformat()}, commit {commit()}"], 0
    for part in parts:
        if chosen.only is None or part.name in chosen.only:
            text, failed = run_part(part, chosen.out, prefix)
            sections.append(text)
            failures += failed
    report = chosen.out / f"{prefix}.md"
    report.write_text("\n\n".join(sections) + "\n")
    print(f"report: {report}", flush=True)
    return 1 if failures else 0


def run_part(part: Part, out: Path, prefix: str) -> tuple[str, int]:
    """Run one part; returns its section of the report and how many of its commands failed."""
    out.mkdir(parents=True, exist_ok=True)
    lines, failures = [f"# {part.title}", ""], 0
    with tempfile.TemporaryDirectory() as folder:
        for command in part.commands:
            print(f"== {part.name}: python {command}", flush=True)
            code = subprocess.run([sys.executable, *shlex.split(command.format(out=folder))], check=False).returncode
            lines.append(f"    python {command.format(out='OUT')}" + (f"   (failed: exit code {code})" if code else ""))
            failures += code != 0
        left, text = Path(folder) / f"{part.stem}.json", Path(folder) / f"{part.stem}.md"
        if left.exists():
            target = out / f"{prefix}_{part.name}.json"
            shutil.copy(left, target)
            lines += ["", f"Data: [{target.name}]({target.name})."]
        if text.exists():
            lines += ["", demoted(text.read_text()).strip()]
        measurements = Path(folder) / "measurements.json"
        if measurements.exists():
            shutil.copy(measurements, out / f"{prefix}_measurements.json")
    return "\n".join(lines), failures


def demoted(markdown: str) -> str:
    """The text with every heading one level deeper."""
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in markdown.splitlines())


def device_slug(device: str) -> str:
    """For file names: ``NVIDIA H200`` -> ``h200``."""
    words = [word for word in device.lower().split() if word not in ("nvidia", "tesla", "geforce")]
    return "_".join("".join(c for c in word if c.isalnum()) for word in words) or "cpu"


if __name__ == "__main__":
    sys.exit(main())
