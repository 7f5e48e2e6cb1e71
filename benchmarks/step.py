"""A whole RL step, measured: ``megatron-rl train`` on random weights, by phase, against ceilings measured in the same run.

One GPU or any number:  ``python -m benchmarks.step --model qwen2_5_1_5b --algorithm grpo --out outputs/step``
Several shapes:         ``... --model qwen2_5_0_5b qwen2_5_1_5b qwen2_7b --algorithm grpo ppo``
With settings:          ``... -- actor.ppo_max_token_len_per_gpu=8192 rollout.enforce_eager=true``
Side by side:           ``... --compare model.transformer_impl=local --compare model.transformer_impl=transformer_engine``
Against vLLM alone:     ``... --bare inside``; where the time of scoring and update goes: ``--profile``
For the estimator:      ``... --store measurements.json``

Writes ``<out>.json`` and ``<out>.md``; several calls with one ``--out`` add up, and the last of a name counts. Steps are the
product's own: the command composes a configuration, starts its ranks and reads the run folder that they leave.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import get_args

from benchmarks.step_figures import Ceilings
from benchmarks.step_report import StepReport, keep_report
from benchmarks.step_run import Bare, Variant, measure_ceilings_apart, run_bare, run_variant
from benchmarks.step_workload import Workload
from megatron_rl.config.errors import ConfigError

PROMPTS_PER_GPU = {"qwen2_7b": 8, "qwen3_8b": 8}
"""Of large shapes; others take ``MOST_PROMPTS_PER_GPU``."""
MOST_PROMPTS_PER_GPU = 32


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every variant; 1 where one failed, and the others are measured all the same."""
    typed = list(sys.argv[1:] if argv is None else argv)
    arguments = _arguments(typed)
    command = shlex.join(["python", "-m", "benchmarks.step", *typed])
    ceilings = measure_ceilings_apart(arguments.out.absolute().parent / "work")
    failed = [variant.name for variant in variants(arguments) if not _measure(variant, arguments, ceilings, command)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def _measure(variant: Variant, arguments: argparse.Namespace, ceilings: Ceilings, command: str) -> bool:
    """Measure and report one variant; whether all of it worked."""
    out: Path = arguments.out.absolute()
    try:
        measured = run_variant(variant, out.parent / "work")
    except (ConfigError, RuntimeError) as failure:
        print(f"{variant.name}: {failure}", file=sys.stderr, flush=True)
        return False
    report, complete = StepReport.of(measured, ceilings, None, command), True
    keep_report(out, report)
    if arguments.store is not None:
        report.store(arguments.store, measured)
    try:
        report = StepReport.of(measured, ceilings, run_bare(measured, out.parent / "work"), command)
        keep_report(out, report)
    except RuntimeError as failure:
        print(f"{variant.name}, vLLM alone: {failure}", file=sys.stderr, flush=True)
        complete = False
    print(report.markdown(), flush=True)
    return complete


def variants(arguments: argparse.Namespace) -> Iterator[Variant]:
    """Every model under every algorithm in every compared setting."""
    for model, algorithm, compared in product(arguments.model, arguments.algorithm, arguments.compare or [""]):
        yield Variant(
            model=model,
            algorithm=algorithm,
            workload_per_gpu=Workload(
                prompts=arguments.prompts or PROMPTS_PER_GPU.get(model, MOST_PROMPTS_PER_GPU),
                samples=arguments.samples,
                prompt_tokens=arguments.prompt_tokens,
                response_tokens=arguments.response_tokens,
                mean_response_tokens=None if arguments.full_length else arguments.mean_response_tokens,
            ),
            steps=arguments.steps,
            warmup_steps=arguments.warmup_steps,
            bare=arguments.bare,
            profile=arguments.profile,
            compared=tuple(compared.split()),
            overrides=tuple(arguments.overrides),
        )


def _arguments(argv: list[str]) -> argparse.Namespace:
    own, overrides = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["qwen2_5_1_5b"], help="presets (model=)")
    parser.add_argument("--algorithm", nargs="+", default=["grpo"], help="grpo, ppo, ...")
    parser.add_argument("--steps", type=int, default=3, help="measured steps")
    parser.add_argument("--warmup-steps", type=int, default=1)
    parser.add_argument("--prompts", type=int, help="prompts a step and GPU")
    parser.add_argument("--samples", type=int, default=8, help="responses to each prompt")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--response-tokens", type=int, default=1024, help="budget of a response")
    parser.add_argument("--mean-response-tokens", type=int, default=1024, help="mean of the geometric law before the cut")
    parser.add_argument("--full-length", action="store_true", help="every response uses up its budget")
    parser.add_argument(
        "--bare",
        choices=get_args(Bare),
        default="none",
        help="the same requests by vLLM alone: inside = its loop on the run's engine; apart = LLM.generate, another process",
    )
    parser.add_argument("--profile", action="store_true", help="one step more, whose scoring and update are profiled")
    parser.add_argument("--compare", action="append", help="settings of one variant, separated by spaces; may be repeated")
    parser.add_argument("--store", type=Path, help="measurement file of the estimator to add to")
    parser.add_argument("--out", type=Path, default=Path("outputs/step"))
    found = parser.parse_args(own)
    found.overrides = overrides
    return found


if __name__ == "__main__":
    sys.exit(main())
