"""The tables of docs/scale.md, and the page with them between its markers."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from on_paper import serving, training
from on_paper.breaks import answer, breaks
from on_paper.corpus import SIZES, CorpusCost, bytes_worth_a_second_machine
from on_paper.figures import CLUSTER, CORPUS, PRICES, SERVING, TRAINING, figures_of
from on_paper.simulated import MACHINES, Run, Scenario, runs
from on_paper.words import bytes_of, count_of, dollars_of, table_of, time_of, two_digits

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
                f"{count_of(training.rows_per_second(model))}/s",
                ", ".join(two_digits(training.readers(model, us.value)) for us in _READ_US),
            )
            for name, model in training.MODELS.items()
        ],
    )


def pretraining() -> str:
    header = ("text", "model", "2 CPU cores", *(f"{number} GPU{'s' * (number > 1)}" for number in _GPUS))
    header = (*header, "cost on 8", "cost on 256", "network, on 256")
    rows = []
    for text, cost in _costs():
        tokens = cost.tokens
        for name, model in training.MODELS.items():
            computing, waiting = training.step_seconds(model, 256)
            rows.append(
                (
                    text,
                    name,
                    time_of(training.cpu_seconds(model, tokens)),
                    *(time_of(training.seconds(model, tokens, number)) for number in _GPUS),
                    *(dollars_of(training.dollars(model, tokens, number)) for number in (8, 256)),
                    f"{waiting / (computing + waiting):.0%}",
                )
            )
    return table_of(header, rows)


def served() -> str:
    header = ("requests/s", "cores", f"machines of {CLUSTER.machine_cores.value:g}", "vectors on the network")
    header = (*header, "a month", *(f"cores, {name}" for name in training.MODELS))
    rows = []
    for rate in serving.RATES:
        measured = serving.measured_fleet(rate)
        rows.append(
            (
                f"{rate:,}",
                f"{measured.num_cores:,}",
                f"{measured.num_machines:,}",
                f"{bytes_of(measured.network_bytes_per_s)}/s",
                dollars_of(measured.dollars_a_month),
                *(f"{serving.fleet(name, rate).num_cores:,}" for name in training.MODELS),
            )
        )
    latency = (f"{two_digits(serving.milliseconds(model))} ms" for model in training.MODELS.values())
    rows.append(
        ("a request on an idle core", f"{two_digits(serving.measured_milliseconds())} ms", "", "", "", *latency)
    )
    return table_of(header, rows)


def simulated(results: Iterable[tuple[Scenario, list[Run]]] | None = None) -> str:
    cores = int(CLUSTER.machine_cores.value)
    header = ("what happens", *(f"{number} machines, {number * cores:,} slots" for number in MACHINES))
    return table_of(header, map(_scenario_row, runs() if results is None else results))


def _scenario_row(result: tuple[Scenario, list[Run]]) -> Sequence[str]:
    scenario, by_machines = result
    return (scenario.what, *(f"{time_of(run.outcome.seconds)}, {run.factor:.2f}" for run in by_machines))


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
