"""The chapter on packages, and every figure of every metric file, including those that no other chapter shows.

The chapter has the verdict of the gates on each package, the sizes of its fp32 and INT8 graphs, their agreement and
their latency.
"""

from collections.abc import Iterable
from functools import partial

from markupsafe import Markup

from clozeline.records.package import ExportMetrics, Rung, read_manifest
from clozeline.records.record import leaves
from clozeline.registry.decisions import Gate, Released
from clozeline.reporting.charts import Bar, bars
from clozeline.reporting.run import (
    Part,
    ReportedRun,
    amount,
    code,
    count,
    format_of,
    html,
    in_words,
    joined,
    megabytes,
    milliseconds,
    numbers,
    share,
    verdict,
)
from clozeline.system.errors import ArtifactError

_LATENCIES = (
    ("text_milliseconds", "one text"),
    ("batch_milliseconds", "a batch"),
)
"""(ending of a key of `inference.latency.Latency`, what was timed)."""
_SERVED, _EXACT = "int8_", "fp32_"


def verdict_parts(run: ReportedRun) -> Iterable[Part]:
    return [partial(_package, run, package) for package in run.packages]


def require_released(run: ReportedRun, package: str) -> Released:
    """Return the release of a package; raises ArtifactError if it was never released."""
    released = run.released(package)
    if released is None:
        raise ArtifactError(
            f"dist/{package} is not released: no version in the registry has its files", do="run `clozeline release`"
        )
    return released


def badge(released: Released) -> Markup:
    """Return the outcome of the release as a badge."""
    outcome = released.decision.outcome if released.decision else "registered, without a decision"
    return html("message", kind=f"badge {'good' if outcome == 'promoted' else 'bad'}", text=outcome)


def state(released: Released) -> str:
    """Return the version, its aliases and its served precision in words."""
    aliases = f", now {', '.join(released.aliases)}" if released.aliases else ", now without an alias"
    served = f", serves {released.version.served}" if released.version.served else ""
    return f"{released.version}{aliases}{served}."


def _package(run: ReportedRun, package: str) -> Markup:
    released = require_released(run, package)
    decision = released.decision
    heading = html("heading", words="", name=f"dist/{package}", badge=badge(released))
    about = html("paragraph", text=f"{state(released)} {decision.reason if decision else ''}")
    if not decision or not decision.gates:
        return heading + about
    before = decision.champion_before
    champion = f"champion before: version {before}" if before else "no champion before"
    gates = html(
        "table",
        caption=f"Gates of {released.version}; {champion}",
        columns=("gate", ">given", "must be", ">limit", "verdict"),
        rows=[_row(gate) for gate in decision.gates],
    )
    return joined(heading, about, gates)


def _row(gate: Gate) -> tuple[object, ...]:
    badge = verdict(gate.is_passed, "passed" if gate.is_passed else "failed")
    return (in_words(gate.name), amount(gate.given), gate.must_be, amount(gate.limit), badge)


def package_parts(run: ReportedRun) -> Iterable[Part]:
    pieces = (_heading, _sizes, _latencies, _figures, _ladder, _manifest)
    return [partial(piece, run, package) for package in run.packages for piece in pieces]


def metrics(run: ReportedRun, package: str) -> ExportMetrics:
    return run.files.json(f"metrics/export/{package}.json", ExportMetrics, stage=f"export@{package}")


def _heading(run: ReportedRun, package: str) -> Markup:
    return html("heading", words="", name=f"dist/{package}")


def _sizes(run: ReportedRun, package: str) -> Markup:
    figures = metrics(run, package)
    sizes = {"fp32": figures.fp32_size_bytes, "INT8": figures.int8_size_bytes}
    drawn = [Bar(name, size, megabytes(size)) for name, size in sizes.items() if size is not None]
    return bars(f"{package}: size of the graph", drawn)


def _latencies(run: ReportedRun, package: str) -> Markup:
    latency = require_released(run, package).latency
    rows = [
        Bar(f"{what}, {name}", latency[f"{prefix}{key}"], milliseconds(latency[f"{prefix}{key}"]))
        for key, what in _LATENCIES
        for name, prefix in (("fp32", _EXACT), ("INT8", _SERVED))
        if f"{prefix}{key}" in latency
    ]
    threads, texts = (amount(latency.get(key, 0)) for key in ("num_threads", "batch_texts"))
    note = (
        f"Median latency of one call on the releasing machine: one text of 16 words, or a batch of {texts} texts of"
        f" 4 to 64 words. Threads: {threads}."
    )
    return bars(f"{package}: time to answer", rows, note=note)


def _figures(run: ReportedRun, package: str) -> Markup:
    figures = numbers(metrics(run, package).model_dump())
    paired = [
        key.removeprefix(_SERVED)
        for key in figures
        if key.startswith(_SERVED) and key.replace(_SERVED, _EXACT) in figures
    ]
    pairs = [
        (in_words(key), *(format_of(key)(figures[f"{prefix}{key}"]) for prefix in (_EXACT, _SERVED))) for key in paired
    ]
    alone = {
        key: value for key, value in figures.items() if not key.startswith((_SERVED, _EXACT)) or key[5:] not in paired
    }
    caption, columns = f"{package}: fp32 and INT8", ("figure", ">fp32", ">INT8")
    facts = [(in_words(key.removeprefix("num_")), format_of(key)(value)) for key, value in alone.items()]
    return joined(
        html("table", caption=caption, columns=columns, rows=pairs) if pairs else None, html("facts", pairs=facts)
    )


def _ladder(run: ReportedRun, package: str) -> Markup | None:
    """Return a table of every INT8 scheme that was tried; None if the manifest has no ladder."""
    manifest = read_manifest(run.files.root / "dist" / package)
    rows = [
        (
            place,
            str(rung.scheme),
            megabytes(rung.size_bytes),
            f"{share(rung.agreement.value)} ({share(rung.agreement.low)} – {share(rung.agreement.high)})",
            _metric(rung),
            _verdict(rung, is_served=rung.is_passed and rung.scheme == manifest.quantization),
        )
        for place, rung in enumerate(manifest.ladder, start=1)
    ]
    columns = (">#", "scheme", ">size", ">agrees with fp32", "fp32 → INT8", "gates of the export")
    kind = manifest.quantization.kind if manifest.quantization else manifest.served
    caption = f"{package}: INT8 schemes in the order of trial; served: {kind}"
    return html("table", caption=caption, columns=columns, rows=rows) if rows else None


def _metric(rung: Rung) -> str:
    """Return both values of the metric in words; a correlation is not a share, so it gets no percentage."""
    shown = amount if rung.metric == "Spearman correlation" else share
    return f"{rung.metric}: {shown(rung.fp32_metric)} → {shown(rung.int8_metric)}"


def _verdict(rung: Rung, *, is_served: bool) -> Markup:
    failed = [str(check) for check in rung.checks if not check.is_passed]
    passed = f"{len(rung.checks)} passed{', served' if is_served else ''}"
    return verdict(not failed, "; ".join(failed) or passed)


def _manifest(run: ReportedRun, package: str) -> Markup:
    manifest = read_manifest(run.files.root / "dist" / package)
    files = [(code(name), count(record.size_bytes), code(record.sha256)) for name, record in manifest.files.items()]
    knobs = ("task", "family", "max_length", "vocab_size", "hidden_size", "opset", "lock_sha256")
    details = joined(
        html("table", caption=f"Files of dist/{package}", columns=("file", ">bytes", "sha256"), rows=files),
        html("facts", pairs=[(in_words(key), getattr(manifest, key)) for key in knobs]),
        html("facts", pairs=manifest.versions.items()),
    )
    return html("folded", summary=f"manifest.json of {package}: files, their sha256, and versions", body=details)


def figure_parts(run: ReportedRun) -> Iterable[Part]:
    return [partial(_file, run, path) for path in run.files.names("metrics/**/*.json")]


def _file(run: ReportedRun, path: str) -> Markup:
    figures = run.files.figures(path, stage=path.removeprefix("metrics/").removesuffix(".json").replace("/", "@"))
    rows = [(code(key), _shown(value)) for key, value in leaves(figures)]
    return html("folded", summary=path, body=html("table", caption=path, columns=("figure", ">value"), rows=rows))


def _shown(value: object) -> str:
    return amount(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
