"""The models that a server has, loaded beside it."""

import logging
import threading
import time

from headrace.engines.llm import LLM, EngineConfig
from headrace.engines.whisper import WhisperConfig, WhisperEngine
from headrace.serving.config import ServeConfig
from headrace.serving.errors import ApiError

logger = logging.getLogger(__name__)


class HostedModels:
    """Models by their names in the API. They load one after another, on a thread of their own."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._engines: dict[str, LLM | WhisperEngine] = {}
        self._failures: dict[str, str] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self.created_s = int(time.time())
        self._thread = threading.Thread(target=self._load, name="headrace-load", daemon=True)

    @property
    def is_ready(self) -> bool:
        """Whether every model is loaded."""
        return len(self._engines) == len(self._config.models)

    @property
    def failures(self) -> dict[str, str]:
        """Why models could not be loaded, by name."""
        return dict(self._failures)

    def start(self) -> None:
        """Begins to load."""
        self._thread.start()

    def text(self, name: str) -> LLM:
        """A text model.

        Raises:
          ApiError: 404 where there is none of this name, 503 where it is not loaded yet.
        """
        engine = self._find(name)
        if not isinstance(engine, LLM):
            raise ApiError(400, f"{name} is a Whisper model: it transcribes audio", code="model_kind")
        return engine

    def whisper(self, name: str) -> WhisperEngine:
        """A Whisper model.

        Raises:
          ApiError: as `text`.
        """
        engine = self._find(name)
        if not isinstance(engine, WhisperEngine):
            raise ApiError(400, f"{name} is a text model: it takes no audio", code="model_kind")
        return engine

    def counters(self) -> dict[str, dict[str, float]]:
        """The counters of each model that is loaded."""
        return {name: engine.counters() for name, engine in list(self._engines.items())}

    def close(self) -> None:
        """Closes the engines, after the one that is being loaded."""
        with self._lock:
            self._is_closed = True
        if self._thread.is_alive():
            self._thread.join()
        for engine in self._engines.values():
            engine.close()

    def _find(self, name: str) -> LLM | WhisperEngine:
        if name not in self._config.names:
            raise ApiError(
                404,
                f"there is no model {name!r}: GET /v1/models lists them",
                code="model_not_found",
                param="model",
            )
        if name in self._failures:
            raise ApiError(503, f"{name} could not be loaded: {self._failures[name]}", code="model_failed")
        if name not in self._engines:
            raise ApiError(503, f"{name} is still loading: try again later", code="model_loading")
        return self._engines[name]

    def _load(self) -> None:
        for number, (name, spec) in enumerate(zip(self._config.names, self._config.models, strict=True)):
            if self._is_closed:
                return
            try:
                self._engines[name] = self._open(spec, is_text=number < len(self._config.model))
            except Exception as error:
                logger.exception("%s could not be loaded", name)
                self._failures[name] = " ".join(str(error).split())

    def _open(self, spec: str, *, is_text: bool) -> LLM | WhisperEngine:
        config = self._config
        if not is_text:
            return WhisperEngine(spec, WhisperConfig(dtype=config.dtype))
        chosen = {"max_num_seqs": config.max_num_seqs, "max_model_len": config.max_model_len}
        given = {name: value for name, value in chosen.items() if value is not None}
        options = {
            "deterministic": config.deterministic,
            "speculative": config.speculative,
            "parallel": config.parallel,
        }
        return LLM(spec, EngineConfig.of(dtype=config.dtype, **options, **given))
