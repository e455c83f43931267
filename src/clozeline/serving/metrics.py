"""Prometheus metrics of the server; each server has its own registry.

Shares are left to queries: padding is `clozeline_padding_tokens_total / (that + clozeline_batch_tokens_sum)`,
unknown tokens are `clozeline_unknown_tokens_total / clozeline_tokens_total`.
"""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from clozeline.serving import loading, queue

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKENS = (4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 4096)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)
_PROBABILITIES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)
_IDENTITY = ("model", "version", "sha256", "precision")


class Metrics:
    """All metrics of one server. Thread-safe."""

    def __init__(self, num_workers: int, waiting_tokens: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # process_resident_memory_bytes, process_open_fds and others
        self._requests = self._counter("requests", "Answered requests", "route", "status")
        self._request_seconds = self._histogram(
            "request_seconds", "Seconds from the head to the answer", _SECONDS, "route"
        )
        self._rejections = self._counter("rejections", "Requests refused, or dropped before the answer", "reason")
        self._kept_answers = self._counter("kept_answers", "Look-ups in the cache of answers: hit or miss", "result")
        self._tokenize = self._histogram("tokenize_seconds", "Seconds to tokenize a request", _SECONDS, "model")
        self._queue = self._histogram("queue_seconds", "Seconds in the queue until a text runs", _SECONDS, "model")
        self._inference = self._histogram(
            "inference_seconds", "Seconds from the first run to the answer", _SECONDS, "model"
        )
        self._batch_seconds = self._histogram("batch_seconds", "Seconds to run a micro-batch", _SECONDS)
        self._batch_tokens = self._histogram("batch_tokens", "Tokens in a micro-batch, without padding", _TOKENS)
        self._batch_texts = self._histogram("batch_texts", "Texts in a micro-batch", _TEXTS)
        self._padding = self._counter("padding_tokens", "Padding in micro-batches that ran")
        self._text_tokens = self._histogram("text_tokens", "Tokens in a text", _TOKENS, "model")
        self._tokens = self._counter("tokens", "Tokens in admitted texts", "model")
        self._unknown = self._counter("unknown_tokens", "Unknown tokens in admitted texts", "model")
        self._confidence = self._histogram("confidence", "Probability of the best answer", _PROBABILITIES, "model")
        self._feedback = self._counter("feedback", "Texts whose right answer a client sent", "model", "answer")
        self._models = self._gauge("model_info", "1 for each served model", *_IDENTITY)
        self._swaps = self._counter("model_swaps", "Times a served model was replaced", "model")
        self._refused_versions = self._counter("refused_versions", "New versions that could not be served", "model")
        self._gauge("workers", "Worker threads").set(num_workers)
        self._gauge("queue_tokens", "Tokens that wait in the queue").set_function(waiting_tokens)

    def request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def rejected(self, reason: str) -> None:
        self._rejections.labels(reason).inc()

    def looked_up_in_cache(self, *, was_there: bool) -> None:
        self._kept_answers.labels("hit" if was_there else "miss").inc()

    def admitted(self, model: str, lengths: Sequence[int], num_unknown: int, tokenize_seconds: float) -> None:
        """Count an admitted request. Lengths of texts and unknown tokens show drift."""
        self._tokenize.labels(model).observe(tokenize_seconds)
        of_text = self._text_tokens.labels(model)
        for length in lengths:
            of_text.observe(length)
        self._tokens.labels(model).inc(sum(lengths))
        self._unknown.labels(model).inc(num_unknown)

    def answered(self, model: str, queue_seconds: float, inference_seconds: float) -> None:
        self._queue.labels(model).observe(queue_seconds)
        self._inference.labels(model).observe(inference_seconds)

    def confident(self, model: str, probabilities: Iterable[float]) -> None:
        """Observe the probability of the best candidate of each answer."""
        for probability in probabilities:
            self._confidence.labels(model).observe(probability)

    def scored(self, model: str, *, num_right: int, num_wrong: int) -> None:
        """Count answers whose right answer is known now."""
        self._feedback.labels(model, "right").inc(num_right)
        self._feedback.labels(model, "wrong").inc(num_wrong)

    def ran(self, batch: queue.MicroBatch, seconds: float) -> None:
        self._batch_seconds.observe(seconds)
        self._batch_tokens.observe(batch.tokens)
        self._batch_texts.observe(len(batch.entries))
        self._padding.inc(batch.padded_tokens - batch.tokens)

    def serves(self, identity: loading.Identity, instead_of: loading.Identity | None = None) -> None:
        if instead_of:
            self._models.remove(*_labels(instead_of))
            self._swaps.labels(identity.name).inc()
        self._models.labels(*_labels(identity)).set(1)

    def refused_version(self, model: str) -> None:
        self._refused_versions.labels(model).inc()

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, namespace="clozeline", registry=self._registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, namespace="clozeline", registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: Iterable[float], *labels: str) -> Histogram:
        return Histogram(name, meaning, labels, namespace="clozeline", registry=self._registry, buckets=tuple(buckets))


def _labels(identity: loading.Identity) -> tuple[str, ...]:
    return identity.name, identity.version, identity.sha256, identity.precision
