"""What launchers and ranks agree on: exit codes with a meaning, and the variables that carry more than torch's own."""

from __future__ import annotations

EXIT_CODE_REQUEUE = 85
"""The ranks saved because they were told to stop; no failure, and worth starting again."""
EXIT_CODE_NODE = 86
"""A node cannot do its part: it did not start, or it failed the preflight."""
STOPPED_MARK = "MEGATRON_RL_STOPPED_MARK"
"""Variable with the file a rank leaves where it saved as told. The rank then exits with 0, so that neither torchrun nor
srun takes it for a failure, restarts it, or kills a neighbour that is still leaving."""
NODES = "MEGATRON_RL_NODES"
"""Variable with the names of the nodes, in the order of their ranks, joined by commas."""
