"""Which way weights take between two ranks, decided from what the ranks say about themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_rl.resharding.transports.selection import Place, choose_wire, ipc_pairs

A = Place(host="one", gpu="GPU-a", wires=("nccl", "gloo"), visible_gpus=("GPU-a", "GPU-b"))
B = replace(A, gpu="GPU-b")
FAR = replace(A, host="two", gpu="GPU-c", visible_gpus=("GPU-c",))
ON_CPU = Place(host="one", gpu=None, wires=("gloo",))
EXPANDABLE = replace(A, ipc_obstacle="the weights are in expandable segments")


@pytest.mark.parametrize(
    ("asked", "places", "wire"),
    [
        ("auto", [A, B], "nccl"),
        ("ipc", [A, FAR], "nccl"),
        ("gloo", [A, B], "gloo"),
        ("auto", [ON_CPU, ON_CPU], "gloo"),
        ("auto", [A, ON_CPU], "gloo"),
        ("auto", [replace(A, wires=("gloo",))] * 2, "gloo"),
        ("auto", [replace(A, wires=("nccl",))] * 2, "nccl"),
    ],
)
def test_choose_wire_takes_what_all_ranks_have(asked, places, wire) -> None:
    assert choose_wire(asked, dict(enumerate(places))) == wire


def test_choose_wire_rejects_what_the_group_lacks() -> None:
    with pytest.raises(ValueError, match=r"weight_sync.transport=nccl: this job's process group has gloo only; use auto"):
        choose_wire("nccl", {0: ON_CPU, 1: ON_CPU})


@pytest.mark.parametrize(
    ("asked", "source", "destination", "reason"),
    [
        ("ipc", A, B, None),
        ("ipc", A, A, None),
        ("auto", A, A, None),
        ("auto", A, B, "weight_sync.transport=auto"),
        ("gloo", A, A, "weight_sync.transport=gloo"),
        ("ipc", A, FAR, "different hosts"),
        ("ipc", ON_CPU, A, "on CPU"),
        ("ipc", EXPANDABLE, B, "expandable segments"),
        ("ipc", B, replace(A, visible_gpus=("GPU-a",)), "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_ipc_pairs_share_memory_where_it_works(asked, source, destination, reason) -> None:
    shared, reasons = ipc_pairs(asked, {0: source, 1: destination}, [(0, 1), (0, 1)])
    assert shared == (frozenset({(0, 1)}) if reason is None else frozenset())
    assert reasons == {} if reason is None else reason in reasons[0, 1]


@pytest.mark.parametrize(("asked", "why"), [("nccl", "use auto"), ("auto", "neither does CUDA IPC: .* expandable")])
def test_ipc_pairs_rejects_nccl_within_one_gpu(asked, why) -> None:
    place = A if asked == "nccl" else EXPANDABLE
    with pytest.raises(ValueError, match=f"ranks 0 and 1 share one GPU.*{why}"):
        ipc_pairs(asked, {0: place, 1: place}, [(0, 1)])
