"""What the commands share that ask a configuration's models, and then write an artifact.

The training package chooses the questions and judges the answers. It gets the answers through a
function, which asks the configuration's deployments as a gateway does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from router_service.core.errors import ConfigError

if TYPE_CHECKING:
    from router_service.apis.conversation import Json
    from router_service.router import Router
    from router_service.settings import Settings
    from switchcraft_training.labelling.sender import Post

_SHARED: Final = ("keys", "server", "tracing", "decision_log", "database", "usage", "budgets")
"""Sections whose defaults hold while models are asked: nobody else uses this gateway, and what it
does is no traffic."""


def ask_through_gateway(
    settings: Settings, router: Router, ask: Callable[[Post], Awaitable[tuple[int, str]]]
) -> tuple[int, str]:
    """Ask these models through a gateway in this process, which nobody else reaches.

    It has no keys, limits, fallbacks and logs. `ask` gets the function that sends the body of a
    request, and returns the exit status and advice.
    """
    import httpx

    from router_service.serving.app import create_app
    from router_service.settings import CompareSettings
    from router_service.settings import Settings as DefaultSettings
    from switchcraft_training.labelling.sender import Response

    defaults = DefaultSettings()
    models = tuple(each.model_copy(update={"fallbacks": ()}) for each in settings.models)
    alone = {"publication": None, "compare": CompareSettings()}
    changes = {name: getattr(defaults, name) for name in _SHARED} | {
        "models": models,
        "router": settings.router.model_copy(update=alone),
    }
    app = create_app(settings.model_copy(update=changes), router)

    async def run() -> tuple[int, str]:
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://127.0.0.1",
            timeout=httpx.Timeout(None),  # the deployments' own time limits hold
        )

        async def post(body: Mapping[str, Json]) -> Response:
            answer = await client.post("/v1/chat/completions", json=body)
            wait = answer.headers.get("retry-after", "")
            return Response(answer.status_code, wait, answer.text)

        async with app.state.gateway.running(), client:
            return await ask(post)

    return asyncio.run(run())


def show_progress() -> None:
    """Let the training package say on stderr how far it is."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("switchcraft_training").setLevel(logging.INFO)


def agrees(command: str) -> bool:
    """Ask on the terminal whether to send the requests; raises ConfigError without a terminal."""
    if not sys.stdin.isatty():
        problem = "is needed where nobody can be asked; add it to send the requests"
        raise ConfigError(command, "--yes", problem)
    return input("Ask these models? [y/N] ").strip().lower() in {"y", "yes"}


def find_state_directory() -> Path:
    """Return the user's state directory; raises ConfigError for a user without a home directory."""
    from router_service.settings.reading import state_directory

    found = state_directory(os.environ)
    if found is None:
        problem = "is not set, and the user has no home directory; set it to a directory"
        raise ConfigError("the environment", "XDG_STATE_HOME", problem)
    return found


def show_use(settings: Settings, directory: Path, *, publish: bool) -> None:
    """Print how to use a new artifact, or publish it as a canary."""
    place = settings.router.publication
    if publish and place is not None:
        from switchcraft_training.publishing.command import publish as publish_artifact

        publish_artifact(directory, to=place, role="canary")
        print(
            f"If it does well, `switchcraft-train publish --to {place} --promote` makes it the"
            " stable release; `--withdraw canary` takes it back."
        )
        return
    print(
        f"The new artifact is {directory}\nTo use it, set `artifact: {directory}` in the section"
        f" `router` of {settings.source}, and reload or restart the gateway. `switchcraft policies"
        " --config` then shows its figures."
    )
