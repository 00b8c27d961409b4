"""A worker's endpoint for Prometheus: the engine's counters, their ratios, and the rows in flight."""

import errno
import logging
import re
import threading
import weakref
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from headrace.engines.ratios import with_ratios
from headrace.pipelines.in_flight import IN_FLIGHT, Tally
from headrace.pipelines.resident import Resident

logger = logging.getLogger(__name__)

# Worker processes of one machine take the next free ports.
_MAX_PORTS = 64
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class MetricsServer:
    """Serves /metrics for as long as the process lives; it shows the resident that was given last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._resident: weakref.ref[Resident] | None = None
        self._output = ""

    def show(self, port: int, resident: Resident, output: str) -> int:
        """Begins to serve at the first free port from `port` on, once a process; gives back the port.

        Raises:
          OSError: none of the ports can be had.
        """
        with self._lock:
            self._resident, self._output = weakref.ref(resident), output
            if self._server is None:
                self._server = _bind(port, self)
                thread = threading.Thread(
                    target=self._server.serve_forever, name="headrace-metrics", daemon=True
                )
                thread.start()
                logger.info("metrics are served at port %d, /metrics", self._server.server_address[1])
            return self._server.server_address[1]

    def text(self) -> str:
        """The metrics now, in Prometheus' text format."""
        resident = self._resident() if self._resident is not None else None
        total = Tally()
        for tally in IN_FLIGHT.tallies(self._output).values():
            total = total.plus(tally)
        values = {"uncommitted_rows": float(total.rows), "uncommitted_rows_failed": float(total.failed)}
        if resident is not None:
            shown = with_ratios(resident.engine.counters())
            engine = {f"engine_{name}": float(value) for name, value in shown.items()}
            values = {**engine, **values, "engine_slots": float(resident.engine.num_slots)}
        return exposition(values)


def exposition(values: Mapping[str, float]) -> str:
    """Values as gauges of the namespace `headrace`, one a line after its type."""
    lines = []
    for name, value in sorted(values.items()):
        full = f"headrace_{_NOT_A_NAME.sub('_', name)}"
        lines += [f"# TYPE {full} gauge", f"{full} {value!r}"]
    return "\n".join([*lines, ""])


def _bind(port: int, metrics: MetricsServer) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path.partition("?")[0] in ("/", "/metrics")
            content = metrics.text().encode() if is_known else b"see /metrics\n"
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a scrape every few seconds is no news."""

    for candidate in range(port, port + _MAX_PORTS):
        try:
            return ThreadingHTTPServer(("", candidate), Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"no port from {port} to {port + _MAX_PORTS - 1} is free")


METRICS_SERVER = MetricsServer()
"""The one of this process."""
