"""The page docs/scale.md: its tables, its first paragraph, what breaks first; they stand between its markers.

Numbers have two significant digits and a unit.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from on_paper import costs
from on_paper.costs import (
    SIZES,
    CorpusCost,
    bytes_with_slow_pieces,
    bytes_with_texts_beyond_32_bits,
    bytes_worth_a_second_machine,
)
from on_paper.exchange import MACHINES, Run, Scenario, runs
from on_paper.figures import CLUSTER, CORPUS, PRICES, SERVING, TRAINING, figures_of

_TIMES = ((86_400 * 365.25, " years"), (86_400, " days"), (3600, " h"), (60, " min"), (1, " s"))
_BYTES = ((1e15, " PB"), (1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"))
_COUNTS = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"), (1, ""))


def two_digits(value: float) -> str:
    """Return the number rounded to two significant digits, without an exponent: 8,300; 12; 1.3; 0.026."""
    rounded = float(f"{value:.1e}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}" if rounded else "0"


def time_of(seconds: float) -> str:
    return _in_units(seconds, _TIMES, 1.5)  # 90 min, but 2 h


def bytes_of(size: float) -> str:
    return _in_units(size, _BYTES)


def count_of(number: float) -> str:
    return _in_units(number, _COUNTS)


def dollars_of(amount: float) -> str:
    return f"${two_digits(amount)}" if amount >= 0.01 else "under $0.01"


def table_of(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _in_units(value: float, units: Sequence[tuple[float, str]], least: float = 1.0) -> str:
    """Write `value` in the first unit of which it is at least `least` times, or in the last one."""
    size, unit = next((one for one in units if float(f"{value:.1e}") >= least * one[0]), units[-1])
    return f"{two_digits(value / size)}{unit}"


_READ_US = (TRAINING.ssd_read_us, TRAINING.remote_read_us)
_GPUS = (1, 8, 64, 256)
_MARKED = re.compile(r"<!-- scale (\w+):[^\n]*-->\n(.*?)\n<!-- /scale -->", re.DOTALL)


def figures() -> str:
    tables = (CORPUS, CLUSTER, TRAINING, SERVING)
    return table_of(
        ("figure", "value", "kind", "source"),
        [(one.what, str(one), one.kind, one.source) for table in tables for one in figures_of(table)],
    )


def prices() -> str:
    return table_of(("what", "price"), [(one.what, f"${one.value:g}") for one in figures_of(PRICES)])


def corpus() -> str:
    cores = int(CLUSTER.machine_cores.value)
    clusters = ("64 cores, partitions", f"16 machines of {cores} cores, partitions")
    return table_of(
        ("raw text", "tokens", "2 cores today", "64 cores today", *clusters, "cores cost"),
        [
            (
                name,
                count_of(cost.tokens),
                time_of(cost.seconds_today(2)),
                time_of(cost.seconds_today(64)),
                time_of(cost.seconds(64)),
                time_of(cost.seconds_on(16, cores)),
                dollars_of(cost.core_dollars),
            )
            for name, cost in _costs()
        ],
    )


def space() -> str:
    header = (
        "raw text",
        "compared texts",
        "memory",
        "disk at the peak",
        "kept",
        "exchanged",
        "SSD for the peak, a month",
    )
    return table_of(
        (*header, "S3 for what is kept, a month"),
        [
            (
                name,
                count_of(cost.texts),
                bytes_of(cost.memory_bytes),
                bytes_of(cost.peak_disk_bytes),
                bytes_of(cost.lasting_bytes),
                bytes_of(cost.exchanged_bytes),
                dollars_of(cost.disk_dollars_a_month),
                dollars_of(cost.lasting_bytes / 1e12 * PRICES.object_tb_month.value),
            )
            for name, cost in _costs()
        ],
    )


def _costs() -> list[tuple[str, CorpusCost]]:
    return [(name, CorpusCost(size)) for name, size in SIZES.items()]


def second_machine() -> str:
    sizes, quick = (2, 16, 64), CORPUS.idle_mb_per_s
    saved = (("anything at all", 0.0, None), ("an hour", 3600.0, None), ("a day", 86_400.0, None))
    rows = (*saved, (f"an hour, at {quick} on two cores", 3600.0, quick.value))
    return table_of(
        ("two machines of … save", *(f"{cores} cores each" for cores in sizes)),
        [
            (what, *(f"from {bytes_of(bytes_worth_a_second_machine(seconds, cores, speed))}" for cores in sizes))
            for what, seconds, speed in rows
        ],
    )


def pieces() -> str:
    header = (
        "raw text",
        "partitions",
        "pieces",
        "reading them from one prefix",
        "their reads cost",
        "a file each costs",
    )
    return table_of(
        header,
        [
            (
                name,
                f"{cost.num_partitions:,}",
                count_of(cost.num_pieces),
                time_of(cost.piece_seconds),
                dollars_of(cost.num_pieces / 1e6 * PRICES.million_reads.value),
                dollars_of(cost.num_pieces / 1e6 * PRICES.million_writes.value),
            )
            for name, cost in _costs()
        ],
    )


def models() -> str:
    header = (
        "model",
        "parameters",
        "FLOPs per token",
        "share of the peak (assumed)",
        f"memory in a step, of {TRAINING.gpu_gb}",
    )
    header = (*header, "checkpoint", "INT8 file", "rows read by 8 GPUs", "readers of a GPU: SSD, network disk")
    return table_of(
        header,
        [
            (
                name,
                f"{model.count.total / 1e6:.1f} million",
                count_of(model.flops_per_token),
                f"{model.utilization:.0%}",
                bytes_of(model.step_bytes),
                bytes_of(model.checkpoint_bytes),
                bytes_of(model.count.int8_bytes),
                f"{count_of(costs.rows_per_second(model))}/s",
                ", ".join(two_digits(costs.readers(model, us.value)) for us in _READ_US),
            )
            for name, model in costs.MODELS.items()
        ],
    )


def pretraining() -> str:
    header = ("text", "model", "2 CPU cores", *(f"{number} GPU{'s' * (number > 1)}" for number in _GPUS))
    header = (*header, "cost on 8", "cost on 256", "network, on 256")
    rows = []
    for text, cost in _costs():
        tokens = cost.tokens
        for name, model in costs.MODELS.items():
            computing, waiting = costs.step_seconds(model, 256)
            rows.append(
                (
                    text,
                    name,
                    time_of(costs.cpu_seconds(model, tokens)),
                    *(time_of(costs.training_seconds(model, tokens, number)) for number in _GPUS),
                    *(dollars_of(costs.training_dollars(model, tokens, number)) for number in (8, 256)),
                    f"{waiting / (computing + waiting):.0%}",
                )
            )
    return table_of(header, rows)


def served() -> str:
    header = ("requests/s", "cores", f"machines of {CLUSTER.machine_cores.value:g}", "vectors on the network")
    header = (*header, "a month", *(f"cores, {name}" for name in costs.MODELS))
    rows = []
    for rate in costs.RATES:
        measured = costs.measured_fleet(rate)
        rows.append(
            (
                f"{rate:,}",
                f"{measured.num_cores:,}",
                f"{measured.num_machines:,}",
                f"{bytes_of(measured.network_bytes_per_s)}/s",
                dollars_of(measured.dollars_a_month),
                *(f"{costs.fleet(name, rate).num_cores:,}" for name in costs.MODELS),
            )
        )
    latency = (f"{two_digits(costs.request_milliseconds(model))} ms" for model in costs.MODELS.values())
    rows.append(("a request on an idle core", f"{two_digits(costs.measured_milliseconds())} ms", "", "", "", *latency))
    return table_of(header, rows)


def simulated(results: Iterable[tuple[Scenario, list[Run]]] | None = None) -> str:
    cores = int(CLUSTER.machine_cores.value)
    header = ("what happens", *(f"{number} machines, {number * cores:,} slots" for number in MACHINES))
    return table_of(header, map(_scenario_row, runs() if results is None else results))


def _scenario_row(result: tuple[Scenario, list[Run]]) -> Sequence[str]:
    scenario, by_machines = result
    return (scenario.what, *(f"{time_of(run.outcome.seconds)}, {run.factor:.2f}" for run in by_machines))


_HOUR = 3600.0
_DISK_BYTES = 1e12


def answer() -> str:
    """Return the first paragraph of the page."""
    small, large = (bytes_worth_a_second_machine(_HOUR, cores) for cores in (2, 64))
    quick = bytes_worth_a_second_machine(_HOUR, 2, mb_per_s=CORPUS.idle_mb_per_s.value)
    most = CorpusCost(SIZES["10 TB"])
    one_pass = costs.training_dollars(costs.MODELS["400 M"], most.tokens, 8)
    return (
        f"**A second machine for the text saves an hour from about {bytes_of(small)} on machines of 2 cores"
        f" ({bytes_of(quick)} at {CORPUS.idle_mb_per_s}), and from {bytes_of(large)} on machines"
        f" of 64.** Before it pays, more cores in the first machine do, once its stages no longer work in one process"
        f" for {CORPUS.alone_share.value:.0%} of the time. Text is never the expensive part: the cores for 10 TB cost"
        f" {dollars_of(most.core_dollars)}, the disk at its peak {dollars_of(most.disk_dollars_a_month)} a month, and"
        f" one pass of a model with 400 million parameters over it {dollars_of(one_pass)}"
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
    small, large = costs.MODELS["17 M"], costs.MODELS["400 M"]
    tokens = CorpusCost(SIZES["10 GB"]).tokens
    computing, waiting = costs.step_seconds(large, 256)
    return (
        (
            "training",
            f"two CPU cores: 17 M and 10 GB take {time_of(costs.cpu_seconds(small, tokens))}",
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
            f"tokens, read in order: 8 GPUs take {count_of(costs.rows_per_second(small))} rows a second with 17 M",
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
            f"{two_digits(costs.rate_of(int(cores)))} requests/s",
            "a moment at which the fleet changes",
        ),
        (
            "serving",
            f"a request takes {two_digits(costs.request_milliseconds(costs.MODELS['400 M']))} ms with 400 M",
            "1 request/s",
            "a smaller model, or a GPU",
        ),
    )


BLOCKS: Mapping[str, Callable[[], str]] = {
    "answer": answer,
    "breaks": breaks,
    "figures": figures,
    "prices": prices,
    "corpus": corpus,
    "space": space,
    "second_machine": second_machine,
    "pieces": pieces,
    "models": models,
    "pretraining": pretraining,
    "served": served,
    "simulated": simulated,
}


def blocks_of(page: str) -> dict[str, str]:
    """Return the text between the markers of the page, by name."""
    return dict(_MARKED.findall(page))


def without_blocks(page: str) -> str:
    return _MARKED.sub("", page)


def block(name: str, text: str) -> str:
    """Return the lines of a block, with its markers."""
    return f"<!-- scale {name}: written by make bench NAME=scale ARGS=--write -->\n{text}\n<!-- /scale -->"


def written(page: str) -> str:
    """Return the page with every block as it is computed now."""
    return _MARKED.sub(lambda found: block(found[1], BLOCKS[found[1]]()), page)
