"""Sessions of coding agents, and what is known of a pool's models for whole tasks of agents."""

from __future__ import annotations

import re
from collections.abc import Iterable

from router_service.artifact import Artifact
from router_service.measurement.agent_tasks import TaskCandidate, agent_task_table
from router_service.measurement.held_out import single_accuracies
from router_service.requests.mapping import ArmIds, model_of
from router_service.requests.pool import Pool

CODING_CLIENTS = ("claude-cli", "claude-code", "codex", "opencode", "cline", "mini-swe-agent")
"""Beginnings of the header `user-agent` of coding agents."""

SHELL = frozenset(
    "bash container_exec exec exec_command execute_bash execute_command local_shell run_command"
    " run_in_terminal run_shell_command run_terminal_cmd shell shell_command terminal".split()
)
EDITING = frozenset(
    "apply_diff apply_patch edit edit_file file_editor insert_edit_into_file multi_edit multiedit"
    " replace replace_in_file replace_string_in_file search_replace str_replace_based_edit_tool"
    " str_replace_editor write write_file write_to_file".split()
)
READING = frozenset(
    "cat glob grep list_files ls read read_file read_many_files search_files view view_file"
    " view_image".split()
)
"""Tools' names in lower case, with underscores for other signs."""


def is_coding_session(tools: Iterable[str], user_agent: str = "") -> bool:
    """Return whether a request is a coding agent's, by its tools' names and its client.

    A coding agent has a shell, and it edits or reads files; a known one needs only one of these. A
    shell that is the only tool is mini-SWE-agent's, which edits with it.
    """
    names = {re.sub(r"\W+", "_", name.casefold()) for name in tools}
    if names == {"bash"}:
        return True
    has_shell, has_files = bool(names & SHELL), bool(names & (EDITING | READING))
    is_known = user_agent.casefold().startswith(CODING_CLIENTS)
    return has_shell or has_files if is_known else has_shell and has_files


def pool_candidates(pool: Pool, artifact: Artifact | None = None) -> tuple[TaskCandidate, ...]:
    """Return the configured models that answer conversations, at their prices.

    With an artifact, they have their accuracies on its held-out queries, too.
    """
    ids = ArmIds(agent_task_table().names)
    accuracies = {} if artifact is None else single_accuracies(artifact)
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
