"""Models for whole tasks of agents: what is known of each model of a pool."""

from __future__ import annotations

from collections.abc import Iterable

from router_service.artifact import Artifact
from router_service.measurement.agent_tasks import TaskCandidate, agent_task_table
from router_service.measurement.held_out import single_accuracies
from router_service.requests.mapping import ArmIds, model_of
from router_service.requests.pool import Pool


def pool_candidates(pool: Pool, artifact: Artifact) -> tuple[TaskCandidate, ...]:
    """Return the configured models that answer conversations, at their prices."""
    ids, accuracies = ArmIds(agent_task_table().names), single_accuracies(artifact)
    arms = {model.name: arm for arm, model in pool.by_arm.items()}
    models = {model.name: model for model in pool.models.values()}

    def accuracy(name: str) -> float | None:
        measure = accuracies.get(arms.get(name, ""))
        return None if measure is None else measure.value

    return tuple(
        TaskCandidate(model.name, model_of(model, ids), model.price, accuracy(model.name))
        for model in models.values()
        if any(deployment.apis for deployment in model.deployments)
    )


def named_candidates(names: Iterable[str], artifact: Artifact) -> tuple[TaskCandidate, ...]:
    """Return models by name or id, at the prices at which they were measured."""
    ids, arm_ids = ArmIds(agent_task_table().names), ArmIds(artifact.manifest.stands_for)
    accuracies = single_accuracies(artifact)

    def accuracy(name: str) -> float | None:
        measure = accuracies.get(arm_ids.by_name(name) or "")
        return None if measure is None else measure.value

    return tuple(
        TaskCandidate(name, ids.by_model(name), None, accuracy(name))
        for name in dict.fromkeys(names)
    )
