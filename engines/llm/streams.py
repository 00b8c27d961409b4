"""Futures and callbacks of an engine's thread, as callers and asyncio read them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress

from headrace.engines.errors import EngineError, RequestError, RowError
from headrace.engines.llm.request import LLMRequest, RequestOutput

OnOutput = Callable[[RequestOutput], None]


async def stream_outputs(
    submit: "Callable[[OnOutput], Future[RequestOutput]]", abort: Callable[[], None]
) -> AsyncIterator[RequestOutput]:
    """The outputs of one request, the last one included; a reader that leaves before that aborts it.

    `submit` may block, and is called on a thread of its own.
    """
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[RequestOutput | BaseException] = asyncio.Queue()

    def post(item: RequestOutput | BaseException) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody reads any more
            loop.call_soon_threadsafe(inbox.put_nowait, item)

    def finish(future: "Future[RequestOutput]") -> None:
        post(future.exception() or future.result())

    is_over = False
    submitting = asyncio.ensure_future(asyncio.to_thread(submit, post))
    try:
        (await asyncio.shield(submitting)).add_done_callback(finish)
        while not is_over:
            item = await inbox.get()
            if isinstance(item, BaseException):
                is_over = True
                raise item
            is_over = item.finished
            yield item
    finally:
        if not submitting.done():
            submitting.add_done_callback(lambda _: _abort(abort))
        elif not is_over and submitting.exception() is None:
            _abort(abort)


def finished(output: RequestOutput) -> "Future[RequestOutput]":
    """A future that is done."""
    future: Future[RequestOutput] = Future()
    future.set_result(output)
    return future


def errors_to_outputs(future: "Future[RequestOutput]", request: LLMRequest) -> "Future[RequestOutput]":
    """The same future, but a refused request gives an output that says why."""
    outer: Future[RequestOutput] = Future()
    outer.set_running_or_notify_cancel()

    def forward(inner: "Future[RequestOutput]") -> None:
        error = inner.exception()
        if error is None:
            outer.set_result(inner.result())
        elif isinstance(error, RequestError):
            outer.set_result(
                RequestOutput(
                    request_id=request.request_id,
                    prompt_token_ids=request.prompt_token_ids,
                    metadata=request.metadata,
                    quality_flags=request.quality_flags,
                    error=RowError.of(error),
                )
            )
        else:
            outer.set_exception(error)

    future.add_done_callback(forward)
    return outer


def _abort(abort: Callable[[], None]) -> None:
    with suppress(EngineError):  # an engine that has stopped has dropped the request already
        abort()
