"""The OpenAI-compatible HTTP application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from headrace.serving.audio_routes import audio_routes
from headrace.serving.config import ServeConfig
from headrace.serving.errors import ApiError, add_error_handlers
from headrace.serving.gate import Gate, read_api_keys
from headrace.serving.hosted_models import HostedModels
from headrace.serving.metrics import ServerMetrics
from headrace.serving.text_routes import text_routes


class Application(NamedTuple):
    """The application and what stands behind it."""

    asgi: ASGIApp
    """To be run by an ASGI server."""
    api: FastAPI
    """The endpoints alone, without key and limits; its OpenAPI description is at /openapi.json."""
    models: HostedModels
    metrics: ServerMetrics


def create_app(config: ServeConfig) -> Application:
    """The application; its models begin to load when it is started.

    Raises:
      ConfigError: the API keys cannot be read.
    """
    api_keys = read_api_keys(config.api_key_file)
    models = HostedModels(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        models.start()
        yield
        await run_in_threadpool(models.close)

    api = FastAPI(title="headrace", lifespan=lifespan, docs_url=None, redoc_url=None)
    add_error_handlers(api)
    _add_state_routes(api, models, config)
    api.include_router(text_routes(models, config))
    api.include_router(audio_routes(models, config))
    metrics = ServerMetrics(models)
    paths = frozenset(api.openapi()["paths"])
    return Application(metrics.watch(Gate(api, config, api_keys), paths), api, models, metrics)


def _add_state_routes(api: FastAPI, models: HostedModels, config: ServeConfig) -> None:
    @api.get("/liveness")
    async def liveness() -> dict[str, str]:
        return {"status": "alive"}

    @api.get("/readiness")
    async def readiness() -> dict[str, str]:
        if not models.is_ready:
            failures = "; ".join(f"{name}: {why}" for name, why in models.failures.items())
            raise ApiError(503, failures or "models are still loading", code="not_ready")
        return {"status": "ready"}

    @api.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name, models) for name in config.names]}

    @api.get("/v1/models/{name:path}")
    async def show_model(name: str) -> dict[str, Any]:
        if name not in config.names:
            raise ApiError(
                404, f"there is no model {name!r}: GET /v1/models lists them", code="model_not_found"
            )
        return _model(name, models)


def _model(name: str, models: HostedModels) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": models.created_s, "owned_by": "headrace"}
