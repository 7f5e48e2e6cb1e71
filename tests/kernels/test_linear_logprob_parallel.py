"""Both LM-head ops over a vocabulary cut unevenly over two ranks, against one rank."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kernels.closeness import assert_close
from tests.kernels.test_linear_logprob import SINGLE, TEMPERATURE, Case, make_case, reference

POSITIONS, VOCAB, HIDDEN = 6, 60, 16
SHARDS = (slice(0, 40), slice(40, 60))


def _answers(rank: int, case: Case) -> list[Any]:
    """This rank's value and gradients under both ops."""
    from kernels.linear_logprob.loss import differentiated, linear_token_loss_triton
    from kernels.linear_logprob.recompute import linear_logprob_triton

    shard, found = SHARDS[rank], []
    arguments = {"temperature": TEMPERATURE, "with_entropy": True, "group": dist.group.WORLD}
    for fused in (False, True):
        hidden = case.hidden.detach().requires_grad_()
        weight = case.weight.detach()[shard].clone().requires_grad_()
        targets = case.targets - shard.start
        if fused:
            loss = linear_token_loss_triton(hidden, weight, targets, differentiated(case.loss), **arguments, rows_per_rank=40)
        else:
            loss = case.loss(slice(None), *linear_logprob_triton(hidden, weight, targets, **arguments))
        loss.backward()
        found.append([x.detach().numpy() for x in (loss, hidden.grad, weight.grad)])
    return found


def _rank(rank: int, store: str, case: Case, answers: Connection) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=len(SHARDS))
    answers.send(_answers(rank, case))
    dist.destroy_process_group()


def test_linear_logprob_invariant_to_tp(device: torch.device, tmp_path: Path) -> None:
    if device.type == "cuda":
        pytest.skip("ranks of a GPU machine are compared in a job of their own")
    case = make_case(POSITIONS, VOCAB, HIDDEN, SINGLE, device)
    exact, _, _, wanted = reference(case, with_entropy=True)
    case = Case(case.hidden.detach(), case.weight.detach(), case.targets, case.upstream)
    # Forked, not from the fork server of tests.support: that one imports Triton without the interpreter.
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in SHARDS]
    ranks = [
        context.Process(target=_rank, args=(rank, str(tmp_path / "store"), case, send)) for rank, (_, send) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    found = []
    for (receive, _), process in zip(pipes, ranks, strict=True):
        assert receive.poll(120), f"{process.name} gave no answer"
        found.append(receive.recv())
    for process in ranks:
        process.join(30)
    for op in range(2):
        losses, hidden_grads, weight_grads = zip(*(answer[op] for answer in found), strict=True)
        assert losses[0] == losses[1], "ranks must agree to the last bit"
        assert_close(torch.tensor(losses[0]), wanted, SINGLE)
        assert_close(torch.tensor(sum(hidden_grads)), exact.hidden.grad, SINGLE)
        assert_close(torch.cat([torch.tensor(grad) for grad in weight_grads]), exact.weight.grad, SINGLE)
