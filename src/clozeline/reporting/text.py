"""The chapters on the text, on predictions for hidden words, and on lineage.

The text: counts of kept and dropped texts, the reasons, and token statistics. Lineage: the stages with their hashes,
the chain back to the raw text, and the params.
"""

from collections.abc import Iterable
from functools import partial

from markupsafe import Markup

from clozeline.params.reading import complete_tree, read_params
from clozeline.records import clean_text, evaluation, record, token_metrics
from clozeline.registry.lineage import ancestry
from clozeline.reporting import charts, formats
from clozeline.reporting.run import Part, ReportedRun, code, facts, folded, html, joined, knobs, message, table

_FILE = "reports/examples/examples.json"
_SHOWN = ("metrics/", "plots/")


def corpus_parts(run: ReportedRun) -> Iterable[Part]:
    return [partial(piece, run) for piece in (_kept, _splits, _similarity, _tokens)]


def _metrics(run: ReportedRun) -> clean_text.CorpusMetrics:
    return run.files.json("metrics/preprocess.json", clean_text.CorpusMetrics, stage="preprocess")


def _kept(run: ReportedRun) -> Markup:
    figures = _metrics(run)
    total = figures.documents_in
    rows = [("kept", figures.kept), *((reason, times) for reason, times in figures.dropped.items() if times)]
    drawn = [
        charts.Bar(formats.in_words(name), times, f"{formats.count(times)} ({formats.share(times / total)})")
        for name, times in rows
    ]
    dropped = [name for name, _ in rows[1:]]
    split = figures.documents_split
    note = f"{formats.count(split)} texts were longer than preprocess.max_characters and were cut." if split else ""
    meaning = folded("What the reasons mean", html("reasons", names=dropped)) if dropped else None
    altered = [(formats.in_words(kind), formats.count(times)) for kind, times in figures.altered.items() if times]
    removed = folded("Characters that cleaning left out, in documents", facts(altered))
    drawing = charts.bars(f"{formats.count(total)} raw texts: kept, and dropped by reason", drawn, note=note)
    return joined(drawing, meaning, removed if altered else None)


def _splits(run: ReportedRun) -> Markup:
    rows = [(name, *(formats.count(number) for _, number in split)) for name, split in _metrics(run).splits.items()]
    names = ("split", *(f">{formats.in_words(column)}" for column in clean_text.SplitMetrics.model_fields))
    return table("Splits of the text", names, rows)


def _similarity(run: ReportedRun) -> Markup:
    about = "Similar texts go into the same split, so that no test text is a copy of a training text."
    counts = facts([(formats.in_words(key), formats.count(value)) for key, value in _metrics(run).similarity])
    return folded("Similar texts", joined(html("paragraph", text=about), counts))


def _tokens(run: ReportedRun) -> Markup:
    metrics = run.files.json("metrics/tokenize.json", token_metrics.TokenMetrics, stage="tokenize")
    beside = zip(metrics.train, metrics.validation, strict=True)
    rows = [
        (formats.in_words(key), _token_cell(key, train), _token_cell(key, held)) for (key, train), (_, held) in beside
    ]
    caption = f"Tokens, with a vocabulary of {formats.amount(metrics.vocab_size)}"
    return table(caption, ("figure", ">train", ">validation"), rows)


def _token_cell(key: str, value: float) -> str:
    return f"{100 * value:.3g} %" if key in {"unknown_rate", "vocabulary_use"} else formats.format_of(key)(value)


def example_parts(run: ReportedRun) -> Iterable[Part]:
    return [partial(_examples, run)]


def _examples(run: ReportedRun) -> Markup:
    examples = run.files.json(_FILE, list[evaluation.ClozeExample], stage="evaluate")
    return joined(*(_example(number, example) for number, example in enumerate(examples, start=1)))


def _example(number: int, example: evaluation.ClozeExample) -> Markup:
    ranks = [guess.rank for guess in example.guesses]
    first, five = ranks.count(1), sum(rank is not None for rank in ranks)
    summary = f"{len(ranks)} words: {first} right at the first guess, {five} among the first five"
    rows = [_row(place, guess) for place, guess in enumerate(example.guesses, start=1)]
    columns = (">#", "token", ">its probability", "five likeliest")
    caption = f"Example {number}: words and guesses"
    answers = table(caption, columns, rows, kind="guesses")
    return html("example", around=_around(example), guesses=example.guesses, answers=folded(summary, answers))


def _around(example: evaluation.ClozeExample) -> list[str]:
    """Return the text between the hidden words; for a causal model, which hides none, the whole text."""
    around = example.masked.split(example.mask_token) if example.mask_token else []
    return around if len(around) == len(example.guesses) + 1 else [example.original]


def _row(place: int, guess: evaluation.Guess) -> tuple[object, ...]:
    hidden = message(guess.original, guess.outcome, tag="mark")
    return (place, hidden, formats.share(guess.original_probability), html("likeliest", guess=guess))


def provenance_parts(run: ReportedRun) -> Iterable[Part]:
    ways = [partial(_way, run, package) for package in run.packages]
    return [partial(_identity, run), partial(_agreement, run), partial(_stages, run), *ways, partial(_knobs, run)]


def _identity(run: ReportedRun) -> Markup:
    of_lock: list[tuple[object, object]] = [("dvc.lock, md5", code(run.files.md5("dvc.lock")))]
    past = run.past()
    commit = code(past.commit) if past.commit else "unknown: outside a git checkout, or of another run"
    if past.commit and past.is_dirty:
        commit = joined(commit, ", with uncommitted changes")
    tracked = code(past.run_id) if past.run_id else "none with this dvc.lock"
    return facts([*of_lock, ("git commit", commit), ("MLflow run", tracked)])


def _agreement(run: ReportedRun) -> Markup:
    """Tell whether the figures on the page match dvc.lock, and the params of dvc.lock match params.yaml."""
    lock = run.files.lock()
    locked = [out for stage in lock.stages.values() for out in stage.outs if out.path.startswith(_SHOWN)]
    there = [out for out in locked if (run.files.root / out.path).is_file()]
    differing = [out.path for out in there if run.files.md5(out.path) != out.md5]
    faults = [f"{path} differs from its hash in dvc.lock" for path in differing]
    faults += [f"{knob} in params.yaml has changed since the stages ran" for knob in _changed_knobs(run)]
    if not faults:
        text = f"✓ All {len(there)} metric and plot files match dvc.lock, and so does params.yaml."
        return message(text, "good", tag="p")
    return html("faults", faults=faults)


def _changed_knobs(run: ReportedRun) -> list[str]:
    now = {key: str(value) for key, value in record.leaves(complete_tree(read_params(run.files.root / "params.yaml")))}
    return sorted(key for key, value in knobs(run.files.lock()).items() if now.get(key) != value)


def _stages(run: ReportedRun) -> Markup:
    past = run.past().stages
    rows = []
    for name, stage in run.files.lock().stages.items():
        made = past.get(name)
        when = f"{made.ended:%Y-%m-%d %H:%M} UTC" if made else "elsewhere, or before MLflow's records"
        rows.append((code(name), when, formats.seconds(made.seconds) if made else "–", code(stage.sha256[:16])))
    columns = ("stage", "executed", ">took", "sha256 of its inputs and outputs")
    caption = "Stages, and when each last ran; since then its outputs were restored from the cache"
    return table(caption, columns, rows)


def _way(run: ReportedRun, package: str) -> Markup:
    origin = ancestry(run.files.lock(), f"dist/{package}")
    return folded(f"From dist/{package} back to the raw text", html("ancestors", origin=origin, listed=set()))


def _knobs(run: ReportedRun) -> Markup:
    tables = (
        table(
            f"Params of {name}", ("knob", "value"), [(code(key), value) for key, value in stage.flat_params().items()]
        )
        for name, stage in run.files.lock().stages.items()
        if stage.params
    )
    return folded("Params of every stage", joined(*tables))
