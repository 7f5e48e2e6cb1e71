"""A batch script on disk, and its way into the queue."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from launchers.slurm import BatchJob, sbatch_script
from launchers.slurm_client import jobs_of_script, submit
from megatron_rl.config.errors import ConfigError

_DEPENDENCY = re.compile(r"^#SBATCH (--dependency|-d)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A batch script and where it is written."""

    path: Path
    text: str

    @classmethod
    def of(cls, job: BatchJob, folder: Path) -> BatchFile:
        """The script of ``job`` in ``folder``, named after its task."""
        return cls(folder / f"{job.task}.sbatch", sbatch_script(job))

    def submit(self) -> str:
        """Write the script, hand it to sbatch from the working directory, print and return the job id.

        Raises:
            ConfigError: another job of the same run is in the queue and this one does not depend on any; the folder cannot
                be written; or Slurm refuses the job, in its words.
        """
        present = [] if _DEPENDENCY.search(self.text) else jobs_of_script(self.path)
        if present:
            chain = f"\"launcher.sbatch_options=['--dependency=afterany:{present[-1]}']\""
            raise ConfigError(
                [
                    f"trainer.experiment_name: job {present[-1]} is this run already, and two would save over each other; "
                    f"give this one a name of its own, or chain it: {chain}"
                ]
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self.text)
        except OSError as failure:
            raise ConfigError([f"trainer.output_dir: cannot write {self.path}: {failure.strerror}"]) from None
        try:
            job_id = submit(self.path, Path.cwd())
        except ValueError as failure:
            raise ConfigError([str(failure)]) from None
        print(f"submitted job {job_id} ({self.path})", flush=True)
        return job_id
