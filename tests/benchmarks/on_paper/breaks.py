"""What breaks first as text, models and requests grow, and what the page says first, with the numbers worked out."""

from collections.abc import Sequence

from on_paper import serving, training
from on_paper.corpus import (
    SIZES,
    CorpusCost,
    bytes_with_slow_pieces,
    bytes_with_texts_beyond_32_bits,
    bytes_worth_a_second_machine,
)
from on_paper.figures import CLUSTER, CORPUS, TRAINING
from on_paper.words import bytes_of, count_of, dollars_of, table_of, time_of, two_digits

_HOUR = 3600.0
_DISK_BYTES = 1e12


def answer() -> str:
    """Return the first paragraph of the page."""
    small, large = (bytes_worth_a_second_machine(_HOUR, cores) for cores in (2, 64))
    quick = bytes_worth_a_second_machine(_HOUR, 2, mb_per_s=CORPUS.idle_mb_per_s.value)
    most, cost = CorpusCost(SIZES["10 TB"]), training.MODELS["400 M"]
    return (
        f"**A second machine for the text saves an hour from about {bytes_of(small)} on machines of 2 cores"
        f" ({bytes_of(quick)} at {CORPUS.idle_mb_per_s}), and from {bytes_of(large)} on machines"
        f" of 64.** Before it pays, more cores in the first machine do, once its stages no longer work in one process"
        f" for {CORPUS.alone_share.value:.0%} of the time. Text is never the expensive part: the cores for 10 TB cost"
        f" {dollars_of(most.core_dollars)}, the disk at its peak {dollars_of(most.disk_dollars_a_month)} a month, and"
        f" one pass of a model with 400 million parameters over it {dollars_of(training.dollars(cost, most.tokens, 8))}"
        f" on 8 GPUs. The first thing to buy is therefore a GPU, then disk, and only then a second machine."
    )


def breaks() -> str:
    """Return the table of what breaks first."""
    return table_of(("step", "what breaks first", "from", "what helps"), [*_of_text(), *_of_training(), *_of_serving()])


def _of_text() -> Sequence[Sequence[str]]:
    alone, most = CORPUS.alone_share.value, CorpusCost(SIZES["10 TB"])
    return (
        (
            "text",
            f"one process works alone for {alone:.0%}: more cores are at most {1 / alone:.1f} times as fast as one",
            f"{two_digits((1 - alone) / alone)} cores",
            "partitions, also on one machine",
        ),
        (
            "text",
            f"a disk of {bytes_of(_DISK_BYTES)} is full",
            bytes_of(_DISK_BYTES / CORPUS.peak_disk.value),
            "a larger disk; then S3, with partitions",
        ),
        (
            "text",
            "numbers of texts outgrow the 32 bits that a candidate pair has for each, without an error",
            bytes_of(bytes_with_texts_beyond_32_bits()),
            "numbers of 64 bits, with partitions",
        ),
        (
            "text",
            f"pieces of the exchange, {count_of(most.num_pieces)} at 10 TB, take longer to read from one prefix of S3"
            " than all other work",
            f"{bytes_of(bytes_with_slow_pieces(256))} on 256 cores",
            "a file with an index for each task; larger partitions",
        ),
    )


def _of_training() -> Sequence[Sequence[str]]:
    small, large = training.MODELS["17 M"], training.MODELS["400 M"]
    tokens = CorpusCost(SIZES["10 GB"]).tokens
    computing, waiting = training.step_seconds(large, 256)
    return (
        (
            "training",
            f"two CPU cores: 17 M and 10 GB take {time_of(training.cpu_seconds(small, tokens))}",
            "10 GB",
            "one GPU",
        ),
        (
            "training",
            f"too few steps: 10 GB are {two_digits(tokens / TRAINING.step_tokens.value)} batches of"
            f" {count_of(TRAINING.step_tokens.value)} tokens",
            "8 GPUs at 10 GB",
            "smaller batches on fewer GPUs",
        ),
        (
            "training",
            f"tokens, read in order: 8 GPUs take {count_of(training.rows_per_second(small))} rows a second with 17 M",
            "a network disk that many nodes share",
            "a local SSD",
        ),
        (
            "training",
            f"the network: 256 GPUs wait {waiting / (computing + waiting):.0%} of the time with 400 M",
            "256 GPUs",
            "larger batches; gradients in bf16",
        ),
    )


def _of_serving() -> Sequence[Sequence[str]]:
    cores = CLUSTER.machine_cores.value
    return (
        (
            "serving",
            "one machine: versions would mix while they change",
            f"{two_digits(serving.rate_of(int(cores)))} requests/s",
            "a moment at which the fleet changes",
        ),
        (
            "serving",
            f"a request takes {two_digits(serving.milliseconds(training.MODELS['400 M']))} ms with 400 M",
            "1 request/s",
            "a smaller model, or a GPU",
        ),
    )
