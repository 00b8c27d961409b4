"""Runs the application until it is told to stop."""

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator

import uvicorn
from prometheus_client import start_http_server

from headrace.serving.app import Application, create_app
from headrace.serving.config import ServeConfig

logger = logging.getLogger(__name__)


def serve(config: ServeConfig) -> None:
    """Serves until SIGTERM or SIGINT; requests in flight are finished first.

    Raises:
      ConfigError: the API keys cannot be read.
      OSError: a port is taken, or a certificate cannot be read.
    """
    app = create_app(config)
    with metrics_server(config, app):
        server = make_server(config, app)
        scheme = "http" if config.tls_cert_file is None else "https"
        logger.info("listening at: %s://%s:%d", scheme, config.host, config.port)
        server.run()


@contextlib.contextmanager
def metrics_server(config: ServeConfig, app: Application) -> Iterator[None]:
    """The Prometheus metrics on a port of their own meanwhile, unless they are turned off.

    Raises:
      OSError: the port is taken.
    """
    if config.metrics_port is not None and config.metrics_port < 0:
        yield
        return
    port = config.port + 1 if config.metrics_port is None else config.metrics_port
    server, thread = start_http_server(port, config.host, registry=app.metrics.registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_server(config: ServeConfig, app: Application) -> uvicorn.Server:
    """The HTTP server; `run` it, and it listens."""
    return _Server(
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


class _Server(uvicorn.Server):
    """Stops on a signal without ending the process by it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # no signal reaches it
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
