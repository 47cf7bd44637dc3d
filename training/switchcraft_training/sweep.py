"""A sweep: a run for every variant of a configuration and every seed, and a table of all runs."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from router_service.artifact import Artifact, Manifest
from router_service.core.errors import (
    ArtifactError,
    ConfigError,
    MissingExtraError,
    SwitchcraftError,
)
from switchcraft_training import pipeline
from switchcraft_training.config import RunConfig, SweepConfig, dump_config
from switchcraft_training.dataset import sources_sha256
from switchcraft_training.evaluation.seeds import (
    FinishedRun,
    SweepSummary,
    summarize,
    write_summary,
)
from switchcraft_training.models.optimization import process_count

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SweepJob:
    """One run of a sweep. All runs share a workspace, and with it the states of frozen layers."""

    variant: str
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

    summary: SweepSummary
    failures: Mapping[Path, str]


def sweep_variants(config: RunConfig, encoders: Sequence[str]) -> dict[str, RunConfig]:
    """Return the configurations of a sweep by name: one for each encoder, if any, or each variant.

    Without encoders and variants, the only one is named after its encoder. Raises ConfigError if
    two encoders have the same last name, because their runs would share a folder.
    """
    single = config.model_copy(update={"sweep": SweepConfig()})
    variants = {} if encoders else config.variants()
    if variants:
        return variants
    sources = encoders or [config.encoder.source]
    for source in sources:
        name = re.sub(r"[^a-z0-9]+", "-", Path(source).name.lower())
        if name in variants:
            problem = (
                "two encoders have the same last name, so their runs would share a folder; rename"
                " one encoder's folder"
            )
            raise ConfigError("--encoders", "", problem)
        encoder = config.encoder.model_copy(update={"source": source})
        variants[name] = single.model_copy(update={"encoder": encoder})
    return variants


def sweep_seeds(config: RunConfig, seeds: Sequence[int]) -> list[int]:
    """Return the distinct seeds: the given ones, or else those of the configuration."""
    return list(dict.fromkeys(seeds or config.sweep.seeds or [config.seed]))


def run_sweep(
    config: RunConfig,
    data: Path,
    out: Path,
    seeds: Sequence[int],
    encoders: Sequence[str],
    ray_address: str | None,
) -> SweepResult:
    """Run all jobs that have not finished, and write `out/sweep.json` and `out/sweep.html`.

    Without `seeds`, the configuration's seeds are used. A failed run does not stop the others.
    Raises ConfigError if two encoders would share a folder, or if Ray does not start.
    """
    if process_count() > 1:
        problem = "start a sweep without `accelerate launch`; only `run` uses several processes"
        raise ConfigError("sweep", "", problem)
    folder = out.resolve()
    jobs = []
    for name, variant in sweep_variants(config, encoders).items():
        for seed in sweep_seeds(config, seeds):
            own = variant.model_copy(update={"seed": seed})
            job_folder = folder / f"{name}-seed-{seed}"
            jobs.append(SweepJob(name, own, data.resolve(), job_folder, folder / "work"))
    digest = sources_sha256((config.source, *config.also), data)
    unfinished = [job for job in jobs if job.manifest(digest) is None]
    log.info("%d runs, of which %d are finished", len(jobs), len(jobs) - len(unfinished))
    if ray_address is None:
        problems = [run_job(job) for job in unfinished]
    else:
        problems = _run_on_ray(unfinished, ray_address)
    failures = {job.folder: text for job, text in zip(unfinished, problems, strict=True) if text}
    finished = [
        FinishedRun.read(job.folder, job.variant, job.config, manifest)
        for job in jobs
        if (manifest := job.manifest(digest)) is not None
    ]
    summary = summarize(finished)
    write_summary(summary, out)
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

    Each job gets one core, and one GPU if the cluster has GPUs. The address `local` starts a
    cluster on this machine. Raises MissingExtraError if Ray is not installed, and ConfigError if
    there is no cluster.
    """
    if find_spec("ray") is None:
        raise MissingExtraError("--ray", "", "ray")
    import ray  # noqa: PLC0415 - optional
    from ray.exceptions import RayError  # noqa: PLC0415

    try:
        host, _, port = address.rpartition(":")
        if port.isdigit():
            # Ray itself would retry for minutes if nothing listens at the address.
            server = (host.rpartition("/")[2], int(port))
            socket.create_connection(server, timeout=10).close()
        ray.init(
            address=address,
            log_to_driver=False,
            include_dashboard=False,
            logging_level=logging.WARNING,
        )
        resources = ray.cluster_resources()
    except (RayError, ConnectionError, OSError, ValueError) as exc:
        ray.shutdown()
        raise ConfigError(f"--ray {address}", "", _last_line(exc)) from exc
    remote: Any = ray.remote(run_job).options(num_cpus=1, num_gpus=int("GPU" in resources))
    problems: list[str | None] = []
    try:
        for reference in [remote.remote(job) for job in jobs]:
            try:
                problems.append(ray.get(reference))
            except RayError as exc:  # For example, the machine was lost.
                problems.append(_last_line(exc))
    finally:
        ray.shutdown()
    return problems


def _last_line(exc: Exception) -> str:
    """Return the last line of a worker or connection error, without Ray's traceback."""
    lines = str(exc.__cause__ or exc).strip().splitlines()
    return lines[-1] if lines else type(exc).__name__
