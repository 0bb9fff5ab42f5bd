"""Prometheus metrics of one worker. Every verb of the provider is timed, by one wrapper around the provider."""

from __future__ import annotations

import inspect
import logging
import math
import socket
import threading
import time
from bisect import bisect_left
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from itertools import accumulate
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, get_args
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from affinity.orchestration import KernelApp
from affinity.provider.contract import InstanceCounts, InstanceStatus, Provider, QueueStatistics
from affinity.redaction import redacted
from affinity.worker.measures import Measure, Measured

logger: logging.Logger = logging.getLogger("affinity.worker")

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

HYDRATE_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
ACTIVITY_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
CALL_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WorkReading: TypeAlias = tuple[QueueStatistics, InstanceCounts, Measured]
ReadWork: TypeAlias = Callable[[str | None], WorkReading | None]
"""Measures the queues and what guests keep, and counts the instances of a page, behind an id; None while the database
does not answer.
"""

WORK_SECONDS = 5.0
"""Seconds for which one reading of the database serves further scrapes."""

LIVENESS = "/live"
"""The path that answers 200 while the worker's event loop makes progress, else 503; every other one has the metrics."""

BATCH_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

UNREGISTERED: Final = "(unregistered)"
"""The label of all activities and orchestrations that no code of the worker registers: clients make up their names."""

MAX_NAMES: Final = 20
"""Names of unused resources that have a label; the others share `OTHERS`."""

OTHERS: Final = "(others)"


class Metrics:
    """The metrics of one worker, in a registry of their own, so that several workers of one process do not collide."""

    def __init__(self, worker_id: str, app: KernelApp, beside: CollectorRegistry | None = None) -> None:
        """``app``: its names are labels; all others share `UNREGISTERED`. ``beside``: a registry of the application,
        which is served with them.
        """
        self.registry: CollectorRegistry = CollectorRegistry()
        self._beside = beside
        self._labels = {"worker": worker_id}
        self._app, self._activities = app, app.activities

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"affinity_{name}", text, ("worker", *labels), registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"affinity_{name}", text, ("worker", *labels), registry=self.registry)

        def counts(name: str, text: str, *labels: str) -> defaultdict[tuple[str, ...], float]:
            collector = _Counters(f"affinity_{name}", text, self._labels, *labels)
            self.registry.register(collector)
            return collector.counts

        def histogram(name: str, text: str, bounds: Sequence[float], *labels: str) -> _Histograms:
            collector = _Histograms(f"affinity_{name}", text, bounds, self._labels, *labels)
            self.registry.register(collector)
            return collector

        self._ended = counts("activities", "Activities that ended", "activity", "outcome")
        self._orchestrations = counts("orchestrations", "Orchestrations, by outcome", "orchestration", "outcome")
        self._queued = histogram(
            "activity_queue_seconds", "Time from queueing to first start", ACTIVITY_SECONDS, "activity"
        )
        self._run = histogram("activity_run_seconds", "Time that an attempt's code ran", ACTIVITY_SECONDS, "activity")
        self._calls = histogram("provider_call_seconds", "Time of a provider verb", CALL_SECONDS, "verb")
        self._errors = counter("provider_errors", "Provider verbs that raised", "verb", "error")
        self._batches = histogram("commit_batch_size", "Requests in one group commit", BATCH_SIZES, "kind")
        self._moves = counter("session_moves", "Moves of sessions to this worker, by reason", "reason")
        text = "Time in which a session's state was brought into memory"
        self.observe_hydrate: Callable[[float], None] = histogram(
            "session_hydrate_seconds", text, HYDRATE_SECONDS
        ).observer()
        text = "Time that a session waited for a resource that it did not use before"
        self._loads = histogram("session_resource_seconds", text, HYDRATE_SECONDS, "resource")
        text = "Activities that run again, since another writer had changed what they write"
        self.count_conflict: Callable[[], None] = counter("checkpoint_conflicts", text).labels(**self._labels).inc
        text = "Sweeps of the database by this worker"
        self.count_sweep: Callable[[], None] = counter("sweeps", text).labels(**self._labels).inc
        text = "Resources that nothing uses and no worker destroys"
        self._unclaimed = gauge("unclaimed_resources", text, "resource")
        text = "Times that the worker's lease ran out"
        self.count_lease_expiry: Callable[[], None] = counter("lease_lapses", text).labels(**self._labels).inc

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Publish what ``value`` returns at each scrape."""
        gauge = Gauge(f"affinity_{name}", text, ("worker",), registry=self.registry)
        gauge.labels(**self._labels).set_function(value)

    def counter(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Publish what ``value``, which only grows, returns at each scrape."""
        self.registry.register(_Counters(f"affinity_{name}", text, self._labels, total=value))

    def count_activity(self, activity: str, outcome: str) -> None:
        """Count an activity that ended, or was given back."""
        self._ended[activity if activity in self._activities else UNREGISTERED, outcome] += 1

    def count_orchestration(self, orchestration: str, outcome: str) -> None:
        """Count an instance that began, ended, continued as new, or was suspended."""
        known = self._app.find_orchestration(orchestration) is not None
        self._orchestrations[orchestration if known else UNREGISTERED, outcome] += 1

    def observe_load(self, resource: str, seconds: float) -> None:
        """Record for how long a session has waited for a resource; of many names, `MAX_NAMES` have a label."""
        key = (resource,)
        is_shown = key in self._loads.buckets or len(self._loads.buckets) < MAX_NAMES
        self._loads.buckets[key if is_shown else (OTHERS,)].observe(seconds)

    def observe_queue(self, activity: str, seconds: float) -> None:
        """Record for how long an activity was queued before its first start."""
        self._queued.buckets[activity if activity in self._activities else UNREGISTERED,].observe(seconds)

    def observe_run(self, activity: str, seconds: float) -> None:
        """Record for how long an attempt has run."""
        self._run.buckets[activity if activity in self._activities else UNREGISTERED,].observe(seconds)

    def work(self, read: ReadWork, late: Mapping[str, tuple[str, str]], measures: Iterable[Measure] = ()) -> None:
        """Publish what ``read`` returns of the database; it is called in the thread of a scrape, at most every
        `WORK_SECONDS`. Instances are counted page by page, one at a scrape, over and over. ``late``: for the guests in
        `QueueStatistics.late`, the name and the text of a gauge. ``measures``: of guests.
        """
        self.registry.register(_WorkGauges(read, self._labels, late, measures))

    def batch(self, kind: str) -> Callable[[int], None]:
        """Return an observer for the sizes of one kind of batch."""
        return self._batches.observer(kind)

    def count_move(self, reason: str) -> None:
        """Count a session that has moved here."""
        self._moves.labels(**self._labels, reason=reason).inc()

    def show_unclaimed(self, numbers: Mapping[str, int]) -> None:
        """Publish how many unused resources of each name remain; of many names, `MAX_NAMES` have a label."""
        self._unclaimed.clear()
        shown = dict(Counts(numbers).most_common(MAX_NAMES))
        if left := sum(numbers.values()) - sum(shown.values()):
            shown[OTHERS] = left
        for name, number in shown.items():
            self._unclaimed.labels(**self._labels, resource=name).set(number)

    def observed(self, provider: Provider) -> Provider:
        """Return the provider with every verb timed and its errors counted."""
        return cast("Provider", _Observed(provider, self))

    def timed(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call`` with its time and errors recorded under ``verb``."""
        observe = self._calls.observer(verb)

        @wraps(call)
        async def observed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return await call(*args, **kwargs)
            except Exception as error:
                self._errors.labels(**self._labels, verb=verb, error=type(error).__name__).inc()
                raise
            finally:
                observe(time.perf_counter() - start)

        return observed

    def serve(self, host: str, port: int, is_alive: Callable[[], bool]) -> tuple[int, Callable[[], None]]:
        """Serve the metrics over HTTP, and at `LIVENESS` whether the worker is alive, from a thread of its own; returns
        the port and how to stop.

        Raises:
            OSError: the port is taken, or this machine does not have the address.
        """
        served: Any = self.registry if self._beside is None else _Joined(self.registry, self._beside)
        application = _with_liveness(make_wsgi_app(served), is_alive)
        server = make_server(host, port, application, _Server6 if ":" in host else _Server, handler_class=_Quiet)
        thread = threading.Thread(target=server.serve_forever, name="affinity-metrics", daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return server.server_port, stop


class _Joined:
    """The metrics of a worker, and behind them those of the application: an error there hides none of the worker's."""

    def __init__(self, own: Any, beside: Any) -> None:
        self._own, self._beside = own, beside

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of both."""
        yield from self._own.collect()
        try:
            found = list(self._beside.collect())
        except Exception as error:
            logger.exception("the metrics of the application's registry cannot be collected", exc_info=redacted(error))
            return
        yield from found

    def restricted_registry(self, names: Iterable[str]) -> _Joined:
        """Return the metrics of these names."""
        wanted = list(names)
        return _Joined(self._own.restricted_registry(wanted), self._beside.restricted_registry(wanted))


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def _with_liveness(metrics: WSGIApplication, is_alive: Callable[[], bool]) -> WSGIApplication:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != LIVENESS:
            return metrics(environ, start_response)
        status, text = ("200 OK", b"ok\n") if is_alive() else ("503 Service Unavailable", b"the event loop hangs\n")
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text]

    return application


class _Counters(Collector):
    """A counter for every turn: the event loop only adds to a dictionary by label values; a scrape formats it.

    ``total``: for a counter without labels, the function that is read in place of the dictionary.
    """

    def __init__(
        self, name: str, text: str, fixed: Mapping[str, str], *labels: str, total: Callable[[], float] | None = None
    ) -> None:
        self.counts: defaultdict[tuple[str, ...], float] = defaultdict(int)
        self._name, self._text, self._fixed, self._labels, self._total = name, text, fixed, labels, total

    def collect(self) -> Iterator[Metric]:
        """Called by the registry, in the thread of a scrape."""
        if self._total is not None:
            self.counts[()] = self._total()
        family = CounterMetricFamily(self._name, self._text, labels=(*self._fixed, *self._labels))
        for values, count in self.counts.copy().items():
            family.add_metric((*self._fixed.values(), *values), count)
        yield family


class _Buckets:
    """The counts of a histogram for one set of label values."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class _Histograms(Collector):
    """A histogram for every activity, commit and call: the event loop only counts in a list; a scrape formats it."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], fixed: Mapping[str, str], *labels: str) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._fixed, self._labels = fixed, labels
        self.buckets: defaultdict[tuple[str, ...], _Buckets] = defaultdict(partial(_Buckets, bounds))

    def observer(self, *values: str) -> Callable[[float], None]:
        """Counts one value under these labels."""
        return self.buckets[values].observe

    def collect(self) -> Iterator[Metric]:
        """Called by the registry, in the thread of a scrape."""
        family = HistogramMetricFamily(self._name, self._text, labels=[*self._fixed, *self._labels])
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, found in self.buckets.copy().items():
            counts = list(zip(bounds, accumulate(found.counts), strict=True))
            family.add_metric([*self._fixed.values(), *values], counts, found.sum)
        yield family


class _WorkGauges(Collector):
    """Gauges of the database. Nothing is published while it does not answer."""

    def __init__(
        self,
        read: ReadWork,
        fixed: Mapping[str, str],
        late: Mapping[str, tuple[str, str]],
        measures: Iterable[Measure],
    ) -> None:
        self._read = read
        self._late = late
        self._measures = [*measures]
        self._measured: Measured = {}
        self._fixed = fixed
        self._queues: QueueStatistics | None = None
        self._read_at = -math.inf
        self._after: str | None = None  # where the count of instances goes on
        self._counts: Counts[str] = Counts()  # so far
        self._instances: Mapping[str, int] = {}  # as of the last time that it came to its end

    def collect(self) -> Iterator[Metric]:
        """Called by the registry, in the thread of a scrape."""
        if time.monotonic() - self._read_at > WORK_SECONDS:
            found = self._read(self._after)
            self._queues = None if found is None else self._learn(*found)
            self._read_at = time.monotonic()
        if (queues := self._queues) is None:
            return
        instances = {**self._instances, "suspended": queues.suspended}
        yield self._gauge("instances", "Instances, by status", "status", instances)
        yield self._gauge("queued_activities", "Work items, by state", "state", queues.work_items)
        yield self._gauge("queued_messages", "Messages to instances, by state", "state", queues.messages)
        text = "Sessions that have work and no holder"
        yield self._gauge("waiting_sessions", text, None, {None: queues.waiting_sessions})
        oldest = {
            "activities": queues.oldest_work_item or 0.0,
            "messages": queues.oldest_message or 0.0,
            "sessions": queues.oldest_waiting_session or 0.0,
        }
        text = "Seconds for which the oldest one that waits could have been fetched"
        yield self._gauge("oldest_waiting_seconds", text, "queue", oldest)
        for guest, (name, text) in self._late.items():
            yield self._gauge(name, text, None, {None: queues.late.get(guest) or 0.0})
        for measure in self._measures:
            kind = CounterMetricFamily if measure.grows else GaugeMetricFamily
            yield self._family(kind, measure.name, measure.text, measure.label, self._measured.get(measure.name, {}))

    def _learn(self, queues: QueueStatistics, page: InstanceCounts, measured: Measured) -> QueueStatistics:
        self._measured = measured
        self._counts.update(page.counts)
        self._after = page.after
        if page.after is None:
            self._instances = {status: self._counts[status] for status in get_args(InstanceStatus)}
            self._counts.clear()
        return queues

    def _gauge(self, name: str, text: str, label: str | None, values: Mapping[Any, float]) -> Metric:
        return self._family(GaugeMetricFamily, name, text, label, values)

    def _family(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        label: str | None,
        values: Mapping[Any, float],
    ) -> Metric:
        """Return a metric. ``label``: its values are the keys of ``values``. None: the metric has a single value."""
        family = kind(f"affinity_{name}", text, labels=(*self._fixed, *([label] if label else [])))
        for value, number in values.items():
            family.add_metric((*self._fixed.values(), *([value] if label else [])), number)
        return family


class _Observed:
    """Forwards everything, and keeps a timed version of each coroutine method that was asked for."""

    def __init__(self, provider: Provider, metrics: Metrics) -> None:
        self._provider = provider
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._provider, name)
        if inspect.iscoroutinefunction(found):
            found = self._metrics.timed(name, found)
            setattr(self, name, found)  # the next look-up does not come here
        return found
