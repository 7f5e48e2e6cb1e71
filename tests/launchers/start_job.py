"""``python -m tests.launchers.start_job TASK OUTPUT_DIR``: starts the fake worker on two ranks."""

from __future__ import annotations

import sys

from launchers.submit import launch_task
from megatron_rl.config.loading import compose


def main(task: str, output_dir: str) -> int:
    config = compose(
        [
            "experiment=tiny_cpu",
            f"trainer.output_dir={output_dir}",
            "trainer.project_name=p",
            "trainer.experiment_name=e",
        ]
    )
    return launch_task(task, config, module="tests.launchers.fake_worker")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
