"""A batch script on disk, and its way into the queue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launchers.slurm import BatchJob, sbatch_script
from launchers.slurm_client import submit
from megatron_rl.config.errors import ConfigError


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
            ConfigError: the folder cannot be written, or Slurm refuses the job; in its words.
        """
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
