"""The runs of a sweep, one after another or side by side, and the summary of all."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from router_service.core.artifact import Artifact, Manifest
from router_service.core.errors import ArtifactError, ConfigError, SwitchcraftError
from switchcraft_training import pipeline
from switchcraft_training.cluster import connecting, reason
from switchcraft_training.config import RunConfig, dump_config
from switchcraft_training.models.optimization import process_count
from switchcraft_training.provenance import sources_sha256
from switchcraft_training.sweep.summary import Measured, Summary, summarize

log = logging.getLogger(__name__)

SUMMARY = "sweep.json"


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep; all of a sweep share a workspace, and so what frozen layers say."""

    config: RunConfig
    data: Path
    folder: Path
    workspace: Path

    def manifest(self, data_sha256: str) -> Manifest | None:
        """Return what the run left, None unless it ended and was of this configuration and data."""
        try:
            manifest = Artifact.load(self.folder / "artifact").manifest
        except ArtifactError:
            return None
        made_from = manifest.provenance
        same = made_from.config == dump_config(self.config)
        return manifest if same and made_from.data_sha256 == data_sha256 else None


@dataclass(frozen=True, slots=True)
class Ending:
    """What a sweep measured, and the runs that failed with the reason of each."""

    summary: Summary
    failures: Mapping[Path, str]


def run_sweep(
    config: RunConfig,
    data: Path,
    out: Path,
    seeds: Sequence[int],
    encoders: Sequence[str],
    ray_address: str | None,
) -> Ending:
    """Run what has not ended yet, and write `out/sweep.json`; a failed run stops no other.

    Raises ConfigError where two encoders would share a folder, or where Ray does not come up.
    """
    if process_count() > 1:
        problem = "start it as one process; several serve a single `run`"
        raise ConfigError("sweep", "", problem)
    jobs = list(_jobs(config, data.resolve(), out.resolve(), seeds, encoders))
    digest = sources_sha256((config.source, *config.also), data)
    left = [job for job in jobs if job.manifest(digest) is None]
    log.info("%d runs, of which %d have ended", len(jobs), len(jobs) - len(left))
    problems = _each(left) if ray_address is None else _on_ray(left, ray_address)
    failures = {job.folder: text for job, text in zip(left, problems, strict=True) if text}
    summary = summarize(list(_measured(jobs, digest)))
    out.mkdir(parents=True, exist_ok=True)
    (out / SUMMARY).write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    return Ending(summary, failures)


def _jobs(
    config: RunConfig, data: Path, out: Path, seeds: Sequence[int], encoders: Sequence[str]
) -> Iterator[Job]:
    names = {source: re.sub(r"[^a-z0-9]+", "-", Path(source).name.lower()) for source in encoders}
    if len(set(names.values())) < len(names):
        raise ConfigError("--encoders", "", "two have the same last name; rename a folder")
    for source, name in names.items():
        encoder = config.encoder.model_copy(update={"source": source})
        for seed in dict.fromkeys(seeds):
            own = config.model_copy(update={"encoder": encoder, "seed": seed})
            yield Job(own, data, out / f"{name}-seed-{seed}", out / "work")


def _each(jobs: Sequence[Job]) -> list[str | None]:
    return [run_job(job) for job in jobs]


def run_job(job: Job) -> str | None:
    """Run one job to its end; return what was wrong where it failed for an explained reason."""
    log.info("%s", job.folder)
    try:
        pipeline.run(job.config, job.data, job.folder, workspace=job.workspace)
    except SwitchcraftError as exc:
        return str(exc)
    return None


def _on_ray(jobs: Sequence[Job], address: str) -> list[str | None]:
    """Run jobs side by side: a GPU each where the cluster has any, else a core each."""
    with connecting(address):
        import ray  # noqa: PLC0415 - optional

        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    remote: Any = ray.remote(run_job).options(num_cpus=1, num_gpus=int("GPU" in resources))
    try:
        return [_outcome(ray.get, reference) for reference in [remote.remote(job) for job in jobs]]
    finally:
        ray.shutdown()


def _outcome(get: Callable[[Any], str | None], reference: object) -> str | None:
    """Return what a run on another machine came to; a lost machine is a failure of its run."""
    from ray.exceptions import RayError  # noqa: PLC0415 - optional

    try:
        return get(reference)
    except RayError as exc:
        return reason(exc)


def _measured(jobs: Sequence[Job], digest: str) -> Iterator[Measured]:
    for job in jobs:
        manifest = job.manifest(digest)
        if manifest is not None:
            source, seed = job.config.encoder.source, job.config.seed
            yield Measured(source, seed, job.folder.name, dict(manifest.metrics))
