"""The tables of `clozeline plan`."""

import io
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from clozeline.cli.tables import table_of
from clozeline.params.delivery import ExportParams
from clozeline.params.model import ModelParams
from clozeline.params.pretraining import PretrainParams
from clozeline.params.reading import with_keys, write_yaml
from clozeline.planning import serving
from clozeline.planning.advice import Situation, advise, as_tree, choices, combine
from clozeline.planning.costs import TrainingPlan, device_bytes, zoo
from clozeline.planning.timing import BATCH_TEXTS, TEXT_TOKENS, Footprint
from clozeline.system.progress import track

_MIB, _GIB = 2**20, 2**30
_SERVED = (
    "Times are for the graph alone, the fastest of several runs. Memory is that of the whole process with its runtime.",
    "fp16 makes only the file smaller: a CPU expands the weights to fp32.",
    "INT8 is the first scheme of `export.ladder`, with no product left out and all scales computed at run time. The"
    " export of a trained model decides whether INT8 is served, and whether the faster fixed scales are accurate"
    " enough.",
)


def plan_of(params: PretrainParams, vocab_size: int, timing: bool, params_file: Path) -> Sequence[RenderableType]:
    """Return the tables of one training, and the advice, with keys as `params_file` has them."""
    planned, memory_bytes = TrainingPlan.of(params, vocab_size), device_bytes()
    speed = planned.time() if timing and planned.memory.total < memory_bytes else None
    situation = Situation(planned, speed, memory_bytes)
    named = partial(with_keys, path=params_file, place="pretrain", section=params)
    advice = list(map(named, advise(situation))) or ["No problem found with this training."]
    tables = (_parameters(situation), _memory(situation), _time(situation))
    return [*tables, Text("Advice", style="bold"), *(Text(f"• {line}") for line in advice)]


def zoo_table(model: ModelParams, vocab_size: int) -> Sequence[RenderableType]:
    # Warnings about knobs that a family ignores are useful only if a single family is chosen.
    logging.getLogger("clozeline.encoder").setLevel(logging.ERROR)
    rows: list[Sequence[str] | None] = []
    for family, of_family in groupby(zoo(model, vocab_size).items(), lambda row: row[0][0]):
        for (_, size), (shape, count) in of_family:
            bytes_ = (count.fp32_bytes, count.fp16_bytes, count.int8_bytes)
            rows.append((family, size, str(shape), f"{count.total:,}", *map(size_of, bytes_)))
        rows.append(None)
    title = f"Every family in every size, vocabulary of {vocab_size:,}"
    return [table_of(title, "family", "size", ">shape", ">parameters", ">fp32", ">fp16", ">INT8", rows=rows)]


def served(model: ModelParams, vocab_size: int, export: ExportParams, family: str | None) -> Sequence[RenderableType]:
    """Return what `family` costs when it is served; None: what each does."""
    if family:
        serving.check_served(family)
    builds = {
        name: partial(serving.of_params, model.model_copy(update={"family": name}), vocab_size)
        for name in ([family] if family else serving.served_families())
    }
    return serving_table(_costs(builds, export), f"size {model.size or 'of params.yaml'}, vocabulary of {vocab_size:,}")


def served_published(names: Sequence[str], export: ExportParams) -> Sequence[RenderableType]:
    builds = {name: partial(serving.of_published, name) for name in names}
    return serving_table(_costs(builds, export), "with the shape and vocabulary of config.json, and random weights")


def _costs(builds: Mapping[str, Any], export: ExportParams) -> Mapping[str, Mapping[str, Footprint]]:
    for name in ("clozeline.encoder", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return {name: serving.serving_cost(builds[name], export) for name in track([*builds], "measure", len(builds))}


def serving_table(costs: Mapping[str, Mapping[str, Footprint]], size: str) -> Sequence[RenderableType]:
    """`size`: what the rows have in common, in words."""
    rows: list[Sequence[str] | None] = []
    for family, by_precision in costs.items():
        for precision, cost in by_precision.items():
            memory = "unknown" if cost.memory_bytes is None else size_of(cost.memory_bytes)
            times = (f"{cost.text_milliseconds:.2f} ms", f"{cost.batch_milliseconds:.1f} ms")
            rows.append((family, precision, size_of(cost.file_bytes), memory, *times))
        rows.append(None)
    title = f"Serving on this machine with one thread, {size}: one text of {TEXT_TOKENS} tokens, and {BATCH_TEXTS} such"
    columns = ("encoder", "precision", ">file", ">memory", ">one text", f">{BATCH_TEXTS} texts")
    has_int8 = any("INT8" in by_precision for by_precision in costs.values())
    return [table_of(f"{title} texts", *columns, rows=rows), *map(Text, _SERVED if has_int8 else _SERVED[:-1])]


def chosen(needs: Sequence[str]) -> Sequence[RenderableType]:
    of_needs = {need: choices()[need] for need in dict.fromkeys(needs)}
    rows = ((need, one.family, one.size, one.recipe, one.tokenizer) for need, one in of_needs.items())
    table = table_of("What to choose", "for", "family", "size", "recipe", "tokenizer", rows=rows)
    combined = combine(needs)
    reasons = [Text(f"• {need}: {one.why}") for need, one in of_needs.items()]
    conflicts = [
        Text(f"• {need} recommends another {', '.join(keys)}: the need named first wins", style="yellow")
        for need, keys in combined.conflicts.items()
    ]
    text = io.StringIO()
    write_yaml(as_tree(combined.params), text)
    lines = Text("In params.yaml", style="bold")
    return [table, *reasons, *conflicts, lines, Text(text.getvalue().rstrip())]


def _parameters(situation: Situation) -> Table:
    plan, params = situation.plan, situation.plan.params
    what = params.start or f"{params.model.family} {params.model.size or 'with its own shape'}"
    if plan.shape is not None:
        heads, width = plan.shape.num_attention_heads, plan.shape.intermediate_size
        what = f"{what} ({plan.shape}, {heads} heads, MLP width {width:,})"
    title = f"{what}, {params.objective}, vocabulary of {plan.vocab_size:,}, rows of {params.max_length} tokens"
    count = plan.count
    rows: list[Sequence[str] | None] = [
        (name, f"{number:,}", f"{number / count.total:.0%}")
        for name, number in (("embedding", count.embedding), ("body", count.body), ("head", count.head))
    ]
    rows += [None, ("total", f"{count.total:,}", "")]
    if count.generator:
        share = f"{count.generator / count.total:.0%}"
        rows.append(("of which the generator's own", f"{count.generator:,}", share))
    return table_of(title, "parameters", ">number", ">share", rows=rows)


def _memory(situation: Situation) -> Table:
    count, step, params = situation.plan.count, situation.plan.memory, situation.plan.params
    at_once = params.micro_batch_tokens or params.batch_tokens
    sizes = {
        "weights in fp32": count.fp32_bytes,
        "weights in fp16": count.fp16_bytes,
        "weights in INT8, as exported": count.int8_bytes,
        "training: weights and gradients, fp32": step.weights + step.gradients,
        f"training: optimizer state of {params.optimizer.kind}": step.optimizer,
        f"training: activations of {at_once:,} tokens, {situation.plan.precision.name}, about": step.activations,
        "training: total": step.total,
        "memory of this device": situation.memory_bytes,
    }
    rows = [(name, size_of(size_bytes)) for name, size_bytes in sizes.items()]
    return table_of("Memory", "what", ">size", rows=[*rows[:3], None, *rows[3:]])


def _time(situation: Situation) -> Table:
    plan, speed = situation.plan, situation.speed
    rows: list[Sequence[str] | None] = [
        ("FLOPs per token, forward", _si(plan.compute.forward)),
        ("FLOPs per token, training", _si(plan.compute.training)),
        ("tokens of the budget, at most", f"{plan.budget_tokens:,}"),
        ("FLOPs of the budget", _si(plan.compute.training * plan.budget_tokens)),
    ]
    if speed is not None:
        rows += [
            None,
            ("tokens/s here, measured", f"{speed.tokens_per_second:,.0f}"),
            ("FLOP/s here", _si(speed.tokens_per_second * plan.compute.training)),
            ("ETA of the budget", _duration(situation.seconds)),
        ]
    return table_of("Work", "what", ">figure", rows=rows)


def size_of(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:,.2f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:,.1f} MiB"


def _si(number: float) -> str:
    """Return the number with three digits and a prefix."""
    for unit in ("", "k", "M", "G", "T", "P"):
        if number < 1000:
            return f"{number:.3g} {unit}".strip()
        number /= 1000
    return f"{number:.3g} E"


def _duration(seconds: float) -> str:
    for unit, of_unit in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * of_unit:
            return f"{seconds / of_unit:.1f} {unit}"
    return f"{seconds:.0f} s"
