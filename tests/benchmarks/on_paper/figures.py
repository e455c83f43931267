"""Every number that docs/scale.md starts from: what was measured, what others published, what is assumed.

Change a price or an assumption here; `make bench NAME=scale ARGS=--write` then writes the page's tables again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

Kind = Literal["measured", "published", "assumed"]


@dataclass(frozen=True)
class Figure:
    value: float
    unit: str
    kind: Kind
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.value:,.10g} {self.unit}" if self.value < 1e9 else f"{self.value:.3g} {self.unit}"


_RUN = "one run on 79 MB of wikinews and Wikipedia, 2 busy cores of an AMD EPYC"
_PAGE = "[benchmarks.md](benchmarks.md)"
_HTTP = f"`serve_http_fastapi`, {_PAGE}"
_CHOICE = "a choice"
_SHEET = "NVIDIA's data sheet"
_PRICE = "list price of a large cloud, rounded"


@dataclass(frozen=True)
class CorpusFigures:
    """Bytes and processor time per byte of raw text."""

    core_seconds_per_mb: Figure = Figure(0.34, "core-s/MB", "measured", "raw text to tokens, vocabulary given", _RUN)
    quick_mb_per_s: Figure = Figure(
        9.9,
        "MB/s",
        "measured",
        "the same by the clock, docstrings, 2 cores of a Xeon",
        f"`tokenize_throughput`, {_PAGE}",
    )
    idle_mb_per_s: Figure = Figure(13, "MB/s", "assumed", "the same on 2 idle cores: the figure to plan with", _CHOICE)
    vocabulary_core_seconds: Figure = Figure(16, "core-s", "measured", "learning a vocabulary of 38,331, once", _RUN)
    alone_share: Figure = Figure(0.28, "of it", "measured", "share that one process works alone today", _RUN)
    after_share: Figure = Figure(
        0.26, "of it", "measured", "share after the exchange", "`corpus_increment`, 7.7 of 29.9 core-s"
    )
    text_bytes: Figure = Figure(1_709, "bytes", "measured", "raw text for each text that is compared", _RUN)
    bytes_per_token: Figure = Figure(5.68, "bytes", "measured", "raw text for each token kept", _RUN)
    peak_disk: Figure = Figure(6.43, "bytes", "measured", "disk at the peak, for a byte of raw text", _RUN)
    lasting_disk: Figure = Figure(1.84, "bytes", "measured", "snapshot, clean text, tokens, for a byte", _RUN)
    exchanged: Figure = Figure(1.86, "bytes", "measured", "spool and sketches at most, for a byte", _RUN)
    memory_gb: Figure = Figure(0.29, "GB", "measured", "memory of all processes of preprocess, 79 MB", _RUN)
    memory_growth: Figure = Figure(
        1.07, "times", "measured", "memory with ten times the text, at most", f"`corpus_growth`, {_PAGE}"
    )


@dataclass(frozen=True)
class ClusterFigures:
    machine_cores: Figure = Figure(16, "cores", "assumed", "machine of a cluster", _CHOICE)
    machine_gb_per_s: Figure = Figure(25 / 8, "GB/s", "assumed", "network of such a machine (25 Gb/s)", _CHOICE)
    start_seconds: Figure = Figure(13, "s", "measured", "start of two Ray nodes on one machine", "ray 2.60.0, loopback")
    partition_gb: Figure = Figure(1, "GB", "assumed", "raw text of a partition", _CHOICE)
    size_spread: Figure = Figure(0.1, "of the mean", "assumed", "spread of task times (log-normal)", _CHOICE)
    slow_share: Figure = Figure(0.01, "of tries", "assumed", "stragglers", _CHOICE)
    slow_factor: Figure = Figure(5, "times", "assumed", "time of a straggler", _CHOICE)
    failure_share: Figure = Figure(0.01, "of tries", "assumed", "tries that fail halfway on average", _CHOICE)
    requests_per_s: Figure = Figure(
        5_500, "reads/s", "published", "reads of one S3 prefix", "AWS, Optimizing Amazon S3 performance"
    )


@dataclass(frozen=True)
class TrainingFigures:
    peak_flops: Figure = Figure(989e12, "FLOP/s", "published", "H100 SXM, bf16, dense", _SHEET)
    gpu_gb: Figure = Figure(80, "GB", "published", "memory of an H100", _SHEET)
    inside_gb_per_s: Figure = Figure(450, "GB/s", "published", "NVLink, each way", _SHEET)
    between_gb_per_s: Figure = Figure(50, "GB/s", "published", "network of a GPU (400 Gb/s)", "NVIDIA, DGX H100")
    cpu_tokens_per_s: Figure = Figure(
        4_893,
        "tokens/s",
        "measured",
        "BERT 4×256 in fp32 on 2 cores, rows of 128",
        f"`pretrain_throughput_grouped`, {_PAGE}",
    )
    step_tokens: Figure = Figure(2**21, "tokens", "assumed", "batch of a step, on any number of GPUs", _CHOICE)
    micro_batch_tokens: Figure = Figure(2**15, "tokens", "assumed", "tokens on a GPU at once", _CHOICE)
    row_tokens: Figure = Figure(512, "tokens", "assumed", "length of a row", _CHOICE)
    row_reads: Figure = Figure(
        5.25, "reads", "assumed", "pages of 4 KiB read for a row", "4 of lists, 1.25 of 1 KB of tokens"
    )
    ssd_read_us: Figure = Figure(100, "µs", "assumed", "random read of a local SSD (NVMe)", _CHOICE)
    remote_read_us: Figure = Figure(1_000, "µs", "assumed", "random read of a network disk", _CHOICE)
    target_share: Figure = Figure(0.3, "of tokens", "assumed", "mask rate", "as in ModernBERT (Warner et al. 2024)")


@dataclass(frozen=True)
class ServingFigures:
    requests_per_s: Figure = Figure(355, "requests/s", "measured", "all-MiniLM-L6-v2 in INT8, lower of two runs", _HTTP)
    half_load_p99: Figure = Figure(23, "ms", "measured", "p99 at half of that", _HTTP)
    memory_mib: Figure = Figure(190, "MiB", "measured", "memory of the server", "[serving.md](serving.md)")
    load: Figure = Figure(0.5, "of it", "assumed", "load to plan for, so that p99 stays as measured", _CHOICE)
    number_bytes: Figure = Figure(12.2, "bytes", "measured", "a number of a vector in JSON", "orjson, fp32")


@dataclass(frozen=True)
class Prices:
    core_hour: Figure = Figure(0.04, "$", "assumed", "core for an hour", _PRICE)
    gpu_hour: Figure = Figure(3.0, "$", "assumed", "H100 for an hour", _PRICE)
    disk_tb_month: Figure = Figure(80, "$", "assumed", "TB of SSD for a month", _PRICE)
    object_tb_month: Figure = Figure(23, "$", "assumed", "TB of object storage for a month", _PRICE)
    million_reads: Figure = Figure(0.4, "$", "assumed", "a million reads of objects", _PRICE)
    million_writes: Figure = Figure(5.0, "$", "assumed", "a million writes of objects", _PRICE)


CORPUS, CLUSTER, TRAINING, SERVING, PRICES = (
    CorpusFigures(),
    ClusterFigures(),
    TrainingFigures(),
    ServingFigures(),
    Prices(),
)


def figures_of(table: object) -> Iterator[Figure]:
    return (getattr(table, field.name) for field in fields(table))  # type: ignore[arg-type]
