"""Saving and resuming: bit-exact, on other layouts, and never from a checkpoint that is not whole."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from megatron_rl.config.training import OptimConfig, TrainedRoleConfig
from megatron_rl.parallel.layout import ParallelLayout
from tests.support.distributed import run_distributed, start_rank
from tests.support.tiny_models import ragged_batch, tiny_model
from tests.training.role_runs import (
    Answer,
    PolicyLossForTest,
    RoleRun,
    ValueLossForTest,
    assert_close,
    fill_value_head,
    gather_tensors,
)


def _config(**optim: object) -> TrainedRoleConfig:
    settings = OptimConfig(lr=0.01, eps=0.1, lr_warmup_steps=2, lr_decay_style="cosine", **optim)  # type: ignore[arg-type]
    return TrainedRoleConfig(optim=settings, ppo_max_token_len_per_gpu=64)


def _build(run: RoleRun, seed: int):  # type: ignore[no-untyped-def]
    from megatron_rl.parallel.groups import GroupRegistry
    from megatron_rl.runtime.platform import Platform
    from megatron_rl.training.megatron_role import MegatronRole

    role = MegatronRole.build(
        run.model, run.config, run.layout, GroupRegistry(), Platform.detect(), head=run.head, total_optimizer_steps=8, seed=seed
    )
    fill_value_head(role)
    return role


def _moments(role) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
    from megatron_rl.training.role_checkpoint import _torch_adams

    states = [state for adam in _torch_adams(role.optimizer.megatron) for state in adam.state.values()]
    return {f"{i}.{key}": value.numpy().copy() for i, state in enumerate(states) for key, value in state.items()}


def _train(role, steps: int) -> list[float]:  # type: ignore[no-untyped-def]
    loss = PolicyLossForTest() if role.chunks[0].head == "lm" else ValueLossForTest()
    return [role.update(ragged_batch(), loss)["lr"].value for _ in range(steps)]


def _weights(role) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
    return {name: p.detach().numpy().copy() for name, p in role.parameters.items()}


def _resume_and_straight(runs: dict[str, RoleRun], root: Path) -> Answer:
    from megatron_rl.training.checkpoint import CheckpointStore

    straight = {name: _build(run, seed=3) for name, run in runs.items()}
    rates = {name: _train(role, 2) for name, role in straight.items()}
    store = CheckpointStore(root)
    store.save(2, straight, {"position": 17})
    for name, role in straight.items():
        rates[name] += _train(role, 2)
    resumed = {name: _build(run, seed=99) for name, run in runs.items()}
    folder = store.newest_complete()
    assert folder is not None
    extra = store.load(folder, resumed)
    again = {name: _train(role, 2) for name, role in resumed.items()}
    return {
        "extra": extra,
        "rates": {name: (rates[name][2:], again[name]) for name in runs},
        "pairs": {
            name: (_weights(straight[name]), _weights(resumed[name]), _moments(straight[name]), _moments(resumed[name]))
            for name in runs
        },
    }


@pytest.mark.parametrize(
    ("world", "actor", "critic"),
    [
        (2, {"tensor": 2, "sequence_parallel": True}, {"pipeline": 2}),
        (2, {"data": 2}, {"pipeline": 2, "virtual_pipeline": 2}),
    ],
    ids=["tp2_sp+pp2", "dp2+pp2_vpp2"],
)
def test_resume_matches_uninterrupted_bit_for_bit(world: int, actor: dict, critic: dict, tmp_path: Path) -> None:  # type: ignore[type-arg]
    runs = {
        "actor": RoleRun(layout=ParallelLayout(**actor), config=_config()),
        # One of the two without the distributed optimizer, whose state is saved in another way.
        "critic": RoleRun(
            layout=ParallelLayout(**critic),
            head="value",
            config=_config(use_distributed_optimizer="virtual_pipeline" in critic),
        ),
    }
    for answer in run_distributed(world, _resume_and_straight, runs, tmp_path):
        assert answer["extra"] == {"position": 17}
        for name in runs:
            expected_rates, rates = answer["rates"][name]
            assert rates == expected_rates
            weights, weights_again, moments, moments_again = answer["pairs"][name]
            for pair in ((weights, weights_again), (moments, moments_again)):
                assert pair[0].keys() == pair[1].keys()
                for key in pair[0]:
                    np.testing.assert_array_equal(pair[0][key], pair[1][key], err_msg=f"{name} {key}")


def _save_after(run: RoleRun, root: Path, steps: int) -> Answer:
    from megatron_rl.training.checkpoint import CheckpointStore

    role = _build(run, seed=3)
    _train(role, steps)
    CheckpointStore(root).save(steps, {"actor": role}, {})
    weights = _weights(role)
    _train(role, 1)
    return {"saved": weights, "next": _weights(role)}


def _load_then_step(runs: list[RoleRun], root: Path) -> list[Answer]:
    from megatron_rl.training.checkpoint import CheckpointStore

    answers: list[Answer] = []
    for run in runs:
        role = _build(run, seed=99)
        store = CheckpointStore(root)
        folder = store.newest_complete()
        assert folder is not None
        store.load(folder, {"actor": role})
        weights = _weights(role)
        _train(role, 1)
        role.check_replicas()
        answers.append({"saved": weights, "next": _weights(role)})
    return answers


_SAVERS = {
    "tied": ParallelLayout(tensor=2),
    "untied_data_fastest": ParallelLayout(tensor=2, data=2, order=(("data", 2), ("tensor", 2))),
}


@pytest.mark.parametrize("saved_by", _SAVERS)
def test_load_invariant_to_layout_of_the_save(saved_by: str, tmp_path: Path) -> None:
    saver = RoleRun(layout=_SAVERS[saved_by], model=tiny_model(tied=saved_by == "tied"), config=_config())
    saved = run_distributed(saver.layout.world_size, _save_after, saver, tmp_path, 2)
    expected = {what: gather_tensors(saved, saver, what) for what in ("saved", "next")}
    readers = [
        RoleRun(layout=layout, model=saver.model, config=saver.config)
        for layout in (
            ParallelLayout(pipeline=2),
            ParallelLayout(pipeline=2, virtual_pipeline=2),
            ParallelLayout(data=2),
            ParallelLayout(tensor=2, sequence_parallel=True),
        )
    ]
    answers = run_distributed(2, _load_then_step, readers, tmp_path)
    for index, reader in enumerate(readers):
        mine = [answer[index] for answer in answers]
        for name, tensor in gather_tensors(mine, reader, "saved").items():
            source = name if name in expected["saved"] else "embedding.word_embeddings.weight"
            np.testing.assert_array_equal(tensor, expected["saved"][source], err_msg=name)
        for name, tensor in gather_tensors(mine, reader, "next").items():
            source = name if name in expected["next"] else "embedding.word_embeddings.weight"
            assert_close(tensor, expected["next"][source], name)


def _save_two(root: Path) -> Answer:
    from megatron_rl.training.checkpoint import CheckpointStore

    role = _build(RoleRun(config=_config()), seed=3)
    store = CheckpointStore(root)
    store.save(1, {"actor": role}, {"step": 1})
    store.save(2, {"actor": role}, {"step": 2})
    return {}


def _resume(root: Path) -> Answer:
    from megatron_rl.training.checkpoint import CheckpointStore

    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("megatron_rl").addHandler(handler)
    folder = CheckpointStore(root).newest_complete()
    return {"folder": folder, "warnings": records}


def _shards(folder: Path) -> list[Path]:
    return sorted((folder / "actor").glob("*.distcp"))


def _truncate(root: Path) -> None:
    shard = _shards(root / "step_00000002")[-1]
    shard.write_bytes(shard.read_bytes()[:-1])


def _flip(root: Path) -> None:
    shard = _shards(root / "step_00000002")[0]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


def _delete_shard(root: Path) -> None:
    _shards(root / "step_00000002")[0].unlink()


def _delete_manifest(root: Path) -> None:
    (root / "step_00000002" / "manifest.json").unlink()


def _cut_manifest(root: Path) -> None:
    path = root / "step_00000002" / "manifest.json"
    path.write_text(path.read_text()[:100])


def _never_published(root: Path) -> None:
    (root / "step_00000002").rename(root / ".step_00000002.partial")


@pytest.fixture(scope="module")
def two_saves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    run_distributed(1, _save_two, root)
    return root


@pytest.mark.parametrize(
    "damage", [_truncate, _flip, _delete_shard, _delete_manifest, _cut_manifest, _never_published], ids=lambda f: f.__name__[1:]
)
def test_newest_complete_rejects_damaged(damage, two_saves: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    root = tmp_path / "run"
    shutil.copytree(two_saves, root)
    assert (root / "latest").read_text().strip() == "step_00000002"
    damage(root)
    (answer,) = run_distributed(1, _resume, root)
    assert answer["folder"] == root / "step_00000001"
    assert any("step_00000002" in warning for warning in answer["warnings"])


def _load_messages(root: Path) -> list[str]:
    from megatron_rl.training.checkpoint import CheckpointStore

    actor, critic = _build(RoleRun(config=_config()), 0), _build(RoleRun(head="value", config=_config()), 0)
    other = _build(RoleRun(model=tiny_model(num_layers=2), config=_config()), 0)
    store = CheckpointStore(root)
    folder = root / "step_00000002"
    messages = []
    plain = _build(RoleRun(config=_config(use_distributed_optimizer=False)), 0)
    for roles in ({"actor": actor, "critic": critic}, {"actor": critic}, {"actor": other}, {"actor": plain}):
        with pytest.raises(ValueError) as error:
            store.load(folder, roles)
        messages.append(str(error.value))
    # The layer spec is no part of a model's shape.
    spec = _build(RoleRun(model=tiny_model().model_copy(update={"transformer_impl": "local"}), config=_config()), 0)
    store.load(folder, {"actor": spec, "critic": critic}, allow_missing=("critic/model", "critic/optimizer"))
    return messages


def test_load_rejects_missing_components_and_other_models(two_saves: Path) -> None:
    ((missing, other_head, other_shape, other_format),) = run_distributed(1, _load_messages, two_saves)
    assert "critic/model" in missing and "critic/optimizer" in missing
    assert "head" in other_head
    assert "num_layers" in other_shape
    assert "actor.optim.use_distributed_optimizer=true" in other_format


def _keep_two(root: Path) -> list[str]:
    from megatron_rl.training.checkpoint import CheckpointStore

    role = _build(RoleRun(config=_config()), seed=3)
    store = CheckpointStore(root, keep=2)
    for step in (1, 2, 3, 3):
        store.save(step, {"actor": role}, {})
    return sorted(path.name for path in root.iterdir())


def test_save_keeps_the_newest(tmp_path: Path) -> None:
    (names,) = run_distributed(1, _keep_two, tmp_path)
    assert names == ["latest", "step_00000002", "step_00000003"]


def _save_until_killed(root: Path) -> None:
    from megatron_rl.training.checkpoint import CheckpointStore

    role = _build(RoleRun(config=_config()), seed=3)
    store = CheckpointStore(root)
    for step in range(1, 1000):
        store.save(step, {"actor": role}, {"step": step})


def _resume_extra(root: Path) -> dict[str, int]:
    from megatron_rl.training.checkpoint import CheckpointStore

    store = CheckpointStore(root)
    folder = store.newest_complete()
    assert folder is not None
    return store.load(folder, {"actor": _build(RoleRun(config=_config()), seed=3)})  # type: ignore[return-value]


@pytest.mark.parametrize("delay_ms", [3, 40, 90, 160, 250])
def test_resume_survives_a_kill_in_the_middle_of_a_save(delay_ms: int, tmp_path: Path) -> None:
    victim = start_rank(_save_until_killed, tmp_path)
    deadline = time.monotonic() + 200
    while not (tmp_path / "latest").exists():
        assert victim.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(delay_ms / 1000)
    victim.kill()
    victim.join()
    published = {int(path.name.removeprefix("step_")) for path in tmp_path.glob("step_*")}
    (extra,) = run_distributed(1, _resume_extra, tmp_path)
    assert extra["step"] == max(published)
