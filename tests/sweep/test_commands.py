"""``megatron-rl sweep`` and ``probe``: command lines, files, and one real sweep and probe on CPU."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from megatron_rl.cli.main import main
from megatron_rl.cli.probe import plan_probe
from megatron_rl.cli.sweep import run_sweep_file, typed_content
from megatron_rl.config.errors import ConfigError

EXAMPLES = Path(__file__).parents[2] / "examples" / "sweeps"


def test_typed_content_splits_a_command_line() -> None:
    assert typed_content("scaling", ["gpus=1,2", "retry=true", "price_per_hour=2.5", "model=tiny", "rollout.n=4"]) == {
        "kind": "scaling",
        "gpus": [1, 2],
        "retry": True,
        "price_per_hour": 2.5,
        "parameters": {},
        "overrides": ["model=tiny", "rollout.n=4"],
    }


def test_typed_content_of_a_grid_varies_what_has_several_values() -> None:
    typed = ["rollout.batch_size=32,64", "algorithm=grpo,ppo", "actor.optim.betas=[0.9,0.99]"]
    content = typed_content("grid", typed)
    assert content["parameters"] == {"data.train_batch_size": ["32", "64"], "algorithm": ["grpo", "ppo"]}
    assert content["overrides"] == ["actor.optim.betas=[0.9,0.99]"]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["sweep", "scalin", "gpus=1,2"], "did you mean scaling?"),
        (["sweep", "scaling", "gpuss=1,2"], "gpuss: no such key; did you mean gpus?"),
        (["sweep", "grid", "experiment=tiny_cpu", "rolout.n=4,8"], "did you mean rollout.n?"),
        (["sweep", "results", "/nowhere"], "sweep.json is missing"),
        (["sweep", "--config", "/nowhere.yaml"], "cannot read it"),
        (["sweep", "--config"], "--config: name a sweep file"),
        (["probe", "experiment=tiny_cpu", "measurements=/dev/null/m.json"], "measurements=/dev/null/m.json: cannot write"),
        (["probe", "experiment=tiny_cpu", f"measurements={__file__}"], "no list of records as megatron-rl probe writes it"),
        (["sweep", "scaling", "gpus=1,2", "--dryrun"], "--dryrun: no such option; did you mean --dry-run?"),
        (["probe", "rollout.batch_size=8"], "rollout.batch_size: no such key; did you mean data.train_batch_size?"),
        (["probe", "experiment=tiny_cpu", "lr=1"], "lr: no such key; did you mean actor.optim.lr?"),
        (["probe", "num_train_step=3"], "did you mean num_train_steps?"),
        (["probe", "num_train_steps=0"], "num_train_steps: got 0"),
        (["probe", "experiment=tiny_cpu", "num_train_steps=1"], "no step is left to measure"),
        (["probe", "model=qwen2_7b", "data=spell_backward"], "model.tokenizer_path and model.path are both null"),
    ],
    ids=[
        "kind",
        "own_key",
        "config_key",
        "results",
        "file",
        "no_file",
        "no_folder",
        "other_file",
        "option",
        "alias",
        "top_level",
        "probe_key",
        "no_steps",
        "only_warmup",
        "no_tokenizer",
    ],
)
def test_commands_reject_typos(argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_sweeps_can_run(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_sweep_file(file, [f"trainer.output_dir={tmp_path}"], dry_run=True) == 0
    assert "sweep of" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_run_sweep_file_lets_the_command_line_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("kind: grid\nname: a\nparameters: {rollout.n: [4, 8]}\noverrides: [experiment=tiny_cpu]\n")
    assert run_sweep_file(file, ["name=b", "rollout.n=2,16", f"trainer.output_dir={tmp_path}"], dry_run=True) == 0
    output = capsys.readouterr().out
    assert f"sweep of 2 points in {tmp_path / 'b'}" in output
    assert "n_2: 2 ranks" in output and "n_16: 2 ranks" in output


def test_run_sweep_file_names_the_file_and_the_key(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("kind: scaling\ngpus: [1, two]\n")
    with pytest.raises(ConfigError, match=r"s\.yaml: gpus: item 1 is"):
        run_sweep_file(file)


def test_run_sweep_file_rejects_a_file_without_a_kind(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("gpus: [1, 2]\n")
    with pytest.raises(ConfigError, match=r"s\.yaml: kind: required but not set"):
        run_sweep_file(file)


def test_plan_probe_keeps_the_schedule_of_the_whole_run() -> None:
    probe = plan_probe(["experiment=tiny_cpu", "num_train_steps=3", "actor.optim.lr_decay_style=linear"])
    assert probe.total_steps == 60
    assert probe.config.trainer.total_training_steps == 3
    assert probe.config.actor.optim.lr_decay_steps == 60
    assert probe.config.trainer.experiment_name == "tiny_cpu_probe"


SMALL_RUN = [
    "experiment=tiny_cpu",
    "actor.parallel.tensor=1",
    "data.train_batch_size=4",
    "rollout.n=2",
    "rollout.max_num_seqs=8",
]


@pytest.mark.slow
@pytest.mark.vllm
def test_sweep_and_probe_on_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Two points of two steps; the same command does nothing twice; a probe of three steps."""
    for name in ("RANK", "WORLD_SIZE", "MEGATRON_RL_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    shared = [*SMALL_RUN, f"trainer.output_dir={tmp_path}"]
    command = ["sweep", "scaling", "gpus=1,2", "mode=weak", "price_per_hour=2", "trainer.total_training_steps=2", *shared]
    assert main(command) == 0
    folder = tmp_path / "scaling_weak"
    rows = list(csv.DictReader((folder / "results.csv").open()))
    assert [(row["point"], row["measured_steps"]) for row in rows] == [("gpus_1", "1"), ("gpus_2", "1")]
    assert float(rows[0]["efficiency_frac"]) == 1.0 and float(rows[1]["efficiency_frac"]) > 0
    assert float(rows[1]["tokens_per_step"]) > 1.5 * float(rows[0]["tokens_per_step"])
    assert float(rows[0]["peak_memory_gib"]) > 0.1 and float(rows[0]["cost_usd"]) > 0
    for name in ("results.json", "results.html", "report.html", "efficiency.png", "phases.png"):
        assert (folder / name).stat().st_size > 1000
    attempts = sorted(folder.glob("*/2*"))
    assert main(command) == 0
    assert sorted(folder.glob("*/2*")) == attempts, "finished points ran again"
    assert "gpus_1: finished earlier" in capfd.readouterr().out

    assert main(["probe", "num_train_steps=3", "price_per_hour=2", "trainer.n_gpus_per_node=1", *shared]) == 0
    output = capfd.readouterr().out
    assert "memory_summary" in output and "step_time" in output and "whole run: 60 steps" in output
    (probe,) = (tmp_path / "megatron_rl" / "tiny_cpu_probe").glob("2*/probe.json")
    content = json.loads(probe.read_text())
    assert [judgement["question"] for judgement in content["verdict"]] == ["fits", "learns", "fast enough"]
    (record,) = json.loads((tmp_path / "measurements.json").read_text())
    assert (record["gpu"], record["model"], record["use"]) == ("CPU", "tiny", "context")
    assert record["phase_seconds"].keys() >= {"rollout", "update_actor", "sync"}
