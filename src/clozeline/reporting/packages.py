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
from clozeline.reporting import charts, formats
from clozeline.reporting.run import Part, ReportedRun, code, facts, folded, html, joined, message, table, verdict
from clozeline.system.errors import ArtifactError

# (ending of a key of `inference.latency.Latency`, what was timed).
_LATENCIES = (("text_milliseconds", "one text"), ("batch_milliseconds", "a batch"))
_SERVED, _EXACT = "int8_", "fp32_"


def verdict_parts(run: ReportedRun) -> Iterable[Part]:
    return [partial(_package, run, package) for package in run.packages]


def require_released(run: ReportedRun, package: str) -> Released:
    """Return the release of a package; raises ArtifactError if it was never released."""
    released = run.released(package)
    if released is None:
        raise ArtifactError(f"dist/{package} is not released: no version has its files", do="run `clozeline release`")
    return released


def badge(released: Released) -> Markup:
    """Return the outcome of the release as a badge."""
    outcome = released.decision.outcome if released.decision else "registered, without a decision"
    return message(outcome, f"badge {'good' if outcome == 'promoted' else 'bad'}")


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
    gates = table(
        f"Gates of {released.version}; {champion}",
        ("gate", ">given", "must be", ">limit", "verdict"),
        [_row(gate) for gate in decision.gates],
    )
    return joined(heading, about, gates)


def _row(gate: Gate) -> tuple[object, ...]:
    badge = verdict(gate.is_passed, "passed" if gate.is_passed else "failed")
    return (formats.in_words(gate.name), formats.amount(gate.given), gate.must_be, formats.amount(gate.limit), badge)


def package_parts(run: ReportedRun) -> Iterable[Part]:
    pieces = (_heading, _sizes, _latencies, _figures, _ladder, _manifest)
    return [partial(piece, run, package) for package in run.packages for piece in pieces]


def metrics(run: ReportedRun, package: str) -> ExportMetrics:
    return run.files.json(f"metrics/export/{package}.json", ExportMetrics, stage=f"export@{package}")


def _heading(run: ReportedRun, package: str) -> Markup:
    return html("heading", words="", name=f"dist/{package}")


def _sizes(run: ReportedRun, package: str) -> Markup | None:
    figures = metrics(run, package)
    sizes = {"fp32": figures.fp32_size_bytes, "INT8": figures.int8_size_bytes}
    drawn = [charts.Bar(name, size, formats.megabytes(size)) for name, size in sizes.items() if size is not None]
    return charts.bars(f"{package}: size of the graph", drawn)


def _latencies(run: ReportedRun, package: str) -> Markup | None:
    latency = require_released(run, package).latency
    rows = [
        charts.Bar(f"{what}, {name}", latency[f"{prefix}{key}"], formats.milliseconds(latency[f"{prefix}{key}"]))
        for key, what in _LATENCIES
        for name, prefix in (("fp32", _EXACT), ("INT8", _SERVED))
        if f"{prefix}{key}" in latency
    ]
    threads, texts = (formats.amount(latency.get(key, 0)) for key in ("num_threads", "batch_texts"))
    note = (
        f"Median latency of one call on the releasing machine: one text of 16 words, or a batch of {texts} texts of"
        f" 4 to 64 words. Threads: {threads}."
    )
    return charts.bars(f"{package}: time to answer", rows, note=note)


def _figures(run: ReportedRun, package: str) -> Markup:
    figures = formats.numbers(metrics(run, package).model_dump())
    names = [key.removeprefix(_SERVED) for key in figures if key.startswith(_SERVED)]
    paired = [name for name in names if f"{_EXACT}{name}" in figures]
    in_pairs = {f"{prefix}{name}" for name in paired for prefix in (_EXACT, _SERVED)}
    pairs = [
        (formats.in_words(name), *(formats.format_of(name)(figures[f"{of}{name}"]) for of in (_EXACT, _SERVED)))
        for name in paired
    ]
    alone = [formats.pair(key, value) for key, value in figures.items() if key not in in_pairs]
    beside = table(f"{package}: fp32 and INT8", ("figure", ">fp32", ">INT8"), pairs) if pairs else None
    return joined(beside, facts(alone))


def _ladder(run: ReportedRun, package: str) -> Markup | None:
    """Return a table of every INT8 scheme that was tried; None if the manifest has no ladder."""
    manifest = read_manifest(run.files.root / "dist" / package)
    rows = [
        (
            place,
            str(rung.scheme),
            formats.megabytes(rung.size_bytes),
            _agreement(rung),
            _metric(rung),
            _verdict(rung, is_served=rung.is_passed and rung.scheme == manifest.quantization),
        )
        for place, rung in enumerate(manifest.ladder, start=1)
    ]
    columns = (">#", "scheme", ">size", ">agrees with fp32", "fp32 → INT8", "gates of the export")
    kind = manifest.quantization.kind if manifest.quantization else manifest.served
    caption = f"{package}: INT8 schemes in the order of trial; served: {kind}"
    return table(caption, columns, rows) if rows else None


def _agreement(rung: Rung) -> str:
    value, low, high = map(formats.share, (rung.agreement.value, rung.agreement.low, rung.agreement.high))
    return f"{value} ({low} – {high})"


def _metric(rung: Rung) -> str:
    """Return both values of the metric in words."""
    shown = formats.of_metric(rung.metric)
    return f"{rung.metric}: {shown(rung.fp32_metric)} → {shown(rung.int8_metric)}"


def _verdict(rung: Rung, *, is_served: bool) -> Markup:
    failed = [str(check) for check in rung.checks if not check.is_passed]
    passed = f"{len(rung.checks)} passed{', served' if is_served else ''}"
    return verdict(not failed, "; ".join(failed) or passed)


def _manifest(run: ReportedRun, package: str) -> Markup:
    manifest = read_manifest(run.files.root / "dist" / package)
    files = [(code(name), formats.count(one.size_bytes), code(one.sha256)) for name, one in manifest.files.items()]
    knobs = ("task", "family", "max_length", "vocab_size", "hidden_size", "opset", "lock_sha256")
    details = joined(
        table(f"Files of dist/{package}", ("file", ">bytes", "sha256"), files),
        facts([(formats.in_words(key), getattr(manifest, key)) for key in knobs]),
        facts(manifest.versions.items()),
    )
    return folded(f"manifest.json of {package}: files, their sha256, and versions", details)


def figure_parts(run: ReportedRun) -> Iterable[Part]:
    return [partial(_file, run, path) for path in run.files.names("metrics/**/*.json")]


def _file(run: ReportedRun, path: str) -> Markup:
    figures = run.files.figures(path, stage=path.removeprefix("metrics/").removesuffix(".json").replace("/", "@"))
    rows = [(code(key), _shown(value)) for key, value in leaves(figures)]
    return folded(path, table(path, ("figure", ">value"), rows))


def _shown(value: object) -> str:
    return formats.amount(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
