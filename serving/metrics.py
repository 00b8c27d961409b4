"""The server's numbers for Prometheus."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.engines.ratios import RATIOS, ratios
from headrace.serving.hosted_models import HostedModels


class ServerMetrics:
    """Counts of requests by endpoint and status, their seconds; every engine's counters and ratios."""

    def __init__(self, models: HostedModels) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "headrace_http_requests", "Requests answered", ["path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "headrace_http_request_seconds",
            "Seconds from a request to the end of its answer",
            ["path"],
            registry=self.registry,
        )
        self.registry.register(_EngineCollector(models))

    def watch(self, app: ASGIApp, paths: frozenset[str]) -> ASGIApp:
        """The app, its requests counted; `paths` are counted by name, all others as one."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            path = scope["path"] if scope["path"] in paths else "other"

            async def count(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._requests.labels(path, str(message["status"])).inc()
                await send(message)

            with self._seconds.labels(path).time():
                await app(scope, receive, count)

        return watched


class _EngineCollector(Collector):
    """Counters of every engine, and their ratios as gauges."""

    def __init__(self, models: HostedModels) -> None:
        self._models = models

    def collect(self) -> Iterable[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for model, counters in self._models.counters().items():
            for name, value in counters.items():
                if name not in families:
                    text = f"The engine's {name}"
                    families[name] = CounterMetricFamily(f"headrace_{name}", text, labels=["model"])
                families[name].add_metric([model], value)
            for name, value in ratios(counters).items():
                if name not in families:
                    text = RATIOS[name].text
                    families[name] = GaugeMetricFamily(f"headrace_{name}", text, labels=["model"])
                families[name].add_metric([model], value)
        return families.values()
