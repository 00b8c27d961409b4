"""Transcriptions and translations of uploaded recordings."""

import asyncio
import itertools
from typing import Annotated, Any, Literal

from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from headrace.engines.whisper import TranscribeOptions, WhisperEngine
from headrace.engines.whisper.results import Transcription
from headrace.serving.config import ServeConfig
from headrace.serving.errors import ApiError, row_error
from headrace.serving.exchange import while_connected
from headrace.serving.hosted_models import HostedModels
from headrace.serving.subtitles import to_srt, to_vtt

Form_ = Literal["json", "text", "srt", "vtt", "verbose_json"]


def audio_routes(models: HostedModels, config: ServeConfig) -> APIRouter:
    """The endpoints of Whisper models."""
    routes = APIRouter(prefix="/v1/audio")
    numbers = itertools.count()

    @routes.post("/transcriptions")
    async def transcriptions(
        request: Request,
        file: Annotated[UploadFile, File()],
        model: Annotated[str, Form()],
        language: Annotated[str | None, Form()] = None,
        prompt: Annotated[str | None, Form()] = None,
        response_format: Annotated[Form_, Form()] = "json",
        temperature: Annotated[float | None, Form()] = None,
        granularities: Annotated[
            list[Literal["word", "segment"]] | None, Form(alias="timestamp_granularities[]")
        ] = None,
    ) -> Any:
        _refuse_unsupported(prompt, temperature)
        wants_words = "word" in (granularities or ())
        options = TranscribeOptions(
            language=language or None,
            task="transcribe",
            return_timestamps="word" if wants_words else "segment",
        )
        result = await _run(request, models.whisper(model), await file.read(), options)
        return _answer(result, response_format, task="transcribe", wants_words=wants_words)

    @routes.post("/translations")
    async def translations(
        request: Request,
        file: Annotated[UploadFile, File()],
        model: Annotated[str, Form()],
        prompt: Annotated[str | None, Form()] = None,
        response_format: Annotated[Form_, Form()] = "json",
        temperature: Annotated[float | None, Form()] = None,
    ) -> Any:
        _refuse_unsupported(prompt, temperature)
        options = TranscribeOptions(task="translate", return_timestamps="segment")
        result = await _run(request, models.whisper(model), await file.read(), options)
        return _answer(result, response_format, task="translate", wants_words=False)

    async def _run(
        request: Request, engine: WhisperEngine, audio: bytes, options: TranscribeOptions
    ) -> Transcription:
        name = f"http-{next(numbers)}"
        future = await run_in_threadpool(engine.submit, audio, options, request_id=name)
        waiting = asyncio.wait_for(asyncio.wrap_future(future), config.request_timeout_s)
        try:
            result = await while_connected(request, waiting)
        except TimeoutError:
            limit = f"{config.request_timeout_s:g} s"
            raise ApiError(408, f"the request took longer than {limit}", code="timeout") from None
        if result.error is not None:
            raise row_error(result.error)
        return result

    return routes


def _refuse_unsupported(prompt: str | None, temperature: float | None) -> None:
    if prompt:
        raise ApiError(400, "prompt is not supported: leave it out", param="prompt")
    if temperature:
        raise ApiError(
            400, "temperature is the engine's own affair: leave it out or send 0", param="temperature"
        )


def _answer(result: Transcription, form: Form_, *, task: str, wants_words: bool) -> Any:
    match form:
        case "json":
            return {"text": result.text}
        case "text":
            return PlainTextResponse(result.text + "\n")
        case "srt":
            return PlainTextResponse(to_srt(result.segments))
        case "vtt":
            return PlainTextResponse(to_vtt(result.segments))
        case "verbose_json":
            return _verbose(result, task, wants_words=wants_words)


def _verbose(result: Transcription, task: str, *, wants_words: bool) -> dict[str, Any]:
    segments = [
        {
            "id": number,
            "seek": 0,
            "start": segment.start_s,
            "end": segment.end_s,
            "text": segment.text,
            "tokens": list(segment.token_ids),
            "temperature": segment.temperature,
            "avg_logprob": segment.avg_logprob,
            "compression_ratio": segment.compression_ratio,
            "no_speech_prob": segment.no_speech_prob,
        }
        for number, segment in enumerate(result.segments)
    ]
    answer = {
        "task": task,
        "language": result.language,
        "duration": result.duration_s,
        "text": result.text,
        "segments": segments,
    }
    if wants_words:
        answer["words"] = [
            {"word": word.word.strip(), "start": word.start_s, "end": word.end_s}
            for segment in result.segments
            for word in segment.words
        ]
    return answer
