import random

import pytest

from megatron_rl.data.stream import PromptStream, validation_batches
from megatron_rl.types.prompts import Prompt


def _prompts(num: int, answer: str = "") -> list[Prompt]:
    return [Prompt(uid=f"p:{i}", token_ids=(i,), text=str(i), row={"answer": answer or str(i)}) for i in range(num)]


def _stream(num: int = 10, batch_size: int = 4, seed: int = 7, shuffle: bool = True) -> PromptStream:
    return PromptStream(_prompts(num), batch_size, seed=seed, shuffle=shuffle)


def _take(stream: PromptStream, num_steps: int) -> list[tuple[int, tuple[str, ...]]]:
    batches = [stream.next_batch() for _ in range(num_steps)]
    return [(batch.epoch, tuple(prompt.uid for prompt in batch.prompts)) for batch in batches]


@pytest.mark.parametrize("shuffle", [True, False], ids=["shuffled", "in_order"])
@pytest.mark.parametrize("num", [8, 10], ids=["exact", "remainder"])
@pytest.mark.parametrize("steps_before", range(6))
def test_load_state_dict_continues_exactly(steps_before: int, num: int, shuffle: bool) -> None:
    whole = _take(_stream(num, shuffle=shuffle), 6)
    first = _stream(num, shuffle=shuffle)
    head = _take(first, steps_before)
    second = _stream(num, shuffle=shuffle)
    _take(second, 1)  # wherever it stood
    second.load_state_dict(first.state_dict())
    assert head + _take(second, 6 - steps_before) == whole


def test_next_batch_drops_the_documented_remainder() -> None:
    stream = _stream()
    assert stream.batches_per_epoch == 2
    assert stream.summary == "10 prompts in batches of 4: 2 batches per epoch, 2 rows dropped per epoch"
    steps = _take(stream, 4)
    assert [epoch for epoch, _ in steps] == [0, 0, 1, 1]
    for pair in (steps[:2], steps[2:]):
        assert len({uid for _, uids in pair for uid in uids}) == 8


def test_next_batch_keeps_source_order_without_shuffle() -> None:
    assert _take(_stream(shuffle=False), 3) == [
        (0, ("p:0", "p:1", "p:2", "p:3")),
        (0, ("p:4", "p:5", "p:6", "p:7")),
        (1, ("p:0", "p:1", "p:2", "p:3")),
    ]


def test_next_batch_reorders_each_epoch_and_seed() -> None:
    orders = [uids for _, uids in _take(_stream(8, 8), 3)] + [uids for _, uids in _take(_stream(8, 8, seed=8), 3)]
    assert len(set(orders)) == 6
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


def test_next_batch_invariant_to_global_randomness() -> None:
    random.seed(1)
    state = random.getstate()
    first = _take(_stream(), 4)
    assert random.getstate() == state
    random.seed(2)
    assert _take(_stream(), 4) == first


def test_prompt_stream_rejects_less_than_one_batch() -> None:
    with pytest.raises(ValueError, match=r"data\.train_batch_size=4: there are only 3 rows.*at most 3"):
        _stream(3, 4)


def test_prompt_stream_rejects_repeated_uids() -> None:
    with pytest.raises(ValueError, match="uids are not unique"):
        PromptStream(_prompts(2) * 2, 2, seed=0, shuffle=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (_stream(11), "the data changed since the checkpoint .num_rows was 10, is now 11"),
        (_stream(batch_size=5), "the batch size changed"),
        (_stream(seed=8), r"data\.seed changed"),
        (_stream(shuffle=False), r"data\.shuffle changed"),
        (PromptStream(_prompts(10, "x"), 4, seed=7, shuffle=True), "the prompts changed since the checkpoint"),
    ],
    ids=["rows", "batch_size", "seed", "shuffle", "content"],
)
def test_load_state_dict_rejects_changed_data(changed: PromptStream, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        changed.load_state_dict(_stream().state_dict())


def test_fingerprint_does_not_depend_on_the_order_inside_sets() -> None:
    rows = [{"answer": "", "tags": set(tags)} for tags in ("abcdefgh", "hgfedcba")]
    streams = [PromptStream([Prompt(uid="p", token_ids=(1,), text="", row=r)], 1, seed=0, shuffle=False) for r in rows]
    assert streams[0].fingerprint == streams[1].fingerprint


def test_validation_batches_drop_nothing() -> None:
    sizes = [len(batch.prompts) for batch in validation_batches(_prompts(10), 4)]
    assert sizes == [4, 4, 2]
    assert [len(batch.prompts) for batch in validation_batches(_prompts(10), None)] == [10]
    assert validation_batches([], 4) == []
