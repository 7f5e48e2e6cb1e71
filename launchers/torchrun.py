"""The torchrun command of a job: text in, text out."""

from __future__ import annotations

import sys

from launchers.job import JobSpec


def torchrun_command(job: JobSpec, python: str = sys.executable) -> list[str]:
    """Command that starts the ranks of this machine; with several machines, node numbers and so ranks are fixed.

    A node's first rank writes to the console; the other ranks write below ``job.logs_dir``, so that lines never interleave.
    """
    return [
        python,
        "-m",
        "torch.distributed.run",
        *_rendezvous(job),
        f"--nproc-per-node={job.ranks_per_node}",
        f"--max-restarts={job.max_restarts}",
        f"--log-dir={job.logs_dir}",
        *_redirects(job.ranks_per_node),
        "-m",
        job.module,
        job.task,
        str(job.run_dir),
    ]


def _rendezvous(job: JobSpec) -> list[str]:
    if job.master_port is None:
        assert job.nodes == 1, "several nodes need a port they all know"
        return ["--standalone"]  # picks a free port and a unique id, so two jobs on one host never meet
    numbers = [f"--nnodes={job.nodes}", f"--node-rank={job.node_rank}"]
    return [*numbers, f"--master-addr={job.master_addr or '127.0.0.1'}", f"--master-port={job.master_port}"]


def _redirects(num_ranks: int) -> list[str]:
    """Both streams (3) of every rank but the first go to files."""
    if num_ranks == 1:
        return []
    return ["--redirects=" + ",".join(f"{rank}:3" for rank in range(1, num_ranks))]
