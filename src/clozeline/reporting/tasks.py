"""The chapter on tasks: the figures of each task beside its baselines, its classes, and its mistakes.

The confusion between classes is a matrix that stays readable with twenty classes, and a list of the largest errors.

Shapes: C classes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import isfinite

from markupsafe import Markup

from clozeline.records.finetune.task_metrics import CLASS, AnswerRow, Headline, ShownItem, TaskMetrics, ValidationScore
from clozeline.reporting import charts, formats
from clozeline.reporting.run import Part, ReportedRun, comparison, facts, folded, html, joined, message, table, verdict
from clozeline.training.curves import CurvePoint

MOST_CLASSES = 24
_OTHER = "(others)"
_MOST_ERRORS = 12
# Prefix of a key in a task's metric file → name of the method; a new method needs only a new row.
_OTHERS = {
    "hybrid_": "together with BM25",
    "baseline_probe_": "logistic regression on the frozen encoder",
    "baseline_tfidf_": "TF-IDF + logistic regression",
    "baseline_tfidf_cosine_": "cosine of TF-IDF",
    "baseline_bm25_": "BM25",
    "random_order_": "a random order",
    "baseline_usual_tag_": "each word's usual tag",
    "baseline_nearest_sentence_": "nearest sentence by TF-IDF",
    "majority_": "largest class",
    "no_answer_": "no answer to anything",
}


def matrix(task: str, pairs: Sequence[tuple[str, str]]) -> Markup:
    """Return the error list and the matrix of (actual, predicted) pairs, folded."""
    right = sum(actual == predicted for actual, predicted in pairs)
    summary = f"Mistakes and confusion matrix: {formats.count(right)} of {formats.count(len(pairs))} right"
    labels, cells = _rare_labels_merged(pairs)
    sizes = Counter[str]()
    for (actual, _), times in cells.items():
        sizes[actual] += times
    confusion = html("confusion", task=task, labels=labels, cells=cells, sizes=sizes)
    return folded(summary, joined(_errors(task, pairs), confusion))


def _errors(task: str, pairs: Sequence[tuple[str, str]]) -> Markup | None:
    sizes = Counter(actual for actual, _ in pairs)
    errors = Counter(pair for pair in pairs if pair[0] != pair[1])
    worst = sorted(errors.items(), key=lambda item: (-item[1], item[0]))[:_MOST_ERRORS]
    rows = [
        (actual, predicted, formats.count(times), formats.share(times / sizes[actual]))
        for (actual, predicted), times in worst
    ]
    columns = ("actual", "predicted", ">times", ">share of the class")
    caption = f"{task}: the most frequent mistakes"
    return table(caption, columns, rows) if rows else None


def _rare_labels_merged(pairs: Sequence[tuple[str, str]]) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Return the sorted labels and the count of each pair; beyond `MOST_CLASSES` the rarest labels are merged."""
    sizes = Counter(label for pair in pairs for label in pair)
    if len(sizes) <= MOST_CLASSES:
        return sorted(sizes), Counter(pairs)
    frequent = sorted(sizes, key=lambda label: (-sizes[label], label))[: MOST_CLASSES - 1]
    names = {label: label if label in frequent else _OTHER for label in sizes}
    return [*sorted(frequent), _OTHER], Counter((names[actual], names[predicted]) for actual, predicted in pairs)


def parts(run: ReportedRun) -> Iterable[Part]:
    pieces = (_heading, _headline, _loss, _scores, _figures, _classes, _confusion, _examples)
    return [partial(piece, run, task) for task in run.tasks for piece in pieces]


def headline(run: ReportedRun, task: str) -> Headline:
    """Return the figure that the task is compared by."""
    return metrics(run, task).headline


def faults(run: ReportedRun, task: str) -> tuple[str, ...]:
    """Return the faults of the model, each marked with ✗."""
    return tuple(f"✗ {fault}" for fault in metrics(run, task).faults)


def metrics(run: ReportedRun, task: str) -> TaskMetrics:
    return run.files.json(f"metrics/finetune/{task}.json", TaskMetrics, stage=f"finetune@{task}")


def form(given: Headline) -> formats.Format:
    """Return the format of the values of a headline figure."""
    return formats.of_metric(given.metric)


def _heading(run: ReportedRun, task: str) -> Markup:
    return html("heading", words="Task ", name=task)


def _headline(run: ReportedRun, task: str) -> Markup:
    given = headline(run, task)
    shown = form(given)
    text = f"{shown(given.value)} ({shown(given.low)} – {shown(given.high)})"
    rows = [
        charts.Bar(given.method, given.value, text, given.low, given.high),
        *(charts.Bar(name, value, shown(value)) for name, value in given.compared),
    ]
    title = f"{task}: {formats.in_words(given.metric)} on the test set"
    notices = [message(fault, "bad", tag="p") for fault in faults(run, task)]
    note = f"The line is the 95 % interval over other items of the same kind.{_lead(given)}{_without_duplicates(given)}"
    drawn = charts.bars(title, rows, most=1.0, note=note)
    return joined(*notices, drawn)


def _lead(given: Headline) -> str:
    if given.lead_low is None or given.lead_high is None:
        return ""
    low, high = (formats.difference(end, form(given)) for end in (given.lead_low, given.lead_high))
    return f" Difference to {given.baseline}: {low} to {high} (95 %, paired by test item)."


def _without_duplicates(given: Headline) -> str:
    others = given.without_near_duplicates
    if others is None:
        return ""
    value, low, high, baseline = map(form(others), (others.value, others.low, others.high, others.baseline_value))
    return (
        f" Without test items that are near-duplicates of training items: {value} ({low} – {high}), "
        f"{others.baseline} {baseline}.{_lead(others)}"
    )


def _loss(run: ReportedRun, task: str) -> Markup | None:
    rows = run.files.rows(f"plots/finetune/{task}_training.csv", CurvePoint, stage=f"finetune@{task}")
    points = [(row.step, row.loss) for row in rows]
    return charts.lines(f"{task}: loss in training", [charts.Series("loss", points)], x="step", y="per target")


def _scores(run: ReportedRun, task: str) -> Markup | None:
    rows = run.files.rows(f"plots/finetune/{task}_validation.csv", ValidationScore, stage=f"finetune@{task}")
    points = [(row.step, row.validation_score) for row in rows if isfinite(row.validation_score)]
    series = [charts.Series("validation score", points, has_dots=True)]
    note = f"The weights of epoch {metrics(run, task).best_epoch} were kept."
    return charts.lines(f"{task}: validation score", series, x="step", y="", note=note) if len(points) > 1 else None


def _figures(run: ReportedRun, task: str) -> Markup:
    judged = metrics(run, task)
    caption = f"{task}: figures on the test set"
    beside, rest = comparison(caption, _method_alone(judged), judged.model_dump(), _OTHERS)
    others = [
        (formats.in_words(key), formats.count(value) if key.startswith("num_") else formats.format_of(key)(value))
        for key, value in rest.items()
    ]
    groups = {name: value for name, value in (judged.model_extra or {}).items() if isinstance(value, dict)}
    details = joined(
        beside,
        _over_seeds(judged),
        facts(others),
        _rates(judged),
        *(_counts(name, formats.numbers(counts), judged.first_places or {}) for name, counts in groups.items()),
    )
    return folded("Every figure, and the data behind it", details)


def _method_alone(judged: TaskMetrics) -> str:
    """Return the method of the figures without a prefix. The headline may be of two methods together, which have the
    prefix `hybrid_`.
    """
    is_hybrid = any(key.startswith("hybrid_") for key in judged.model_extra or {})
    return "fine-tuned encoder alone" if is_hybrid else judged.headline.method


def _over_seeds(judged: TaskMetrics) -> Markup | None:
    over, kept = judged.over_seeds, judged.headline
    return html("over_seeds", over=over, metric=formats.in_words(kept.metric), form=form(kept)) if over else None


def _rates(judged: TaskMetrics) -> Markup | None:
    return html("rates", scores=judged.rate_scores) if judged.rate_scores is not None else None


def _counts(name: str, counts: Mapping[str, float], first_places: Mapping[str, str]) -> Markup:
    counted = {key: value for key, value in counts.items() if value}
    return html("counts", name=name, counts=counted, first_places=first_places)


def _classes(run: ReportedRun, task: str) -> Markup | None:
    rows = run.files.csv(f"plots/finetune/{task}_classes.csv", stage=f"finetune@{task}")
    if not rows:
        return None
    columns = [name for name in rows[0] if name != CLASS]
    figures = [(row.get(CLASS, ""), {name: float(row[name]) for name in columns if row[name]}) for row in rows]
    figures.sort(key=lambda row: -row[1].get("f1", 0.0))
    cells = [(label, *(_class_cell(name, of_class.get(name)) for name in columns)) for label, of_class in figures]
    heads = ("class", *(f">{formats.in_words(name)}" for name in columns))
    made = table(f"{task}: each class, the best first", heads, cells)
    return folded(f"Each of {len(rows)} classes", made)


def _class_cell(name: str, value: float | None) -> object:
    if value is None:
        return "–"
    if name != "f1":
        return (
            formats.format_of(name)(value) if 0 <= value <= 1 and not name.startswith("num_") else formats.count(value)
        )
    return html("meter", value=value)


def _confusion(run: ReportedRun, task: str) -> Markup | None:
    rows = run.files.rows(f"plots/finetune/{task}.csv", AnswerRow, stage=f"finetune@{task}")
    pairs = [(row.actual, row.predicted) for row in rows]
    return matrix(task, pairs) if pairs else None


def _examples(run: ReportedRun, task: str) -> Markup | None:
    path = f"reports/finetune/{task}/examples.json"
    if path not in run.files.names(path):
        return None  # tasks without examples
    items = run.files.json(path, list[ShownItem], stage=f"finetune@{task}")
    if not items:
        return None
    names = list(items[0].given)
    rows = [
        (
            verdict(item.is_right, "right" if item.is_right else "wrong"),
            *(item.given.get(name, "") for name in names),
            item.actual,
            item.predicted,
        )
        for item in items
    ]
    columns = ("", *(formats.in_words(name) for name in names), "actual", "predicted")
    caption = f"{task}: items of the test set, if possible as many wrong ones as right ones"
    made = table(caption, columns, rows, kind="texts")
    return folded(f"{len(items)} examples", made)
