"""``python -m tests.launchers.start_node TASK OUTPUT_DIR [OVERRIDE ...]``: one of two nodes with one fake rank each."""

from __future__ import annotations

import sys

from launchers.submit import launch_task
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import compose


def main(task: str, output_dir: str, *overrides: str) -> int:
    config = compose(
        [
            "experiment=tiny_cpu",
            "launcher=torchrun",
            "trainer.nnodes=2",
            "trainer.n_gpus_per_node=1",
            f"trainer.output_dir={output_dir}",
            "trainer.project_name=p",
            "trainer.experiment_name=e",
            *overrides,
        ]
    )
    try:
        return launch_task(task, config, module="tests.launchers.fake_worker")
    except ConfigError as failure:
        print(failure.report())
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
