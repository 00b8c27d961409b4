"""Requests of one HTTP call in the engine: their outputs together, aborted when the client leaves."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request

from headrace.engines.llm import LLM, TextRequest
from headrace.engines.openai import Piece
from headrace.serving.errors import ApiError, row_error

T = TypeVar("T")


async def pieces(llm: LLM, requests: Sequence[TextRequest], timeout_s: float) -> AsyncIterator[Piece]:
    """The outputs of all the requests as they come. Leaving the loop aborts those that are not finished.

    Raises:
      ApiError: a request was refused, or all together took longer than `timeout_s`.
      QueueFullError: the engine takes no more.
    """
    inbox: asyncio.Queue[Piece | Exception] = asyncio.Queue()

    async def read(index: int, request: TextRequest) -> None:
        try:
            async with aclosing(llm.stream(request, timeout_s=0.0)) as stream:  # pyright: ignore[reportArgumentType]
                async for output in stream:
                    await inbox.put(Piece(index, output) if output.error is None else row_error(output.error))
        except Exception as error:  # noqa: BLE001 - handed on to the reader
            await inbox.put(error)

    tasks = [asyncio.ensure_future(read(index, request)) for index, request in enumerate(requests)]
    num_left = len(tasks)
    deadline_s = time.monotonic() + timeout_s
    try:
        while num_left:
            item = await asyncio.wait_for(inbox.get(), max(0.0, deadline_s - time.monotonic()))
            if isinstance(item, Exception):
                raise item
            num_left -= item.output.finished
            yield item
    except TimeoutError:
        raise ApiError(408, f"the request took longer than {timeout_s:g} s", code="timeout") from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; it is cancelled when the client leaves before.

    Raises:
      ApiError: the client has left (nobody reads the answer).
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_for_leave(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "the client has left")
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _wait_for_leave(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
