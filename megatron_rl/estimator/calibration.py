"""A handful of efficiencies fitted from stored measurements; whatever has no measurement is an assumption and says so.

Update: ``efficiency(k) = top * k / (k + half)`` of the data-sheet peak, ``k`` tokens in a micro-batch, so
``1 / efficiency`` is a straight line in ``1 / k``. Rollout: ``seconds = hardware + iterations * a + tokens * b``, see
``decode``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.catalogue import Gpu
from megatron_rl.estimator.coefficients import Coefficient, Coefficients
from megatron_rl.estimator.decode import EngineLoad, hardware_s
from megatron_rl.estimator.flops import train_flops
from megatron_rl.estimator.least_squares import fit_line, fit_two
from megatron_rl.estimator.measurements import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A measurement with what its names mean."""

    record: Measurement
    config: RunConfig
    gpu: Gpu

    @property
    def model(self) -> ModelConfig:
        """Shape."""
        return self.config.model

    @property
    def micro_batch_tokens(self) -> int:
        """Of the actor; all samples are taken to be one micro-batch where they fit."""
        batch = self.record.batch
        share = round(batch.samples * (batch.prompt_tokens + batch.response_tokens))
        return min(self.config.actor.ppo_max_token_len_per_gpu, share)


def fit(runs: Iterable[MeasuredRun], gpu: Gpu) -> Coefficients:
    """Coefficients for one kind of card: from its own measurements, else from those of all kinds.

    Only records with ``use="calibration"`` count.
    """
    usable = [run for run in runs if run.record.use == "calibration"]
    own = [run for run in usable if run.gpu.name == gpu.name]
    chosen = own or usable
    found = _yardsticks(chosen)
    coefficients = Coefficients(**found, gpu="+".join(dict.fromkeys(run.gpu.name for run in chosen)))
    fitted = _update(chosen) | _rollout(chosen, coefficients)
    return Coefficients(**(found | fitted), gpu=coefficients.gpu)


def _yardsticks(runs: list[MeasuredRun]) -> dict[str, Coefficient]:
    found: dict[str, Coefficient] = {}
    for run in runs:
        rates, source = run.record.yardsticks, (run.record.name,)
        peaks = {
            "memory_frac": ("memory_bytes_per_s", run.gpu.memory_bytes_per_s),
            "link_frac": ("link_bytes_per_s", run.gpu.intra_node.bytes_per_s),
            "collective_frac": ("all_gather_bytes_per_s", run.gpu.intra_node.bytes_per_s),
        }
        for name, (rate, peak) in peaks.items():
            if rate in rates:
                found[name] = Coefficient(value=rates[rate] / peak, sources=source)
    return found


def _update(runs: list[MeasuredRun]) -> dict[str, Coefficient]:
    points = [run for run in runs if "update_actor" in run.record.phase_seconds]
    if not points:
        return {}
    inverse = [(1 / run.micro_batch_tokens, 1 / update_efficiency(run)) for run in points]
    sources = tuple(run.record.name for run in points)
    line = fit_line(inverse)
    if line is None or line[0] <= 0 or line[1] < 0:  # one micro-batch size, or noise: keep the shape, fit the height
        half = Coefficients().update_half_tokens.value
        top = sum((1 + half * x) / y for x, y in inverse) / len(inverse)
        return {"update_top_frac": Coefficient(value=top, sources=sources)}
    intercept, slope = line
    return {
        "update_top_frac": Coefficient(value=1 / intercept, sources=sources),
        "update_half_tokens": Coefficient(value=slope / intercept, sources=sources),
    }


def update_efficiency(run: MeasuredRun) -> float:
    """Useful FLOP/s of a measured update over the data-sheet peak of its cards."""
    record, batch = run.record, run.record.batch
    length = round(batch.prompt_tokens + batch.response_tokens)
    useful_flops = train_flops(run.model, [length]) * batch.samples
    return useful_flops / (record.phase_seconds["update_actor"] * record.num_gpus * run.gpu.peak_flops_per_s)


def _rollout(runs: list[MeasuredRun], known: Coefficients) -> dict[str, Coefficient]:
    points = [run for run in runs if "rollout" in run.record.phase_seconds]
    if not points:
        return {}
    rows = []
    for run in points:
        load = engine_load(run)
        # What is left of the measured time once bytes, prefill and messages are taken off.
        rest_s = max(0.0, run.record.phase_seconds["rollout"] - hardware_s(run.model, run.gpu, load, known))
        rows.append((load.iterations, load.sequences * load.response_tokens, rest_s))
    sources = tuple(run.record.name for run in points)
    pair = fit_two(rows)
    if pair is None or min(pair) < 0:  # cannot be told apart: keep the assumed iteration, fit the token
        iteration_s = known.decode_iteration_s.value
        token_s = sum(max(0.0, rest - steps * iteration_s) for steps, _, rest in rows) / sum(tokens for _, tokens, _ in rows)
        return {"decode_token_s": Coefficient(value=token_s, sources=sources)}
    return {
        "decode_iteration_s": Coefficient(value=pair[0], sources=sources),
        "decode_token_s": Coefficient(value=pair[1], sources=sources),
    }


def engine_load(run: MeasuredRun) -> EngineLoad:
    """Work of one engine of a measured rollout."""
    batch, tensor = run.record.batch, run.config.rollout.tensor_parallel_size
    engines = run.record.num_gpus // tensor
    return EngineLoad(
        tensor=tensor,
        sequences=batch.samples / engines,
        prefilled_prompts=batch.samples / engines,
        prompt_tokens=batch.prompt_tokens,
        response_tokens=batch.response_tokens,
        iterations=float(batch.response_tokens),
    )
