"""Memory of the LM head with its log-probabilities: the workspaces of ``kernels.linear_logprob``, buffer by buffer.

Shapes: N predicted tokens of a micro-batch, V vocabulary rows of the rank, H hidden, ``e`` bytes per element. A test runs
the kernels' own tilings beside these formulas.
"""

from __future__ import annotations

from megatron_rl.estimator.deployment import Deployment, RoleSetup
from megatron_rl.parallel.layout import padded_vocab_size

LOGIT_WORKSPACE_BYTES = 2**30
"""Logits that the kernels keep at one time on a GPU, about."""
TILE_ROWS, LEAST_TILE_ROWS, TOKEN_STEP = 8192, 256, 128
"""Vocabulary rows of a tile at most and at least; token cuts are multiples of the last."""
CPU_CHUNK_ELEMENTS = 2**26
"""Logits of one chunk on CPU."""
_CPU_CHUNK_COPIES = 3
"""f32 matrices of one chunk's size that the loss on CPU holds."""


def head_bytes(deployment: Deployment, role: RoleSetup, *, with_gradients: bool) -> int:
    """Bytes of the head beside its weight, for one micro-batch in which every token is predicted.

    The final norm keeps its input and its output for every token; the tokens that meet the head are gathered.
    """
    model, e, tokens = deployment.model, deployment.weight_bytes, role.micro_batch_tokens
    hidden = tokens * model.hidden_size
    norm = hidden * (3 * e if deployment.on_gpu else 4 + 2 * e)
    if role.head == "value":
        return norm + hidden * 4
    rows = padded_vocab_size(model.vocab_size, role.layout.tensor) // role.layout.tensor
    if not deployment.on_gpu:
        logits = min(tokens, max(1, CPU_CHUNK_ELEMENTS // rows)) * rows * 4 * _CPU_CHUNK_COPIES
        gradients = rows * model.hidden_size * (4 + e) + hidden * e
        return norm + logits + (gradients if with_gradients else 0)
    if not with_gradients:
        return norm + tokens * _tall_rows(tokens, rows, e) * 4
    loss = _separable_loss_bytes if role.separable_loss else _recomputed_bytes
    return norm + loss(tokens, rows, model.hidden_size, e)


def _separable_loss_bytes(tokens: int, rows: int, hidden_size: int, e: int) -> int:
    """One cut of tokens keeps its logits in ``e`` bytes; gradients of hidden states and weight are made at once."""
    cut = wide_cut_tokens(tokens, rows, e)
    tile = cut * min(TILE_ROWS, rows) * 4
    return cut * rows * e + tile + cut * hidden_size * 4 + tokens * hidden_size * e + rows * hidden_size * e


def _recomputed_bytes(tokens: int, rows: int, hidden_size: int, e: int) -> int:
    """All tokens by one tile of rows, f32 logits and their gradient; the hidden states' gradient adds up in f32."""
    tile = tokens * _tall_rows(tokens, rows, e) * (4 + e)
    return tile + tokens * hidden_size * (4 + e) + rows * hidden_size * e


def wide_cut_tokens(tokens: int, rows: int, e: int) -> int:
    """Tokens of one cut whose whole rows of logits fit the workspace, equal cuts (``tiles.wide_tiling``)."""
    fitting = max(TOKEN_STEP, int(LOGIT_WORKSPACE_BYTES * 1.25) // max(1, rows * e))
    per_cut = -(-tokens // max(1, -(-tokens // fitting)))
    return min(tokens, -(-per_cut // TOKEN_STEP) * TOKEN_STEP)


def _tall_rows(tokens: int, rows: int, e: int) -> int:
    """Rows of a tile over all tokens (``tiles.tall_tiling``)."""
    tile = TILE_ROWS
    while tile > LEAST_TILE_ROWS and tokens * tile * (4 + e) > LOGIT_WORKSPACE_BYTES:
        tile //= 2
    return min(tile, rows)
