"""Manifest and canary requests of an artifact, the directory that the service loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from router_service.core.artifact import (
    CANARIES,
    SCHEMA_VERSION,
    TOKENIZER,
    Encoder,
    FrontierPoint,
    Manifest,
    Measure,
    Provenance,
    file_hashes,
    save_manifest,
)
from router_service.core.messages import parse_conversation
from router_service.core.model import IDENTITY, Calibration, Classifier
from router_service.core.packing import Packer
from router_service.core.selection import ArmProfile
from switchcraft_training.config import RunConfig

GRAPH = "model.int8.onnx"
CUDA_GRAPH = "model.fp16.onnx"
CANARY_REQUESTS = Path(__file__).with_name("canaries.jsonl")


@dataclass(frozen=True, slots=True)
class ManifestMetrics:
    """Results of the evaluation that the manifest contains."""

    frontier: tuple[FrontierPoint, ...]
    metrics: Mapping[str, Measure]
    calibration: Calibration = IDENTITY


def write_canaries(directory: Path, config: RunConfig, calibration: Calibration = IDENTITY) -> None:
    """Write the canary requests with the exported graph's calibrated probabilities."""
    packer = Packer(config.packing, Tokenizer.from_file(str(directory / TOKENIZER)))
    classifier = Classifier(directory / GRAPH, arms=len(config.arms), calibration=calibration)
    lines = []
    for line in CANARY_REQUESTS.read_text().splitlines():
        request = json.loads(line)
        row = classifier.predict([packer.pack(parse_conversation(request))])[0]
        probabilities = dict(zip(config.arms, row.tolist(), strict=True))
        lines.append(json.dumps({"request": request, "probabilities": probabilities}))
    (directory / CANARIES).write_text("\n".join(lines) + "\n")


def write_manifest(
    directory: Path,
    config: RunConfig,
    encoder: Encoder,
    profile: Mapping[str, ArmProfile],
    provenance: Provenance,
    metrics: ManifestMetrics,
) -> Manifest:
    """Write the manifest, which completes an artifact directory."""
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=config.name,
        arms=config.arms,
        encoder=encoder,
        packing=config.packing,
        policies=config.policies,
        profile=profile,
        calibration=metrics.calibration,
        frontier=metrics.frontier,
        metrics=metrics.metrics,
        provenance=provenance,
        models={"cpu": GRAPH, **({"cuda": CUDA_GRAPH} if config.cuda_graph else {})},
        files=file_hashes(directory),
    )
    save_manifest(directory, manifest)
    return manifest
