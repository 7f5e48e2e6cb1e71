"""The batch scripts that are shipped in ``slurm/``; ``python -m launchers.slurm_presets`` rewrites them."""

from __future__ import annotations

from pathlib import Path

from launchers.slurm import BatchJob, sbatch_script

_SAVES = ("trainer.save_freq=20", "trainer.max_checkpoints_to_keep=3")
_TRIAL = ("data=spell_backward",)
"""With the default model, tiny, a script runs as it is: a test of the cluster before a model is there."""


def _training(algorithm: str, nodes: int, summary: str) -> BatchJob:
    """Training on whole nodes of 8 GPUs."""
    return BatchJob(
        name=f"{algorithm}_{nodes}n8g",
        task="train",
        nodes=nodes,
        ranks_per_node=8,
        gpus_per_node=8,
        cpus_per_rank=8,
        time_limit="24:00:00",
        options=("--mem=0",),
        overrides=(f"algorithm={algorithm}", *_TRIAL, *_SAVES),
        own_name=True,
        summary=summary,
    )


PRESETS = (
    _training("grpo", 1, "GRPO on one node of 8 GPUs."),
    _training("ppo", 1, "PPO with a critic on one node of 8 GPUs."),
    _training("grpo", 2, "GRPO on two nodes of 8 GPUs."),
    BatchJob(
        name="sft_1n1g",
        task="sft",
        nodes=1,
        ranks_per_node=1,
        gpus_per_node=1,
        cpus_per_rank=8,
        time_limit="4:00:00",
        overrides=_SAVES,
        own_name=True,
        summary="Supervised fine-tuning on one GPU.",
    ),
)


def scripts() -> dict[str, str]:
    """Path from the repository root -> text of every shipped script."""
    return {f"slurm/{job.name}.sbatch": sbatch_script(job) for job in PRESETS}


def main() -> None:
    """Rewrite the scripts of this checkout."""
    root = Path(__file__).resolve().parents[1]
    for name, text in scripts().items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
