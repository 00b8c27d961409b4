"""Chat, completions and token counts."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from headrace.engines.llm import LLM, TextRequest
from headrace.engines.openai import Answer, ChatBody, CompletionBody, CountBody, GenerateBody, Piece
from headrace.serving.config import ServeConfig
from headrace.serving.errors import ApiError
from headrace.serving.exchange import pieces, while_connected
from headrace.serving.hosted_models import HostedModels


def text_routes(models: HostedModels, config: ServeConfig) -> APIRouter:
    """The endpoints of text models."""
    routes = APIRouter(prefix="/v1")

    @routes.post("/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Any:
        llm = models.text(body.model)
        requests = body.requests(llm.max_model_len)
        answer = Answer(body.model, len(requests), is_chat=True, num_top=body.top_logprobs or 0)
        return await _answer(llm, requests, answer, body, request)

    @routes.post("/completions")
    async def completions(body: CompletionBody, request: Request) -> Any:
        llm = models.text(body.model)
        requests = body.requests(llm.max_model_len)
        if not requests:
            raise ApiError(400, "prompt is an empty list: give at least one", param="prompt")
        num_prompts = len(requests) // body.num_choices
        answer = Answer(body.model, len(requests), is_chat=False, num_prompts=num_prompts)
        return await _answer(llm, requests, answer, body, request)

    @routes.post("/count_tokens")
    async def count_tokens(body: CountBody) -> dict[str, Any]:
        counted = body.messages if body.text is None else body.text
        if counted is None or (body.text is not None and body.messages is not None):
            raise ApiError(400, "give either text or messages")
        count = await run_in_threadpool(models.text(body.model).count_tokens, counted)
        return {"model": body.model, "count": count}

    async def _answer(
        llm: LLM, requests: list[TextRequest], answer: Answer, body: GenerateBody, request: Request
    ) -> Any:
        stream = pieces(llm, requests, config.request_timeout_s)
        if not body.stream:
            return await while_connected(request, _collect(stream, answer))
        first = await anext(stream)  # what is refused is answered with a status of its own
        return StreamingResponse(
            _events(first, stream, answer, wants_usage=body.wants_usage),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    return routes


async def _collect(stream: AsyncIterator[Piece], answer: Answer) -> dict[str, Any]:
    async with aclosing(stream) as each:  # pyright: ignore[reportArgumentType]
        async for piece in each:
            answer.add(piece)
    return answer.whole()


async def _events(
    first: Piece, stream: AsyncIterator[Piece], answer: Answer, *, wants_usage: bool
) -> AsyncIterator[str]:
    """The answer as server-sent events; an error after the first one is an event, too."""
    async with aclosing(stream) as rest:  # pyright: ignore[reportArgumentType]
        for chunk in answer.opening():
            yield _event(chunk)
        answer.add(first)
        yield _event(answer.chunk(first))
        try:
            async for piece in rest:
                answer.add(piece)
                yield _event(answer.chunk(piece))
        except (ApiError, RuntimeError) as error:
            yield _event(
                {"error": {"message": str(error), "type": "server_error", "param": None, "code": None}}
            )
            return
    if wants_usage:
        yield _event(answer.usage_chunk())
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
