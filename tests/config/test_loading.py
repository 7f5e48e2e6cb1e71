"""Overrides to configuration: what composes, and what every kind of mistake is answered with."""

from __future__ import annotations

import pytest

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import compose, group_choices
from megatron_rl.config.run import RunConfig


def problems_of(*overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    return caught.value.problems


@pytest.mark.parametrize("group,choice", [(group, choice) for group, names in group_choices().items() for choice in names])
def test_compose_accepts_every_shipped_file(group: str, choice: str) -> None:
    assert isinstance(compose([f"{group}={choice}"]), RunConfig)


@pytest.mark.parametrize("lr", ["1e-6", "1.0e-6", "0.000001"])
def test_compose_reads_every_spelling_of_a_number(lr: str) -> None:
    assert compose([f"actor.optim.lr={lr}"]).actor.optim.lr == 1e-6


def test_compose_lets_the_command_line_win_over_an_experiment() -> None:
    config = compose(["algorithm=ppo", "experiment=tiny_cpu", "rollout.n=4"])
    assert (config.algorithm.adv_estimator, config.critic.enable, config.rollout.n) == ("gae", True, 4)
    assert config.data.train_batch_size == 32


def test_compose_sets_keys_below_a_section_that_is_null_by_default() -> None:
    config = compose(["data.reasoning_gym.task=chain_sum", "data.reasoning_gym.task_kwargs.max_terms=3"])
    assert config.data.reasoning_gym is not None
    assert config.data.reasoning_gym.task_kwargs == {"max_terms": 3}


def test_compose_is_independent_of_the_working_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert compose(["experiment=tiny_cpu"]).model.name == "tiny"


def test_compose_knows_a_folder_of_own_experiments(tmp_path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nrollout:\n  n: 3\n")
    assert compose([f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"]).rollout.n == 3


@pytest.mark.parametrize(
    "wrong,meant",
    [
        ("actor.lrr=1", "actor.optim.lr"),
        ("+actor.lrr=1", "actor.optim.lr"),
        ("++actor.lrr=1", "actor.optim.lr"),
        ("actor.optim={lrr:1}", "actor.optim.lr"),
        ("rollout.temprature=1", "rollout.temperature"),
        ("actor.parallel.tp=2", "actor.parallel.tensor"),
        ("critic.tensor_model_parallel_size=2", "critic.parallel.tensor"),
        ("actor_rollout_ref.rollout.n=8", "rollout.n"),
        ("trainer.total_training_step=3", "trainer.total_training_steps"),
    ],
)
def test_compose_rejects_unknown_key_naming_the_nearest(wrong: str, meant: str) -> None:
    (problem,) = problems_of(wrong)
    assert "no such key" in problem
    assert f"did you mean {meant}?" in problem


@pytest.mark.parametrize(
    "override,key,got,expected",
    [
        ("rollout.n=true", "rollout.n", "true (true/false)", "integer > 0"),
        ("rollout.n=8.0", "rollout.n", "8.0 (number)", "integer > 0"),
        ('actor.optim.lr="1e-6"', "actor.optim.lr", '"1e-6" (text)', "number >= 0"),
        ("actor.parallel.tensor=-1", "actor.parallel.tensor", "-1 (integer)", "integer > 0"),
        ("actor.parallel.tensor=null", "actor.parallel.tensor", "null", "integer > 0"),
        ("actor.parallel.tensor=two", "actor.parallel.tensor", '"two" (text)', "integer > 0"),
        ("actor.shuffle=1", "actor.shuffle", "1 (integer)", "true or false"),
        ("algorithm.adv_estimator=gaee", "algorithm.adv_estimator", '"gaee" (text)', "one of: gae, grpo"),
        ("rollout.top_p=1.5", "rollout.top_p", "1.5 (number)", "number > 0 <= 1"),
        ("trainer.experiment_name=12", "trainer.experiment_name", "12 (integer)", "text"),
        ("data.train_files=/a.jsonl", "data.train_files", '"/a.jsonl" (text)', "list of text"),
        ("actor.optim.betas=[0.9]", "actor.optim.betas", "[0.9] (list)", "2 numbers"),
    ],
    ids=lambda value: value if "=" in value else "",
)
def test_compose_rejects_wrong_type_naming_key_got_and_expected(override, key, got, expected) -> None:
    (problem,) = problems_of(override)
    assert problem.startswith(f"{key}: got {got}, expected {expected}")


@pytest.mark.parametrize(
    "override,quoted",
    [
        ("model.path=/a/epoch=9-step=1.ckpt", "'model.path=\"/a/epoch=9-step=1.ckpt\"'"),
        ("model.path=/modèles/é", "'model.path=\"/modèles/é\"'"),
        ("trainer.experiment_name=a,b", "'trainer.experiment_name=\"a,b\"'"),
    ],
    ids=["equals", "non_ascii", "comma"],
)
def test_compose_rejects_unquoted_value_showing_one_that_works(override: str, quoted: str) -> None:
    (problem,) = problems_of(override)
    assert quoted in problem
    compose([quoted.strip("'")])


def test_compose_rejects_unquoted_list_items() -> None:
    (problem,) = problems_of("data.train_files=[/données/a.jsonl]")
    assert '["first","second"]' in problem


def test_compose_rejects_unknown_choice_listing_the_choices() -> None:
    (problem,) = problems_of("algorithm=grppo")
    assert "did you mean grpo?" in problem
    assert "dapo, dr_grpo, grpo, ppo, reinforce_plus_plus, rloo" in problem


@pytest.mark.parametrize(
    "override,said",
    [
        ("foo", "an override is key=value"),
        ("--multirun", "no such option"),
        ("~critic", "a group cannot be removed"),
        ("trainer.seed=${nowhere}", "trainer.seed: Interpolation key 'nowhere' not found"),
        ("data.reasoning_gym.train_size=3", "data.reasoning_gym.task: required but not set"),
    ],
    ids=["no_value", "option", "group_removed", "interpolation", "required"],
)
def test_compose_rejects_other_mistakes(override: str, said: str) -> None:
    assert said in problems_of(override)[0]


def test_compose_rejects_several_mistakes_at_once() -> None:
    assert len(problems_of("actor.lrr=1", "model=nope", "rollout.m=1")) == 3
    assert len(problems_of("rollout.n=true", "actor.parallel.tensor=-1")) == 2
