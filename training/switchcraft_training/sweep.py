"""A sweep: a run for every variant of a configuration and every seed, and a table of all runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from router_service.artifact import Artifact, Manifest
from router_service.core.errors import ArtifactError, SwitchcraftError
from switchcraft_training import pipeline
from switchcraft_training.config import RunConfig, SweepConfig, dump_config
from switchcraft_training.dataset import sources_sha256
from switchcraft_training.evaluation.seeds import (
    FinishedRun,
    print_table,
    summarize,
    write_summary,
)

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


def sweep_variants(config: RunConfig) -> dict[str, RunConfig]:
    """Return the configurations of a sweep by name; without variants, the one that there is."""
    return config.variants() or {config.name: config.model_copy(update={"sweep": SweepConfig()})}


def sweep_seeds(config: RunConfig, seeds: Sequence[int]) -> list[int]:
    """Return the distinct seeds: the given ones, or else those of the configuration."""
    return list(dict.fromkeys(seeds or config.sweep.seeds or [config.seed]))


def run_sweep(config: RunConfig, data: Path, out: Path, seeds: Sequence[int]) -> dict[Path, str]:
    """Run all jobs that have not finished, and return the reason of each failed run, by folder.

    Prints the table of all runs, and writes it to `out/sweep.json` and `out/sweep.html`.
    Without `seeds`, the configuration's seeds are used. A failed run does not stop the others.
    """
    folder = out.resolve()
    jobs = []
    for name, variant in sweep_variants(config).items():
        for seed in sweep_seeds(config, seeds):
            own = variant.model_copy(update={"seed": seed})
            job_folder = folder / f"{name}-seed-{seed}"
            jobs.append(SweepJob(name, own, data.resolve(), job_folder, folder / "work"))
    digest = sources_sha256((config.source, *config.also), data)
    unfinished = [job for job in jobs if job.manifest(digest) is None]
    log.info("%d runs, of which %d are finished", len(jobs), len(jobs) - len(unfinished))
    problems = [run_job(job) for job in unfinished]
    failures = {job.folder: text for job, text in zip(unfinished, problems, strict=True) if text}
    finished = [
        FinishedRun.read(job.folder, job.variant, job.config, manifest)
        for job in jobs
        if (manifest := job.manifest(digest)) is not None
    ]
    variants = summarize(finished)
    write_summary(variants, out)
    print_table(variants)
    return failures


def run_job(job: SweepJob) -> str | None:
    """Run one job; return the message if it failed with a SwitchcraftError."""
    log.info("sweep run starts: %s", job.folder)
    try:
        pipeline.run(job.config, job.data, job.folder, workspace=job.workspace)
    except SwitchcraftError as exc:
        return str(exc)
    return None
