"""On a real Slurm, two nodes train the tiny model, are signalled, cancelled, crashed, and go on (GRPO on one rank a node)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_rl.observability.sinks import read_metrics
from tests.end_to_end.tiny_assets import write_assets
from tests.slurm_sandbox.cluster import ROOT, Cluster, obstacle, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.slurm]
STEPS = 40
GRPO_STEPS = 40
"""Half a second each: enough that the run is still there when the urgent job comes."""
GRPO = (
    "algorithm=grpo",
    "data=spell_backward",
    "data.train_batch_size=8",
    "rollout.n=4",
    f"trainer.total_training_steps={GRPO_STEPS}",
    "trainer.val_before_train=false",
    "trainer.val_at_end=false",
)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    reason = obstacle()
    if reason:
        pytest.skip(reason)
    started = Cluster.start(Path(tempfile.mkdtemp(prefix="mrl-slurm-")))  # short: unix sockets have short names
    yield started
    started.stop()


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_assets(tmp_path_factory.mktemp("assets"))


def settings(assets: Path, name: str, steps: int = STEPS) -> list[str]:
    return [
        "experiment=tiny_cpu",
        f"model.path='{assets / 'policy'}'",
        "actor.parallel.tensor=1",
        f"sft.train_files=['{assets / 'pairs.jsonl'}']",
        "sft.batch_size=4",
        f"sft.total_steps={steps}",
        "trainer.save_freq=1000",
        f"trainer.experiment_name={name}",
        "trainer.output_dir=out",
        "launcher.min_free_gib=0",
    ]


class Run:
    """A submitted run and the folders it leaves."""

    def __init__(self, cluster: Cluster, cwd: Path, name: str, task: str = "sft") -> None:
        self.cluster, self.task = cluster, task
        self.folder = cwd / "out" / "megatron_rl" / name
        self.job = ""

    def submit(self, *overrides: str) -> Run:
        command = ("megatron-rl", "launch", "launcher=slurm", f"--task={self.task}", "launcher.cpus_per_rank=1", *overrides)
        done = self.cluster.run(*command, cwd=self.folder.parents[2])
        assert done.returncode == 0, done.stderr
        assert "#SBATCH --signal=B:USR1@" in done.stdout, "the script is shown before it is submitted"
        self.job = done.stdout.rpartition("submitted job ")[2].split()[0]
        return self

    @property
    def log(self) -> str:
        path = self.folder / "slurm" / f"{self.job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def attempts(self) -> list[Path]:
        return sorted(self.folder.glob("2*"))

    def steps(self) -> list[list[int]]:
        """Steps each attempt has recorded."""
        files = [attempt / "metrics.jsonl" for attempt in self.attempts]
        return [[int(row["step"] or 0) for row in read_metrics(file)] if file.exists() else [] for file in files]

    def wait_for_step(self, step: int) -> None:
        wait_for(
            lambda: any(step in steps for steps in self.steps()), 300, lambda: f"{self.cluster.fields(self.job)} {self.log}"
        )


def two_nodes(cluster: Cluster, assets: Path, cwd: Path, name: str, *more: str) -> Run:
    return Run(cluster, cwd, name).submit("nodes=2", "gpus_per_node=2", *settings(assets, name), *more)


def test_time_limit_saves_requeues_and_resumes(cluster: Cluster, assets: Path, tmp_path: Path) -> None:
    """Slurm's own clock, which may signal up to a minute early: the first attempt gets at least one step."""
    endless = ("sft.total_steps=100000", "launcher.time_limit=2", "launcher.signal_lead_s=75")
    run = two_nodes(cluster, assets, tmp_path, "limit", *endless)
    wait_for(lambda: len(run.steps()) > 1 and bool(run.steps()[1]), 200, lambda: f"{cluster.fields(run.job)} {run.log}")
    cluster.ask("scancel", run.job)
    assert cluster.wait_end(run.job) == "CANCELLED"
    assert cluster.fields(run.job)["Restarts"] == "1"
    steps = [step for attempt in run.steps() for step in attempt]
    assert steps == list(range(1, len(steps) + 1)), "no step is lost, none is taken twice"
    assert (run.folder / "latest").resolve() == run.attempts[1]
    assert run.log.count("run folder") == 2, "the log is appended to"
    assert "\x1b" not in run.log, "a log is no terminal"
    assert "not sent back to the queue" not in run.log.partition("restart 1 of job")[0]


def test_preempted_training_saves_and_comes_back(cluster: Cluster, assets: Path, tmp_path: Path) -> None:
    """A job of a higher partition takes the nodes from a GRPO run, which saves within its grace time and goes on later."""
    run = Run(cluster, tmp_path, "preempted", task="train")
    run.submit("nodes=2", "gpus_per_node=1", *settings(assets, "preempted"), *GRPO, "launcher.partition=spare")
    run.wait_for_step(2)
    urgent = ("sbatch", "--parsable", "--partition=gpu", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 3")
    done = cluster.run(*urgent, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert cluster.wait_end(run.job, within_s=400) == "COMPLETED", run.log
    assert cluster.fields(done.stdout.strip())["JobState"] == "COMPLETED"
    assert cluster.fields(run.job)["Restarts"] == "1"
    first, second = run.steps()
    assert first + second == list(range(1, GRPO_STEPS + 1)), "no step is lost, none is taken twice"


def test_cancelled_job_saves_and_its_dependent_goes_on(cluster: Cluster, assets: Path, tmp_path: Path) -> None:
    run = two_nodes(cluster, assets, tmp_path, "chain")
    command = (
        "megatron-rl",
        "launch",
        "launcher=slurm",
        "--task=sft",
        "nodes=2",
        "gpus_per_node=2",
        *settings(assets, "chain"),
    )
    twice = cluster.run(*command, cwd=tmp_path)
    assert twice.returncode == 2 and f"job {run.job} is this run already" in twice.stderr, twice.stderr
    after = f"launcher.sbatch_options=['--dependency=afterany:{run.job}']"
    follower = two_nodes(cluster, assets, tmp_path, "chain", after)
    run.wait_for_step(2)
    cluster.ask("scancel", run.job)
    assert cluster.wait_end(run.job) == "CANCELLED"
    assert cluster.fields(run.job)["Restarts"] == "0", "who cancels does not want it back"
    assert cluster.wait_end(follower.job) == "COMPLETED", follower.log
    first, second = follower.steps()
    assert first + second == list(range(1, STEPS + 1))


def test_crashed_node_requeues_and_resumes(cluster: Cluster, assets: Path, tmp_path: Path) -> None:
    run = two_nodes(cluster, assets, tmp_path, "crash", "trainer.save_freq=5")
    wait_for(lambda: list(run.folder.glob("checkpoints/sft/step_*")) != [], 120, lambda: run.log)
    cluster.crash("node2")
    assert cluster.wait_end(run.job) == "COMPLETED", run.log
    assert cluster.fields(run.job)["Restarts"] == "1"
    last = run.steps()[-1]
    assert last[0] % 5 == 1 and last[0] > 1, "it goes on from a checkpoint"
    assert last[-1] == STEPS


def test_node_without_the_shared_folder_is_named(cluster: Cluster, assets: Path, tmp_path: Path) -> None:
    shared = tmp_path / "out"
    shared.mkdir()
    cluster.on_node("node2", "mount", "-t", "tmpfs", "none", str(shared))
    try:
        run = two_nodes(cluster, assets, tmp_path, "unshared", "launcher.requeue=false")
        assert cluster.wait_end(run.job, within_s=60) == "FAILED"
    finally:
        cluster.on_node("node2", "umount", str(shared))
    last = run.log[run.log.rindex("error: ") :]
    assert "node node2: cannot use the shared folder" in run.log
    assert "no weights were loaded" in last or "node2" in last
    assert "node node1:" not in last


def test_shipped_scripts_run_at_once_without_an_environment(cluster: Cluster, assets: Path, tmp_path: Path) -> None:
    """Two jobs on one node at the same time, from any folder, with ``--export=NONE``."""
    script = str(ROOT / "slurm" / "sft_1n1g.sbatch")
    jobs = []
    for name in ("left", "right"):
        overrides = (*settings(assets, name, steps=4), "trainer.device=cpu")
        options = ("--parsable", "--export=NONE", "--nodelist=node1", "--ntasks-per-node=2", "--cpus-per-task=1")
        done = cluster.run("sbatch", *options, script, *overrides, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        jobs.append(done.stdout.strip())
    logs = [tmp_path / f"slurm-sft_1n1g-{job}.out" for job in jobs]
    assert [cluster.wait_end(job) for job in jobs] == ["COMPLETED"] * 2, [log.read_text() for log in logs]
    heads = {line.rpartition(":")[2] for log in logs for line in log.read_text().splitlines() if " head node1 " in line}
    assert len(heads) == 2, "each has its own port"


def test_launch_reports_what_slurm_would_refuse(cluster: Cluster, assets: Path, tmp_path: Path) -> None:
    command = ("megatron-rl", "launch", "launcher=slurm", "--task=sft", *settings(assets, "refused"), "gpus_per_node=2")
    unknown = cluster.run(*command, "launcher.partition=gpus", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "launcher.partition=gpus: this cluster has no partition gpus (did you mean gpu?)" in unknown.stderr
    too_many = cluster.run(*command, "nodes=3", cwd=tmp_path)
    assert too_many.returncode == 2
    assert "sbatch refused the job" in too_many.stderr
    assert "trainer.nnodes" in too_many.stderr
    assert cluster.ask("squeue", "--noheader") == ""
