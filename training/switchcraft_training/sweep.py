"""A sweep: the same run for every seed and encoder, and a table of all runs."""

from __future__ import annotations

import logging
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import orjson
from rich.console import Console
from rich.table import Table

from router_service.core.artifact import Artifact, Manifest, Measure
from router_service.core.errors import ArtifactError, ConfigError, SwitchcraftError
from switchcraft_training import pipeline
from switchcraft_training.cluster import connecting, describe_ray_error
from switchcraft_training.config import RunConfig, dump_config
from switchcraft_training.dataset import sources_sha256
from switchcraft_training.models.optimization import process_count

log = logging.getLogger(__name__)

SUMMARY = "sweep.json"


@dataclass(frozen=True, slots=True)
class SweepJob:
    """One run of a sweep. All runs share a workspace, and with it the states of frozen layers."""

    config: RunConfig
    data: Path
    folder: Path
    workspace: Path

    def manifest(self, data_sha256: str) -> Manifest | None:
        """Return the manifest of the finished run.

        Return None if the run has not finished, or if it had another configuration or other data.
        """
        try:
            manifest = Artifact.load(self.folder / "artifact").manifest
        except ArtifactError:
            return None
        provenance = manifest.provenance
        same_config = provenance.config == dump_config(self.config)
        return manifest if same_config and provenance.data_sha256 == data_sha256 else None


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Summary of a sweep, and the reason for each failed run, by folder."""

    summary: Summary
    failures: Mapping[Path, str]


def run_sweep(
    config: RunConfig,
    data: Path,
    out: Path,
    seeds: Sequence[int],
    encoders: Sequence[str],
    ray_address: str | None,
) -> SweepResult:
    """Run all jobs that have not finished, and write `out/sweep.json`.

    A failed run does not stop the others. Raises ConfigError if two encoders would share a folder,
    or if Ray does not start.
    """
    if process_count() > 1:
        problem = "start a sweep without `accelerate launch`; only `run` uses several processes"
        raise ConfigError("sweep", "", problem)
    names = {source: re.sub(r"[^a-z0-9]+", "-", Path(source).name.lower()) for source in encoders}
    if len(set(names.values())) < len(names):
        problem = (
            "two encoders have the same last name, so their runs would share a folder; rename one"
            " encoder's folder"
        )
        raise ConfigError("--encoders", "", problem)
    folder = out.resolve()
    jobs = []
    for source, name in names.items():
        encoder = config.encoder.model_copy(update={"source": source})
        for seed in dict.fromkeys(seeds):
            own = config.model_copy(update={"encoder": encoder, "seed": seed})
            job_folder = folder / f"{name}-seed-{seed}"
            jobs.append(SweepJob(own, data.resolve(), job_folder, folder / "work"))
    digest = sources_sha256((config.source, *config.also), data)
    unfinished = [job for job in jobs if job.manifest(digest) is None]
    log.info("%d runs, of which %d are finished", len(jobs), len(jobs) - len(unfinished))
    if ray_address is None:
        problems = [run_job(job) for job in unfinished]
    else:
        problems = _run_on_ray(unfinished, ray_address)
    failures = {job.folder: text for job, text in zip(unfinished, problems, strict=True) if text}
    manifests = [(job, job.manifest(digest)) for job in jobs]
    summary = summarize(
        [
            FinishedRun(
                job.config.encoder.source, job.config.seed, job.folder.name, dict(manifest.metrics)
            )
            for job, manifest in manifests
            if manifest is not None
        ]
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / SUMMARY).write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    return SweepResult(summary, failures)


def run_job(job: SweepJob) -> str | None:
    """Run one job; return the message if it failed with a SwitchcraftError."""
    log.info("sweep run starts: %s", job.folder)
    try:
        pipeline.run(job.config, job.data, job.folder, workspace=job.workspace)
    except SwitchcraftError as exc:
        return str(exc)
    return None


def _run_on_ray(jobs: Sequence[SweepJob], address: str) -> list[str | None]:
    """Run jobs in parallel, and return the error message of each, or None.

    Each job gets one core, and one GPU if the cluster has GPUs.
    """
    with connecting(address):
        import ray  # noqa: PLC0415 - optional
        from ray.exceptions import RayError  # noqa: PLC0415

        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    remote: Any = ray.remote(run_job).options(num_cpus=1, num_gpus=int("GPU" in resources))
    problems: list[str | None] = []
    try:
        for reference in [remote.remote(job) for job in jobs]:
            try:
                problems.append(ray.get(reference))
            except RayError as exc:  # For example, the machine was lost.
                problems.append(describe_ray_error(exc))
    finally:
        ray.shutdown()
    return problems


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The headline metrics of one run, by name."""

    encoder: str
    seed: int
    folder: str
    metrics: Mapping[str, Measure]


class SeedSpread(TypedDict):
    """A metric over the seeds; `standard_deviation` is the sample's, None for a single seed."""

    mean: float
    standard_deviation: float | None
    seeds: int


class RunSummary(TypedDict):
    """One run in `sweep.json`."""

    encoder: str
    seed: int
    folder: str
    metrics: dict[str, dict[str, float]]


class Summary(TypedDict):
    """Contents of `sweep.json`: every run, and each encoder's metrics over its seeds."""

    runs: list[RunSummary]
    encoders: dict[str, dict[str, SeedSpread]]


def summarize(runs: Sequence[FinishedRun]) -> Summary:
    """Return all runs, and the mean and standard deviation of each metric for each encoder."""
    by_encoder: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_encoder.setdefault(run.encoder, []).append(run)
    encoders: dict[str, dict[str, SeedSpread]] = {}
    for encoder, group in by_encoder.items():
        encoders[encoder] = {}
        for name in group[0].metrics:
            values = [run.metrics[name].value for run in group]
            encoders[encoder][name] = SeedSpread(
                mean=statistics.fmean(values),
                standard_deviation=statistics.stdev(values) if len(values) > 1 else None,
                seeds=len(values),
            )
    return Summary(
        runs=[
            RunSummary(
                encoder=run.encoder,
                seed=run.seed,
                folder=run.folder,
                metrics={name: measure.model_dump() for name, measure in run.metrics.items()},
            )
            for run in runs
        ],
        encoders=encoders,
    )


def print_table(summary: Summary, console: Console | None = None) -> None:
    """Print a row for each run, and after each encoder's runs their mean ± standard deviation."""
    names = list(next(iter(summary["encoders"].values()), ()))
    table = Table("encoder", "seed", *(name.replace("_", " ") for name in names))
    for encoder, spreads in summary["encoders"].items():
        for run in summary["runs"]:
            if run["encoder"] == encoder:
                values = (f"{run['metrics'][name]['value']:.4g}" for name in names)
                table.add_row(Path(encoder).name, str(run["seed"]), *values)
        means = []
        for name in names:
            deviation = spreads[name]["standard_deviation"]
            shown = "" if deviation is None else f" ± {deviation:.2g}"
            means.append(f"{spreads[name]['mean']:.4g}{shown}")
        table.add_row(Path(encoder).name, "mean", *means)
        table.add_section()
    (console or Console()).print(table)
