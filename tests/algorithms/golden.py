"""Hand-sized arrays shared by the algorithm tests, with results of an established public implementation (6 digits).

Rows are samples; groups are rows (0, 1) and (2, 3) in the advantage case.
"""

from __future__ import annotations

import torch

REWARDS = torch.tensor([[0.0, 0, 1, 0], [0, 0, 0, -1], [0, 2, 0, 0], [0, 0, 0.5, 0]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)
VALUES = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0, 0.1, -0.2, 0.3], [0.5, 0.4, 0.3, 0.2], [0.2, 0.9, 0.1, 0.7]])
GROUPS = torch.tensor([0, 0, 1, 1])

LOGPROBS = torch.tensor([[-1.0, -0.5, -0.2], [-2.0, -0.1, -0.7]])
OLD_LOGPROBS = torch.tensor([[-1.2, -0.5, -0.9], [-1.5, -0.3, -0.7]])
REF_LOGPROBS = torch.tensor([[-1.1, -0.6, -0.2], [-1.9, -0.4, -0.5]])
LOSS_ADVANTAGES = torch.tensor([[1.0, 1, 1], [-0.5, -0.5, -0.5]])
LOSS_MASK = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)
