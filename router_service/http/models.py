"""`GET /v1/models`."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request

from router_service.core.errors import ModelNotFoundError
from router_service.http.state import gateway_of

routes = APIRouter()


class ModelCard(BaseModel):
    """A model as OpenAI lists it; `created` is unknown here, and 0."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "switchcraft"


class ModelList(BaseModel):
    """All models, as OpenAI lists them."""

    object: str = "list"
    data: list[ModelCard]


@routes.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """List every name that a request's `model` may have."""
    names = gateway_of(request).engine.planner.names
    return ModelList(data=[ModelCard(id=name) for name in names])


@routes.get("/v1/models/{model:path}")
async def get_model(request: Request, model: str) -> ModelCard:
    """Return one model; its name may have slashes."""
    names = gateway_of(request).engine.planner.names
    if model not in names:
        raise ModelNotFoundError(model[:200], names)
    return ModelCard(id=model)
