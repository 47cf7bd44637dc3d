"""`run --dry-run` and `sweep --dry-run`: everything that can stop a run, found before it starts.

A dry run reads the sources without judging their answers, splits the rows, looks for the encoders
on this machine and on the model hub, and compares the disk space with what checkpoints need. One
training step of the encoder with random weights gives an upper limit of the training time.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import comb
from pathlib import Path
from typing import Final

import numpy as np
import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from pydantic import ValidationError
from tokenizers import Tokenizer

from router_service.apis.conversation import parse_conversation
from router_service.core.errors import ConfigError, DataError, SwitchcraftError
from router_service.predictor.packing import Packer
from switchcraft_training.baselines.chat import read_preferences
from switchcraft_training.config import RunConfig
from switchcraft_training.data.outcomes import CheckedAnswers
from switchcraft_training.data.splits import unique
from switchcraft_training.data.table import Table
from switchcraft_training.dataset import open_source, require_measured_rows
from switchcraft_training.models.encoders import (
    PretrainedEncoder,
    find_encoder,
    load_untrained,
    packing_for,
)
from switchcraft_training.models.model import EncoderBranch
from switchcraft_training.models.optimization import start_accelerator
from switchcraft_training.records import Example
from switchcraft_training.training_data import TrainingData
from switchcraft_training.verification import require_answers

WEIGHTS: Final = (
    *("model.safetensors", "pytorch_model.bin"),
    *("model.safetensors.index.json", "pytorch_model.bin.index.json"),
)
"""Names of files with an encoder's weights, or with the list of these files."""

HUB_TIMEOUT_S = 10
SAMPLED_ROWS = 200
"""Rows that are packed to estimate the mean number of tokens."""
TIMED_ROWS = 2
CHECKPOINT_WEIGHTS = 8
"""Space of checkpoints while one is replaced, in units of the encoder's weights: two copies of the
weights, of AdamW's two moments and of the best weights so far."""


@dataclass(slots=True)
class DryRun:
    """Problems that would stop a run, and what was found about it."""

    problems: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note an error of the block as a problem, or all errors of a configuration."""
        try:
            yield
        except SwitchcraftError as exc:
            problems = [str(exc)]
            if isinstance(exc, ConfigError) and isinstance(exc.__cause__, ValidationError):
                problems = [
                    f"{exc.source}: {'.'.join(map(str, error['loc']))}: {error['msg']}"
                    for error in exc.__cause__.errors()
                ]
            self.problems.extend(text for text in problems if text not in self.problems)

    def fact(self, text: str) -> None:
        """Note a fact, once."""
        if text not in self.facts:
            self.facts.append(text)


def dry_run(configs: Mapping[str, RunConfig], data: Path, out: Path, seeds: int = 1) -> DryRun:
    """Check every configuration, by its variant's name, for runs with this number of seeds."""
    found = DryRun()
    needed_bytes = seconds = 0.0
    read: dict[str, Sequence[Example]] = {}
    efforts: dict[str, _Effort] = {}
    for name, config in configs.items():
        before = len(found.problems)
        key = config.model_dump_json(include={"source", "also", "pool"})
        examples: Sequence[Example] = ()
        rows = 0
        with found.noting():
            examples = read[key] = read.get(key) or _measured(config, data)
            rows = _trained_rows(name, config, examples, data, found)
        if (chat := config.evaluation.chat_preferences) is not None:
            with found.noting():
                battles = len(read_preferences(chat, data).battles)
                found.fact(f"chat preferences {chat.path}: {battles:,} battles with a winner")
        if config.verifier:
            with found.noting():
                require_answers(config, data)
        for source in dict.fromkeys((config.encoder.source, config.checking.paraphrases)):
            if source is not None:
                with found.noting():
                    found.fact(_find_weights(source))
        if len(found.problems) > before:
            continue  # Without rows or an encoder, there is nothing to time.
        with found.noting():
            key = config.model_dump_json(include={"source", "encoder", "packing", "training"})
            if key not in efforts:
                encoder = load_untrained(config.encoder.source)
                efforts[key] = _measure(config, encoder, examples)
            effort = efforts[key]
            trainings = seeds * _trainings(config)
            seconds += trainings * effort.seconds(rows, config)
            needed_bytes += effort.kept_bytes(trainings) + effort.checkpoint_bytes
            noun = "training" if trainings == 1 else "trainings"
            work = f"{trainings} {noun} of at most {config.training.max_epochs} epochs on"
            if effort.is_frozen:
                work = "the frozen encoder reads"
            found.fact(
                f"{name}: {work} {rows:,} rows of {effort.tokens:.0f} tokens on average, with"
                f" {effort.row_s:.2g} s a row on {effort.device}"
            )
    _check_disk(found, needed_bytes, out)
    if seconds:
        found.fact(
            f"time of the encoder: at most {_duration(seconds)} in one process; judging answers,"
            " baselines, export and reports come on top"
        )
    return found


def _measured(config: RunConfig, data: Path) -> tuple[Example, ...]:
    """Return the distinct queries that every arm of the pool answered, without judging answers.

    Also open the other sources. Raises DataError and ConfigError.
    """
    for each in (config.source, *config.also):
        if not (data / each.path).exists():
            problem = "does not exist; name the folder of recorded answers with --data"
            raise DataError(data / each.path, None, problem)
    for other in config.also:
        open_source(other, data).arms()
    source = open_source(config.source, data)
    recorded = source.arms()
    if missing := sorted(set(config.arms) - set(recorded)):
        problem = f"no recorded answers of {', '.join(missing)}; record some or remove the arms"
        raise ConfigError(str(data / config.source.path), "pool", problem)
    examples = list(source.examples())
    answered = {example.id for example in examples}
    for arm in config.arms:
        rows = (
            source.source.answers(arm)
            if isinstance(source, CheckedAnswers)
            else source.outcomes(arm)
        )
        answered &= {row.example_id for row in rows}
    complete = [example for example in examples if example.id in answered]
    return tuple(complete[row] for row in unique(complete, config.evaluation.distinct_within))


def _trained_rows(
    name: str, config: RunConfig, examples: Sequence[Example], data: Path, found: DryRun
) -> int:
    """Return the number of measured rows that one router is trained on."""
    table = Table(tuple(examples), config.arms, np.ones((len(examples), len(config.arms))))
    require_measured_rows(table, config, data)
    if config.evaluation.protocol == "split":
        sizes = TrainingData(config, table, Path()).split().sizes()
        found.fact(f"{name}: {len(examples):,} measured queries, split into {sizes}")
        return sizes["train"]
    folds = config.evaluation.folds
    found.fact(f"{name}: {len(examples):,} measured queries in {folds} folds")
    return len(examples) * (folds - 1) // folds


def _find_weights(source: str) -> str:
    """Return where an encoder's weights are; raises ConfigError if they are nowhere.

    A hub is asked for the names of the files only.
    """
    location = find_encoder(source)
    folder = Path(location)
    if folder.is_dir():
        if not any((folder / name).exists() for name in WEIGHTS):
            problem = f"the folder has no {WEIGHTS[0]}; name the folder of an encoder"
            raise ConfigError(source, "encoder.source", problem)
        return f"encoder {source}: on this machine"
    if any(isinstance(try_to_load_from_cache(location, name), str) for name in WEIGHTS):
        return f"encoder {source}: in the cache of the model hub"
    try:
        files = HfApi().model_info(location, timeout=HUB_TIMEOUT_S, files_metadata=True).siblings
    except HfHubHTTPError as exc:
        problem = f"the model hub does not offer this encoder; check its name: {_first_line(exc)}"
        raise ConfigError(source, "encoder.source", problem) from exc
    except Exception as exc:  # The hub's client raises errors of several libraries.
        problem = (
            "not in the cache, and the model hub cannot be reached; set HF_ENDPOINT or HF_HOME, or"
            f" name a folder with the encoder: {_first_line(exc)}"
        )
        raise ConfigError(source, "encoder.source", problem) from exc
    sizes = [file.size or 0 for file in files or () if file.rfilename in WEIGHTS]
    if not sizes:
        problem = f"the model hub has no {WEIGHTS[0]} for this encoder; choose another one"
        raise ConfigError(source, "encoder.source", problem)
    return f"encoder {source}: {max(sizes) / 1e6:,.0f} MB will be downloaded from the model hub"


def _first_line(exc: Exception) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]


@dataclass(frozen=True, slots=True)
class _Effort:
    """Measured time of training on one row of mean length, and the size of the encoder."""

    tokens: float
    row_s: float
    device: str
    weight_bytes: int
    is_frozen: bool

    def seconds(self, rows: int, config: RunConfig) -> float:
        """Return the longest time of one training; early stopping may end it sooner."""
        epochs = 1 if self.is_frozen else config.training.max_epochs
        return rows * epochs * self.row_s

    @property
    def checkpoint_bytes(self) -> int:
        return 0 if self.is_frozen else CHECKPOINT_WEIGHTS * self.weight_bytes

    def kept_bytes(self, trainings: int) -> int:
        """Return the space of the weights that each finished training keeps, with an artifact."""
        return 0 if self.is_frozen else 2 * trainings * self.weight_bytes


def _measure(config: RunConfig, encoder: PretrainedEncoder, examples: Sequence[Example]) -> _Effort:
    """Time a step of training on rows of mean length; raises ConfigError as training would."""
    accelerator = start_accelerator(config)
    device = accelerator.device
    packing = packing_for(encoder, config.packing)
    packer = Packer(packing, Tokenizer.from_str(encoder.tokenizer.to_str()))
    sample = examples[:: max(1, len(examples) // SAMPLED_ROWS)]
    lengths = [len(packer.pack(parse_conversation(each.request)).token_ids) for each in sample]
    tokens = float(np.mean(lengths))
    is_frozen = (
        config.encoder.frozen_layers == "all"
        or config.encoder.distilled is not None
        or "encoder" not in config.training.branch_shares
    )
    settings = config.training
    branch = EncoderBranch(
        encoder.model, len(config.arms), pooling=config.encoder.pooling, dropout=settings.dropout
    ).to(device)
    ids = torch.ones(TIMED_ROWS, max(1, round(tokens)), dtype=torch.long, device=device)
    mask = torch.ones_like(ids)
    row_s = 0.0
    for _ in range(2):  # The first step warms up.
        begin = time.perf_counter()
        with accelerator.autocast(), torch.set_grad_enabled(not is_frozen):
            loss = branch(ids, mask).float().square().mean()
        if not is_frozen:
            loss.backward()
        loss.item()  # waits for the device
        row_s = (time.perf_counter() - begin) / TIMED_ROWS
    weight_bytes = sum(p.numel() * p.element_size() for p in branch.parameters())
    return _Effort(tokens, row_s, device.type, weight_bytes, is_frozen)


def _trainings(config: RunConfig) -> int:
    """Return how often one run trains a router. Frozen states are computed only once."""
    settings = config.evaluation
    if config.encoder.frozen_layers == "all" or "encoder" not in config.training.branch_shares:
        return 1
    if settings.protocol == "split":
        return 1 + settings.truncated
    nested = comb(settings.folds, 2) if config.verifier else 0
    return settings.folds * (1 + settings.truncated) + 1 + nested


def _check_disk(found: DryRun, needed_bytes: float, out: Path) -> None:
    folder = out.resolve()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        found.problems.append(f"{out}: {folder} is a file; choose another folder with --out")
        return
    free = shutil.disk_usage(folder).free
    text = f"{needed_bytes / 1e9:,.1f} GB for checkpoints and artifacts, {free / 1e9:,.1f} GB free"
    if needed_bytes > free:
        found.problems.append(f"{out}: {text}; free some space or choose another folder with --out")
    else:
        found.fact(f"disk: {text}")


def _duration(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"
