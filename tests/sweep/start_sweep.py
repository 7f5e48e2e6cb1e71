"""``python -m tests.sweep.start_sweep OUTPUT_DIR``: two points of a fake worker that waits to be told to stop."""

from __future__ import annotations

import sys

from launchers.submit import launch_task
from launchers.sweep import Started, run_sweep
from launchers.sweep_plan import Host, PlannedPoint, plan_sweep
from launchers.sweep_spec import spec_of
from megatron_rl.config.loading import compose


def wait_to_be_stopped(planned: PlannedPoint) -> Started:
    return Started(exit_code=launch_task("generate", planned.config, module="tests.launchers.fake_worker"))


def main(output_dir: str) -> int:
    overrides = ["experiment=tiny_cpu", f"trainer.output_dir={output_dir}"]
    spec = spec_of({"kind": "grid", "name": "s", "parameters": {"rollout.n": [4, 8]}, "overrides": overrides})
    return run_sweep(plan_sweep(spec, compose, Host(num_gpus=0, num_processors=2)), wait_to_be_stopped)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
