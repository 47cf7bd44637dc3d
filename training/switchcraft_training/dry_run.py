"""`run --dry-run`: what can stop a run, found before it starts.

A dry run reads the sources without judging their answers, splits the rows, and looks for the
encoders on this machine and on the model hub.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from pydantic import ValidationError

from router_service.core.errors import ConfigError, SwitchcraftError
from switchcraft_training.config import RunConfig
from switchcraft_training.data.outcomes import CheckedAnswers
from switchcraft_training.data.splits import query_digest, unique
from switchcraft_training.data.table import Table
from switchcraft_training.dataset import open_source, require_measured_rows
from switchcraft_training.errors import DataError
from switchcraft_training.models.distillation import find_teacher
from switchcraft_training.models.encoders import find_encoder, load_untrained, packing_for
from switchcraft_training.models.frozen import freeze
from switchcraft_training.models.model import EncoderBranch
from switchcraft_training.models.optimization import precision_of
from switchcraft_training.records import Example
from switchcraft_training.verification import require_answers

WEIGHTS: Final = (
    *("model.safetensors", "pytorch_model.bin"),
    *("model.safetensors.index.json", "pytorch_model.bin.index.json"),
)
"""Names of files with an encoder's weights, or with the list of these files."""

HUB_TIMEOUT_S = 10


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


def dry_run(config: RunConfig, data: Path) -> DryRun:
    """Check everything that a run needs."""
    found = DryRun()
    examples: Sequence[Example] = ()
    with found.noting():
        examples = _measured(config, data)
        table = Table(tuple(examples), config.arms, np.ones((len(examples), len(config.arms))))
        require_measured_rows(table, config, data)
        rows = f"{len(examples):,} measured queries in {config.evaluation.folds} folds"
        found.facts.append(f"{config.name}: {rows}")
    if config.verifier:
        with found.noting():
            require_answers(config, data)
    with found.noting():
        precision_of(config)
    with found.noting():
        source, settings = config.encoder.source, config.encoder
        found.facts.append(_find_weights(source))
        encoder = load_untrained(source)
        packing_for(encoder, config.packing)
        if settings.distilled is not None and examples:
            find_teacher(encoder, has_rows=_has_other_rows(config, data, examples))
        freeze(EncoderBranch(encoder.model, 1, pooling="cls", dropout=0), settings.frozen_layers)
    if config.checking.paraphrases is not None:
        with found.noting():
            found.facts.append(_find_weights(config.checking.paraphrases))
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
    return tuple(complete[row] for row in unique(complete))


def _has_other_rows(config: RunConfig, data: Path, measured: Sequence[Example]) -> bool:
    """Return whether the sources have queries that are not measured."""
    known = {query_digest(example) for example in measured}
    sources = (open_source(each, data) for each in (config.source, *config.also))
    return any(query_digest(each) not in known for source in sources for each in source.examples())


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
