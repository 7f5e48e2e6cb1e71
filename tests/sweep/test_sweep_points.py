"""Names and overrides of points, nothing composed."""

from __future__ import annotations

from typing import Any

import pytest

from launchers.sweep_points import points_of, scaling_defaults, short_keys, split_values, sweep_name
from launchers.sweep_spec import SweepSpec, spec_of
from megatron_rl.config.errors import ConfigError

BATCHES = {"data.train_batch_size": 32, "actor.ppo_mini_batch_size": 8, "critic.ppo_mini_batch_size": None}


def scaling(**content: Any) -> SweepSpec:
    return spec_of({"kind": "scaling", "gpus": [1, 2], **content})


def grid(**parameters: list[Any]) -> SweepSpec:
    return spec_of({"kind": "grid", "parameters": {key.replace("__", "."): values for key, values in parameters.items()}})


def own_overrides(spec: SweepSpec, gpus_per_node: int | None = None) -> dict[str, set[str]]:
    """Point -> overrides that not every point has."""
    points = points_of(spec, BATCHES, gpus_per_node)
    shared = set.intersection(*(set(point.overrides) for point in points))
    return {point.name: {o for o in point.overrides if o not in shared and "name" not in o} for point in points}


def test_points_of_strong_scaling_matches_hand_computed() -> None:
    assert own_overrides(scaling()) == {"gpus_1": {"trainer.n_gpus_per_node=1"}, "gpus_2": {"trainer.n_gpus_per_node=2"}}


def test_points_of_weak_scaling_grows_batch_and_mini_batch_from_the_smallest_point() -> None:
    assert own_overrides(scaling(gpus=[4, 2], mode="weak")) == {
        "gpus_2": {"trainer.n_gpus_per_node=2", "data.train_batch_size=32", "actor.ppo_mini_batch_size=8"},
        "gpus_4": {"trainer.n_gpus_per_node=4", "data.train_batch_size=64", "actor.ppo_mini_batch_size=16"},
    }


def test_points_of_scaling_spreads_over_nodes() -> None:
    assert own_overrides(scaling(gpus=[4, 8, 16]), gpus_per_node=8) == {
        "gpus_4": {"trainer.nnodes=1", "trainer.n_gpus_per_node=4"},
        "gpus_8": {"trainer.nnodes=1", "trainer.n_gpus_per_node=8"},
        "gpus_16": {"trainer.nnodes=2", "trainer.n_gpus_per_node=8"},
    }


def test_points_of_rejects_every_impossible_scaling_point_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        points_of(scaling(gpus=[3, 4, 12], mode="weak"), BATCHES, 8)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["gpus=4", "gpus=4", "gpus=12"]


def test_scaling_defaults_leave_typed_keys_alone() -> None:
    assert "trainer.total_training_steps=10" in scaling_defaults(["experiment=tiny_cpu"])
    assert not [o for o in scaling_defaults(["++trainer.total_training_steps=3"]) if "total_training_steps" in o]


def test_points_of_grid_takes_every_combination_in_order() -> None:
    points = points_of(grid(rollout__n=["4", "8"], actor__optim__lr=["1e-6", "2e-6"]), {}, None)
    assert [point.name for point in points] == ["n_4-lr_1e-6", "n_4-lr_2e-6", "n_8-lr_1e-6", "n_8-lr_2e-6"]
    assert points[1].settings == {"rollout.n": "4", "actor.optim.lr": "2e-6"}
    assert points[1].overrides[-3:] == ("rollout.n=4", "actor.optim.lr=2e-6", "trainer.experiment_name=n_4-lr_2e-6")
    assert points[1].overrides[0] == "trainer.project_name=grid_n_lr"


def test_points_of_accepts_rollout_batch_size() -> None:
    spec = spec_of({"kind": "grid", "parameters": {"rollout.batch_size": ["32", "64"]}, "overrides": ["rollout.batch_size=8"]})
    (first, second) = points_of(spec, {}, None)
    assert "data.train_batch_size=32" in first.overrides and "data.train_batch_size=64" in second.overrides
    assert not [override for override in first.overrides if override.startswith("rollout.batch_size")]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["/data/a b", "/data/a=b"], ["path_data_a_b_no1", "path_data_a_b_no2"]),
        (["../x", "é"], ["path_.._x", "path_empty"]),
        ([True, None], ["path_true", "path_null"]),
        ([[0.9, 0.99], 1e-06], ["path_0.9_0.99", "path_1e-06"]),
        (["x" * 90 + "1", "x" * 90 + "2"], [f"path_{'x' * 39}1", f"path_{'x' * 39}2"]),
    ],
    ids=["equal_when_cleaned", "odd_characters", "yaml_words", "list_and_number", "long"],
)
def test_point_names_are_folder_names(values: list[Any], names: list[str]) -> None:
    assert [point.name for point in points_of(grid(model__path=values), {}, None)] == names


def test_short_keys_tell_equal_endings_apart() -> None:
    assert short_keys(["actor.optim.lr", "critic.optim.lr", "rollout.n"]) == {
        "actor.optim.lr": "actor_optim_lr",
        "critic.optim.lr": "critic_optim_lr",
        "rollout.n": "n",
    }


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4,8", ["4", "8"]),
        ("[0.9,0.99],[0.9,0.999]", ["[0.9,0.99]", "[0.9,0.999]"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("{a:1,b:2}", ["{a:1,b:2}"]),
    ],
    ids=["numbers", "lists", "quotes", "mapping"],
)
def test_split_values_matches_hand_computed(text: str, values: list[str]) -> None:
    assert split_values(text) == values


def test_sweep_name_says_what_varies() -> None:
    assert sweep_name(scaling(mode="weak")) == "scaling_weak"
    assert sweep_name(scaling(name="mine")) == "mine"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"kind": "scaling"}, "gpus: required"),
        ({"kind": "grid"}, "nothing to vary"),
        ({"kind": "scaling", "gpus": [2, 2]}, "2 is given twice"),
        ({"kind": "grid", "parameters": {"rollout.n": []}}, "rollout.n: no values"),
        ({"kind": "scaling", "gpus": [0]}, "gpus: item 0 is 0"),
        ({"kind": "scaling", "gpus": [1], "mode": "week"}, "one of: strong, weak"),
        ({"kind": "scaling", "gpus": [1], "warmup": 2}, "did you mean warmup_steps"),
        ({"kind": "scaling", "gpus": [1], "name": "a/b"}, "name=a/b"),
        ({"kind": "scaling", "gpus": [1], "estimate": True}, "needs gpu="),
        ({"kind": "scaling", "gpus": [1], "overrides": ["trainer.nnodes=2"]}, "use gpus="),
        ({"kind": "grid", "parameters": {"trainer.experiment_name": ["a"]}}, "use name="),
        ({"kind": "grid", "parameters": {"trainer.output_dir": ["a", "b"]}}, "the points of a sweep share it"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_spec_of_rejects_impossible_sweeps(content: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        spec_of(content)
