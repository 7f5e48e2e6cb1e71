from __future__ import annotations

import pytest

from launchers.environment import ATTEMPT, num_visible_gpus, outside_launch, worker_environment

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}


def test_outside_launch_is_none_without_rank() -> None:
    assert outside_launch({"WORLD_SIZE": "2"}) is None


def test_outside_launch_reads_rank_and_world() -> None:
    launch = outside_launch(TORCHRUN)
    assert launch is not None
    assert (launch.rank, launch.world_size) == (1, 2)


@pytest.mark.parametrize("environ", [{"RANK": "x"}, {"RANK": "0", "WORLD_SIZE": "two"}], ids=["rank", "world"])
def test_outside_launch_rejects_what_is_no_number(environ: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"=(x|two) in the environment: must be a whole number"):
        outside_launch(environ)


def test_outside_launch_attempt_differs_between_starts_and_not_between_ranks() -> None:
    slurm = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    ranks = [outside_launch(slurm | {"RANK": str(rank)}) for rank in range(2)]
    requeued = outside_launch(slurm | {"RANK": "0", "SLURM_RESTART_COUNT": "1"})
    next_step = outside_launch(slurm | {"RANK": "0", "SLURM_STEP_ID": "1"})
    attempts = [launch.attempt for launch in (*ranks, requeued, next_step) if launch]
    assert attempts[0] == attempts[1]
    assert len(set(attempts)) == 3


def test_outside_launch_takes_the_attempt_given_by_the_user() -> None:
    launch = outside_launch({"RANK": "0", "WORLD_SIZE": "2", "MEGATRON_RL_ATTEMPT": "mine"})
    assert launch is not None
    assert launch.attempt == "mine"


def test_outside_launch_rejects_ranks_that_cannot_recognise_each_other() -> None:
    with pytest.raises(ValueError, match="--rdzv-id"):
        outside_launch({"RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"})


@pytest.mark.parametrize(
    "environ,count",
    [({}, 2), ({"CUDA_VISIBLE_DEVICES": "1"}, 1), ({"CUDA_VISIBLE_DEVICES": ""}, 0), ({"CUDA_VISIBLE_DEVICES": "-1"}, 0)],
    ids=["all", "one", "none", "minus_one"],
)
def test_num_visible_gpus_matches_hand_computed(environ, count, tmp_path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert num_visible_gpus(environ, tmp_path) == count


def test_worker_environment_keeps_what_the_user_set() -> None:
    base = {"OMP_NUM_THREADS": "3", "HF_HUB_OFFLINE": "0", "HOME": "/h"}
    made = worker_environment(base, attempt="a", on_gpu=False, ranks_per_node=2, kv_cache_gib=None)
    assert base.items() <= made.items()
    assert made["CUDA_VISIBLE_DEVICES"] == ""


def test_worker_environment_names_every_start_differently() -> None:
    made = [worker_environment({}, attempt=name, on_gpu=False, ranks_per_node=2, kv_cache_gib=None) for name in "ab"]
    assert made[0][ATTEMPT] != made[1][ATTEMPT]


@pytest.mark.parametrize(
    ("base", "made"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, "max_split_size_mb:64"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, None),
    ],
    ids=["nothing", "old-name", "new-name"],
)
def test_worker_environment_sets_allocator_only_where_the_user_did_not(base, made) -> None:
    environ = worker_environment(base, attempt="a", on_gpu=True, ranks_per_node=1, kv_cache_gib=None)
    assert environ.get("PYTORCH_CUDA_ALLOC_CONF") == made
