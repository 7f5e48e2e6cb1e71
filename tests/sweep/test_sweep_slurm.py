"""Points as Slurm jobs: scripts of the right size, submitted through a stand-in for sbatch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launchers.sweep_state import PointRecord, read_record, settled, write_record
from megatron_rl.cli.compose import compose_run
from megatron_rl.cli.main import main

COMMAND = [
    "sweep",
    "scaling",
    "gpus=8,16",
    "gpus_per_node=4",
    "experiment=tiny_cpu",
    "launcher=slurm",
    "launcher.requeue=false",
    "actor.parallel.tensor=1",
    "data.train_batch_size=64",
]
FAKE_SBATCH = """#!/bin/bash
for last; do :; done
echo "$last" >> "$FAKE_SLURM/submitted"
echo $((4000 + $(wc -l < "$FAKE_SLURM/submitted")))
"""
FAKE_SQUEUE = """#!/bin/bash
cat "$FAKE_SLURM/queue" 2>/dev/null || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with an sbatch that numbers its jobs and writes down the scripts' paths."""
    folder = tmp_path / "slurm_client"
    folder.mkdir()
    for name, text in (("sbatch", FAKE_SBATCH), ("sinfo", "#!/bin/bash\necho main\n"), ("squeue", FAKE_SQUEUE)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    for name in ("RANK", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """The run folder of a submitted point that has taken three steps of sixty."""
    write_record(tmp_path, "a", PointRecord(state="submitted", overrides=[], job_id="4711"))
    folder = tmp_path / "a" / "20260101-000000-abc"
    folder.mkdir()
    (tmp_path / "a" / "latest").symlink_to(folder.name)
    (folder / "config.json").write_text(compose_run(["experiment=tiny_cpu"]).model_dump_json())
    (folder / "metrics.jsonl").write_text('{"step": 3}\n')
    return folder


def test_settled_waits_while_the_job_runs(slurm: Path, attempt: Path, tmp_path: Path) -> None:
    (slurm / "queue").write_text("RUNNING\n")
    record = settled(tmp_path, "a")
    assert record is not None and record.state == "submitted"


@pytest.mark.parametrize("queue", ["RUNNING\n", None], ids=["running", "gone"])
def test_settled_finishes_with_the_last_step(queue: str | None, slurm: Path, attempt: Path, tmp_path: Path) -> None:
    if queue is not None:
        (slurm / "queue").write_text(queue)
    (attempt / "metrics.jsonl").write_text('{"step": 60}\n')
    record = settled(tmp_path, "a")
    assert record is not None and (record.state, record.run_dir) == ("finished", str(attempt))
    assert read_record(tmp_path, "a") == record


LOGS = {
    "preflight": ("step 3\nerror: node n2 failed the preflight\n\n", "node n2 failed the preflight"),
    "rank": (
        "srun: error: task 1\nerror: rank 1 on node n2 failed first (raised); all output is in /runs\n"
        "  rank 1 | Traceback\n  rank 1 | ValueError: no\n",
        "rank 1 on node n2 failed first (raised): ValueError: no",
    ),
    "shell": ("train.sbatch: line 9: killed\n", "train.sbatch: line 9: killed"),
    "empty": ("", "job 4711 left the queue without a word"),
}
"""What is in the batch log, and the reason that follows."""


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("queue", ["", None], ids=["empty_answer", "forgotten"])
def test_settled_gives_the_last_words_of_a_job_that_is_gone(
    queue: str | None, log: str, slurm: Path, attempt: Path, tmp_path: Path
) -> None:
    if queue is not None:
        (slurm / "queue").write_text(queue)
    (tmp_path / "a" / "slurm").mkdir()
    text, reason = LOGS[log]
    (tmp_path / "a" / "slurm" / "4711.out").write_text(text)
    record = settled(tmp_path, "a")
    assert record is not None and (record.state, record.reason) == ("failed", reason)


def test_settled_waits_where_slurm_gives_no_answer(slurm: Path, attempt: Path, tmp_path: Path) -> None:
    (slurm / "squeue").write_text("#!/bin/bash\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    record = settled(tmp_path, "a")
    assert record is not None and record.state == "submitted"


def options(script: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script, re.MULTILINE))


def test_sweep_submits_one_job_a_point(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = f"trainer.output_dir={tmp_path}"
    (slurm / "queue").write_text("PENDING\n")
    assert main([*COMMAND, output]) == 0
    scripts = [Path(line) for line in (slurm / "submitted").read_text().splitlines()]
    folder = tmp_path / "scaling_strong"
    assert scripts == [folder / "gpus_8" / "slurm" / "train.sbatch", folder / "gpus_16" / "slurm" / "train.sbatch"]
    found = [options(script.read_text()) for script in scripts]
    assert [(one["job-name"], one["nodes"], one["ntasks-per-node"]) for one in found] == [
        ("scaling_strong-gpus_8", "2", "4"),
        ("scaling_strong-gpus_16", "4", "4"),
    ]
    assert len({one["output"] for one in found}) == 2
    assert "trainer.experiment_name=gpus_16" in scripts[1].read_text()
    assert "master_port" not in scripts[0].read_text(), "two jobs on one node must not share a port"
    records = [read_record(folder, name) for name in ("gpus_8", "gpus_16")]
    assert [(record.state, record.job_id) for record in records if record] == [("submitted", "4001"), ("submitted", "4002")]
    assert "0 steps so far, job 4001" in capsys.readouterr().out
    assert main([*COMMAND, output]) == 0
    assert len((slurm / "submitted").read_text().splitlines()) == 2, "submitted twice"


def test_sweep_keeps_a_waiting_job_that_is_submitted_again(slurm: Path, tmp_path: Path) -> None:
    command = [*COMMAND[:2], "gpus=4", *COMMAND[3:], f"trainer.output_dir={tmp_path}"]
    (slurm / "queue").write_text("PENDING\n")
    assert main(command) == 0
    (slurm / "queue").write_text(f"4001|{tmp_path}/scaling_strong/gpus_4/slurm/train.sbatch\n")
    main([*command, "retry=true"])
    record = read_record(tmp_path / "scaling_strong", "gpus_4")
    assert record is not None and (record.state, record.job_id) == ("submitted", "4001")


def test_sweep_dry_run_shows_every_script(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, f"trainer.output_dir={tmp_path}", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("#SBATCH --job-name=scaling_strong-gpus_") == 2
    assert not (slurm / "submitted").exists() and not (tmp_path / "scaling_strong").exists()


def test_launch_rejects_a_run_that_is_in_the_queue(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = f"trainer.output_dir={tmp_path}"
    words = ["launch", "launcher=slurm", "launcher.requeue=false", "experiment=tiny_cpu", "gpus_per_node=2", output]
    (slurm / "queue").write_text(f"16|/elsewhere/train.sbatch\n17|{tmp_path}/megatron_rl/tiny_cpu/slurm/train.sbatch\n")
    assert main(words) == 2
    assert "job 17 is this run already" in capsys.readouterr().err and not (slurm / "submitted").exists()
    assert main([*words, "launcher.sbatch_options=['--dependency=afterany:17']"]) == 0


def test_sweep_rejects_a_machine_without_sbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main([*COMMAND, f"trainer.output_dir={tmp_path}"]) == 2
    assert "there is no sbatch on this machine" in capsys.readouterr().err
    assert not (tmp_path / "scaling_strong").exists()


def test_sweep_rejects_one_port_for_all_jobs(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, f"trainer.output_dir={tmp_path}", "launcher.master_port=29500"]) == 2
    assert "launcher.master_port=29500: jobs of a sweep may meet on a node" in capsys.readouterr().err
    assert not (slurm / "submitted").exists()
