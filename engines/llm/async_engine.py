"""The text engine for asyncio: many requests at once, whole or growing, in order or as they come."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

from headrace.engines.errors import RowError
from headrace.engines.llm.conversation import ChatOptions
from headrace.engines.llm.llm import LLM, Params, Prompts
from headrace.engines.llm.prompts import Prompt, TextRequest, list_params, list_prompts
from headrace.engines.llm.request import RequestOutput

ProgressCallback = Callable[[int, int], None]
"""Called with the prompts that are finished and all there are."""


class Event(NamedTuple):
    """One thing that happened to one of several prompts."""

    index: int
    """Number of the prompt, from 0."""
    kind: Literal["text", "error", "final"]
    data: str | RowError | RequestOutput
    """text: the new text; error: why the prompt failed; final: its whole output."""


class AsyncEngine:
    """An LLM whose outputs are awaited. Any number of tasks of any event loop may share it."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    @property
    def driver_name(self) -> str:
        """Name of the thread that owns the engine."""
        return self.llm.driver.driver_name

    @property
    def processor(self) -> Any:
        """The model's tokenizer, of transformers."""
        return self.llm.processor

    @property
    def num_used_slots(self) -> int:
        """Rows that the engine works on at the moment."""
        return self.llm.driver.num_used_slots

    def get_total_concurrent_requests(self) -> int:
        """Requests that were submitted and are not finished."""
        return self.llm.driver.get_total_concurrent_requests()

    async def compile(
        self,
        num_tokens: int | Sequence[int] | None = None,
        num_seqs: int | Sequence[int] | None = None,
        *,
        sampling_params: Params = None,
    ) -> list[str]:
        """Compiles programs while other tasks go on, and names those that are new: see `LLM.precompile`."""
        compiled = partial(self.llm.precompile, num_tokens, num_seqs, sampling_params=sampling_params)
        return await asyncio.to_thread(compiled)

    def stop(self, *, drain: bool = True) -> None:
        """Closes the engine after the requests it has (`drain`), else at once."""
        self.llm.close(drain=drain)

    def count_tokens(self, text_or_conversation: Prompt, chat: ChatOptions | None = None) -> int:
        """Tokens of a text, or of the messages of a conversation under the chat template."""
        return self.llm.count_tokens(text_or_conversation, chat)

    def complete(
        self, request: TextRequest, *, timeout_s: float | None = None
    ) -> AsyncIterator[RequestOutput]:
        """The outputs of a request while its text grows (as its output_kind says), for `async for`.

        The last one is `finished`; each carries the request's metadata. Leaving the loop aborts the request.

        Raises:
          TypeError: it is no TextRequest.
          QueueFullError (a RuntimeError, from the loop): the queue stayed full for `timeout_s` seconds.
        """
        if not isinstance(request, TextRequest):
            raise TypeError(f"complete takes a TextRequest, not {type(request).__name__}")
        return self.llm.stream(request, timeout_s=timeout_s)

    def generate(self, prompts: Prompts, sampling_params: Params = None, *, stream: bool = False) -> Any:
        """Awaited: the outputs of a list of prompts in its order, or that of one prompt.

        With `stream` an async iterator instead: of the outputs of one prompt as they grow, or of lists with
        one output a prompt, of all the text so far (None: nothing yet), whenever one of them has grown.

        Raises:
          TypeError: params that are neither SamplingParams nor dicts.
          ValueError: more or fewer sampling params than prompts.
        """
        each, is_one = list_prompts(prompts)
        requests = _requests(each, sampling_params)
        if not stream:
            return self._generate(requests, is_one)
        if is_one:
            return self.complete(replace(requests[0], output_kind="cumulative"))
        return self._stream_together(requests)

    def generate_concurrently(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Params = None,
        *,
        max_concurrent: int = 64,
        progress_callback: ProgressCallback | None = None,
        stream: bool = False,
    ) -> Any:
        """Awaited: the outputs of prompts in their order, at most `max_concurrent` in the engine at once.

        0 or less runs one after another. A prompt that fails has an output with `error`. With `stream` an
        async iterator of Events, as they happen: the texts of each prompt, then its "error" or "final".
        `progress_callback(completed, total)` is called in the event loop after each prompt.

        Raises:
          ValueError: more or fewer sampling params than prompts.
        """
        requests = _requests(list(prompts), sampling_params)
        width = max(1, max_concurrent)
        events = self._run_concurrently(requests, width, progress_callback, stream)
        return events if stream else _outputs_in_order(events, len(requests))

    async def _generate(self, requests: list[TextRequest], is_one: bool) -> Any:
        outputs = await asyncio.gather(*map(self._finish, requests))
        return outputs[0] if is_one else outputs

    async def _finish(self, request: TextRequest) -> RequestOutput:
        output: RequestOutput | None = None
        async for each in self.complete(request):
            output = each
        assert output is not None
        return output

    async def _stream_together(
        self, requests: list[TextRequest]
    ) -> AsyncIterator[list[RequestOutput | None]]:
        latest: list[RequestOutput | None] = [None] * len(requests)

        async def read(index: int, events: "asyncio.Queue[tuple[int, RequestOutput]]") -> None:
            async for output in self.complete(replace(requests[index], output_kind="cumulative")):
                await events.put((index, output))

        async for index, output in _merge(read, len(requests), len(requests)):
            latest[index] = output
            yield list(latest)

    async def _run_concurrently(
        self, requests: list[TextRequest], width: int, progress: ProgressCallback | None, stream: bool
    ) -> AsyncIterator[Event]:
        completed = 0

        async def read(index: int, events: "asyncio.Queue[Event]") -> None:
            async for event in self._events(index, requests[index], stream=stream):
                await events.put(event)

        async for event in _merge(read, len(requests), width):
            if event.kind != "text":
                completed += 1
                if progress is not None:
                    progress(completed, len(requests))
            yield event

    async def _events(self, index: int, request: TextRequest, *, stream: bool) -> AsyncIterator[Event]:
        """The events of one prompt; errors of the engine, too, are those of the prompt."""
        texts: list[RequestOutput] = []
        try:
            async for output in self.complete(replace(request, output_kind="delta" if stream else "final")):
                texts.append(output)
                if stream and output.text:
                    yield Event(index, "text", output.text)
        except RuntimeError as error:  # QueueFullError or EngineError
            yield Event(index, "error", RowError("engine", " ".join(str(error).split())))
            return
        last = texts[-1]
        yield (
            Event(index, "final", _joined(texts)) if last.error is None else Event(index, "error", last.error)
        )


async def _outputs_in_order(events: AsyncIterator[Event], count: int) -> list[RequestOutput]:
    outputs: dict[int, RequestOutput] = {}
    async for event in events:
        match event.data:
            case RequestOutput():
                outputs[event.index] = event.data
            case RowError():
                outputs[event.index] = RequestOutput(request_id=str(event.index), error=event.data)
    return [outputs[index] for index in range(count)]


async def _merge(
    read: Callable[..., Coroutine[Any, Any, None]], count: int, width: int
) -> AsyncIterator[Any]:
    """What `read(index, queue)` puts into the queue for each index, `width` at a time, as it comes."""
    events: asyncio.Queue[Any] = asyncio.Queue(maxsize=256)
    room = asyncio.Semaphore(width)

    async def run(index: int) -> None:
        async with room:
            await read(index, events)

    async def run_all() -> None:
        await asyncio.gather(*map(run, range(count)))

    running = asyncio.ensure_future(run_all())
    try:
        while not (running.done() and events.empty()):
            getting = asyncio.ensure_future(events.get())
            await asyncio.wait({getting, running}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                yield getting.result()
            else:
                getting.cancel()
        running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _joined(deltas: list[RequestOutput]) -> RequestOutput:
    """The whole output, put together from its deltas; a single one is whole already."""
    last = deltas[-1]
    if len(deltas) == 1:
        return last
    completions = []
    for number, completion in enumerate(last.outputs):
        parts = [part for delta in deltas for part in delta.outputs if part.index == completion.index]
        text = "".join(part.text for part in parts)
        tokens = tuple(token for part in parts for token in part.token_ids)
        completions.append(replace(last.outputs[number], text=text, token_ids=tokens))
    return replace(last, outputs=tuple(completions))


def _requests(prompts: list[Prompt], params: Params) -> list[TextRequest]:
    each = list_params(params, len(prompts))
    return [TextRequest(prompt=prompt, params=own) for prompt, own in zip(prompts, each, strict=True)]
