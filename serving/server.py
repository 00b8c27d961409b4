"""Runs the application until it is told to stop."""

import contextlib
import logging
import signal
from collections.abc import Iterator

import uvicorn
from prometheus_client import start_http_server

from headrace.serving.app import create_app
from headrace.serving.config import ServeConfig

logger = logging.getLogger(__name__)


def serve(config: ServeConfig) -> None:
    """Serves until SIGTERM or SIGINT; requests in flight are finished first.

    Raises:
      ConfigError: the API keys cannot be read.
      OSError: a port is taken, or a certificate cannot be read.
    """
    app = create_app(config)
    metrics_port = config.port + 1 if config.metrics_port is None else config.metrics_port
    if metrics_port >= 0:
        start_http_server(metrics_port, config.host, registry=app.metrics.registry)
    server = _Server(
        uvicorn.Config(
            app.asgi,
            host=config.host,
            port=config.port,
            ssl_certfile=config.tls_cert_file,
            ssl_keyfile=config.tls_key_file,
            log_level="warning",
            lifespan="on",
            timeout_graceful_shutdown=int(config.drain_timeout_s),
        )
    )
    scheme = "http" if config.tls_cert_file is None else "https"
    logger.info("listening at: %s://%s:%d", scheme, config.host, config.port)
    server.run()


class _Server(uvicorn.Server):
    """Stops on a signal without ending the process by it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
