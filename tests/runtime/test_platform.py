"""Detection on this host, a job of one process without environment, and the CPU answers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from megatron_rl.runtime.cpu import install_cpu_runtime
from megatron_rl.runtime.platform import Platform, _peak_flops, init_distributed
from tests.support.distributed import run_alone


def _join_alone() -> None:
    platform = Platform.detect()
    assert platform.device.type == "cpu" and platform.dtype == torch.float32
    init_distributed(platform, 60, {})
    init_distributed(platform, 60, {})
    assert dist.get_world_size() == 1
    x = torch.ones(2)
    dist.all_reduce(x)
    assert install_cpu_runtime() and install_cpu_runtime()
    assert torch.zeros(1, device="cuda").device.type == "cpu"
    assert torch.ones(1).cuda().device.type == "cpu"
    assert torch.ones(1).to("cuda:0").device.type == "cpu"
    torch.manual_seed(1)
    state = torch.cuda.get_rng_state()
    first = torch.rand(2)
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(2))
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.Stream())


on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="about hosts without a GPU")


@on_cpu
def test_init_distributed_without_environment_makes_a_job_of_one() -> None:
    # Its own process: the answers stay installed, and joining twice must be harmless.
    run_alone(_join_alone)


@on_cpu
def test_platform_rejects_cuda_where_there_is_none() -> None:
    with pytest.raises(ValueError, match=r"trainer\.device=cuda"):
        Platform.detect("cuda")


def test_peak_flops_matches_hand_computed() -> None:
    assert _peak_flops("NVIDIA H200", torch.bfloat16) == 989e12
    assert _peak_flops("Some other card", torch.bfloat16) is None
