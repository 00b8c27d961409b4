"""Futures and callbacks of an engine's thread, read from asyncio."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress

from headrace.engines.errors import EngineError
from headrace.engines.llm.request import RequestOutput

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


def _abort(abort: Callable[[], None]) -> None:
    with suppress(EngineError):  # an engine that has stopped has dropped the request already
        abort()
