"""Rows a second of fine-tuning, by sequence length and precision, on the device at hand.

    python benchmarks/finetune.py --out runs/finetune.json

The steps are those of a run: forward, backward, clipping and AdamW over all weights of an encoder
of DistilBERT's size, by `accelerate`. Weights are random, which costs the same. Each precision is
measured in a process of its own; rows are as long as the length says, so nothing is padding.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import torch
from transformers import DistilBertConfig, DistilBertModel

from benchmarks.stamp import stamp
from training.config import RunConfig
from training.finetune.acceleration import start
from training.finetune.encoder_loop import Inputs, Stepper, Task
from training.finetune.model import EncoderBranch

WARM_UP_STEPS = 2
HEADS = 8


class Setting(NamedTuple):
    """What is measured: precision, tokens a row, rows a step, and how many steps are timed."""

    precision: str
    tokens: int
    batch_size: int
    steps: int


def main() -> None:
    """Print a table and, where asked, write the same as JSON."""
    arguments = _arguments()
    settings = [
        Setting(precision, tokens, arguments.batch_size, arguments.steps)
        for precision in arguments.precisions
        for tokens in arguments.tokens
    ]
    figures = [{**setting._asdict(), **_alone(setting)} for setting in settings]
    print(f"rows a second in steps of {arguments.batch_size}: median (slowest to fastest step)")
    for row in figures:
        low, high = row["slowest"], row["fastest"]
        name = f"{row['device']:<5} {row['precision']:<5} {row['tokens']:>5} tokens"
        print(f"{name} {row['median']:>9,.1f} ({low:,.1f} to {high:,.1f})")
    if arguments.out:
        row = {"rows_per_s": figures, **stamp("torch", "transformers", "accelerate")}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_bytes(orjson.dumps(row, option=orjson.OPT_INDENT_2))


def measure(setting: Setting) -> dict[str, str | float]:
    """Return the device's name, and rows a second of the slowest, median and fastest step."""
    config = _config(setting)
    accelerator = start(config)
    stepper = Stepper(_task(setting, config, accelerator.device), accelerator)
    rates = []
    for _ in range(WARM_UP_STEPS + setting.steps):
        begin = time.perf_counter()
        float(stepper.step(np.arange(setting.batch_size)))  # waits for the device
        rates.append(setting.batch_size / (time.perf_counter() - begin))
    timed = rates[WARM_UP_STEPS:]
    figures = {"slowest": min(timed), "median": statistics.median(timed), "fastest": max(timed)}
    return {"device": accelerator.device.type, **figures}


def _task(setting: Setting, config: RunConfig, device: torch.device) -> Task:
    branch = EncoderBranch(DistilBertModel(DistilBertConfig()), HEADS, pooling="cls", dropout=0)
    ids = torch.randint(1000, 30_000, (setting.batch_size, setting.tokens))
    labels = np.random.default_rng(0).integers(0, 2, (len(ids), HEADS)).astype(np.float32)
    inputs = Inputs(list(ids), labels, branch.pad_id)
    return Task(branch.to(device), inputs, inputs, HEADS, config.training)


def _config(setting: Setting) -> RunConfig:
    price = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 1}
    return RunConfig.model_validate(
        {
            "name": "benchmark",
            "source": {"format": "bfcl", "path": "none"},
            "pool": [{"arm": "any", "price": price}],
            "training": {"precision": setting.precision, "batch_size": setting.batch_size},
        }
    )


def _alone(setting: Setting) -> dict[str, str | float]:
    """Measure in a process of its own: one has one precision, and its memory is its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, setting).result()


def _arguments() -> argparse.Namespace:
    precisions = ["no", "bf16", "fp16"] if torch.cuda.is_available() else ["no", "bf16"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--precisions", nargs="+", default=precisions)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, help="where the figures go as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
