"""Errors in OpenAI's form."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from headrace.engines import EngineError, QueueFullError, RowError

RETRY_AFTER_S = "1"


class ApiError(Exception):
    """An answer other than 200."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


def row_error(error: RowError) -> ApiError:
    """The answer to a request that the engine refused."""
    return ApiError(499 if error.kind == "aborted" else 400, error.message, code=error.kind)


def error_response(
    status: int, message: str, code: str | None = None, param: str | None = None
) -> JSONResponse:
    """{"error": {message, type, param, code}}; with Retry-After where trying again may help."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    content = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    headers = {"Retry-After": RETRY_AFTER_S} if status in (429, 503) else None
    return JSONResponse(content, status_code=status, headers=headers)


def add_error_handlers(app: FastAPI) -> None:
    """Has every error answered in OpenAI's form."""

    @app.exception_handler(ApiError)
    async def on_api_error(_: Request, error: ApiError) -> JSONResponse:
        return error_response(error.status, str(error), error.code, error.param)

    @app.exception_handler(HTTPException)
    async def on_http_error(_: Request, error: HTTPException) -> JSONResponse:
        return error_response(error.status_code, str(error.detail), getattr(error, "code", None))

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return error_response(400, f"{place or 'body'}: {first['msg']}", "invalid_value", place or None)

    @app.exception_handler(ValueError)
    async def on_value_error(_: Request, error: ValueError) -> JSONResponse:
        return error_response(400, " ".join(str(error).split()), getattr(error, "kind", None))

    @app.exception_handler(QueueFullError)
    async def on_full(_: Request, error: QueueFullError) -> JSONResponse:
        return error_response(429, str(error), "queue_full")

    @app.exception_handler(EngineError)
    async def on_engine_error(_: Request, error: EngineError) -> JSONResponse:
        return error_response(503, str(error), "engine")
