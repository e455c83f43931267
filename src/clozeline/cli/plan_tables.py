"""The tables of `clozeline plan`."""

import io
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from ruamel.yaml import YAML

from clozeline.cli.tables import table_of
from clozeline.params.delivery import ExportParams
from clozeline.params.model import ModelParams
from clozeline.params.pretraining import PretrainParams
from clozeline.params.reading import with_keys
from clozeline.planning import serving
from clozeline.planning.advice import Situation, advise, as_tree, choices, combine
from clozeline.planning.costs import TrainingPlan, device_bytes, zoo
from clozeline.planning.timing import BATCH_TEXTS, TEXT_TOKENS
from clozeline.system.progress import track

_MIB, _GIB = 2**20, 2**30
_PLAIN_WIDTH = 160
_SERVED = (
    "Times are for the graph alone, the fastest of several runs. Memory is that of the whole process with its runtime.",
    "fp16 makes only the file smaller: a CPU expands the weights to fp32.",
    "INT8 is the first scheme of `export.ladder`, with no product left out and all scales computed at run time. The"
    " export of a trained model decides whether INT8 is served, and whether the faster fixed scales are accurate"
    " enough.",
)


def show(tables: Iterable[Any]) -> None:
    """Print to standard output, with lines and colours in a terminal, otherwise as plain text in columns."""
    is_terminal = sys.stdout.isatty()
    console = Console() if is_terminal else Console(width=_PLAIN_WIDTH)
    for table in tables:
        if isinstance(table, Table):
            # Printed apart from the table, so that a long title does not wrap at the table's width.
            if table.title is not None:
                console.print(Text(str(table.title), style="bold"))
            table.title = None
            table.box = table.box if is_terminal else None
        console.print(table)


def plan_of(params: PretrainParams, vocab_size: int, timing: bool, params_file: Path) -> Sequence[RenderableType]:
    """Return the tables of one training, and the advice, with keys as `params_file` has them."""
    planned, memory_bytes = TrainingPlan.of(params, vocab_size), device_bytes()
    speed = planned.time() if timing and planned.memory.total < memory_bytes else None
    situation = Situation(planned, speed, memory_bytes)
    named = partial(with_keys, path=params_file, place="pretrain", section=params)
    advice = [named(line) for line in advise(situation)] or ["No problem found with this training."]
    tables = (_parameters(situation), _memory(situation), _time(situation))
    return [*tables, Text("Advice", style="bold"), *(Text(f"• {line}") for line in advice)]


def zoo_table(model: ModelParams, vocab_size: int) -> Sequence[RenderableType]:
    # Warnings about knobs that a family ignores are useful only if a single family is chosen.
    logging.getLogger("clozeline.encoder").setLevel(logging.ERROR)
    title = f"Every family in every size, vocabulary of {vocab_size:,}"
    table = table_of(title, "family", "size", ">shape", ">parameters", ">fp32", ">fp16", ">INT8")
    last = ""
    for (family, size), (shape, count) in zoo(model, vocab_size).items():
        if family != last and last:
            table.add_section()
        bytes_ = (count.fp32_bytes, count.fp16_bytes, count.int8_bytes)
        table.add_row(family, size, str(shape), f"{count.total:,}", *map(size_of, bytes_))
        last = family
    return [table]


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


def _costs(builds: Mapping[str, Any], export: ExportParams) -> Mapping[str, Mapping[str, serving.GraphCost]]:
    for name in ("clozeline.encoder", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return {name: serving.serving_cost(builds[name], export) for name in track([*builds], "measure", len(builds))}


def serving_table(costs: Mapping[str, Mapping[str, serving.GraphCost]], size: str) -> Sequence[RenderableType]:
    """`size`: what the rows have in common, in words."""
    title = (
        f"Serving on this machine with one thread, {size}: one text of {TEXT_TOKENS} tokens, and {BATCH_TEXTS} such"
        " texts"
    )
    table = table_of(title, "encoder", "precision", ">file", ">memory", ">one text", f">{BATCH_TEXTS} texts")
    for family, by_precision in costs.items():
        for precision, cost in by_precision.items():
            taken = cost.footprint
            memory = "unknown" if taken.memory_bytes is None else size_of(taken.memory_bytes)
            times = (f"{taken.text_milliseconds:.2f} ms", f"{taken.batch_milliseconds:.1f} ms")
            table.add_row(family, precision, size_of(cost.file_bytes), memory, *times)
        table.add_section()
    has_int8 = any("INT8" in by_precision for by_precision in costs.values())
    return [table, *map(Text, _SERVED if has_int8 else _SERVED[:-1])]


def chosen(needs: Sequence[str]) -> Sequence[RenderableType]:
    table = table_of("What to choose", "for", "family", "size", "recipe", "tokenizer")
    for need in dict.fromkeys(needs):
        choice = choices()[need]
        table.add_row(need, choice.family, choice.size, choice.recipe, choice.tokenizer)
    combined = combine(needs)
    reasons = [Text(f"• {need}: {choices()[need].why}") for need in dict.fromkeys(needs)]
    conflicts = [
        Text(f"• {need} recommends another {', '.join(keys)}: the need named first wins", style="yellow")
        for need, keys in combined.conflicts.items()
    ]
    text = io.StringIO()
    yaml = YAML()
    yaml.indent(mapping=2)
    yaml.representer.add_representer(
        type(None), lambda writer, _: writer.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    yaml.dump(as_tree(combined.params), text)
    lines = Text("In params.yaml", style="bold")
    return [table, *reasons, *conflicts, lines, Text(text.getvalue().rstrip())]


def _parameters(situation: Situation) -> Table:
    plan, params = situation.plan, situation.plan.params
    what = params.start or f"{params.model.family} {params.model.size or 'with its own shape'}"
    if plan.shape is not None:
        heads, width = plan.shape.num_attention_heads, plan.shape.intermediate_size
        what = f"{what} ({plan.shape}, {heads} heads, MLP width {width:,})"
    title = f"{what}, {params.objective}, vocabulary of {plan.vocab_size:,}, rows of {params.max_length} tokens"
    table = table_of(title, "parameters", ">number", ">share")
    count = plan.count
    for name, number in (("embedding", count.embedding), ("body", count.body), ("head", count.head)):
        table.add_row(name, f"{number:,}", f"{number / count.total:.0%}")
    table.add_section()
    table.add_row("total", f"{count.total:,}", "")
    if count.generator:
        table.add_row("of which the generator's own", f"{count.generator:,}", f"{count.generator / count.total:.0%}")
    return table


def _memory(situation: Situation) -> Table:
    count, step, params = situation.plan.count, situation.plan.memory, situation.plan.params
    at_once = params.micro_batch_tokens or params.batch_tokens
    weights = {
        "weights in fp32": count.fp32_bytes,
        "weights in fp16": count.fp16_bytes,
        "weights in INT8, as exported": count.int8_bytes,
    }
    training = {
        "training: weights and gradients, fp32": step.weights + step.gradients,
        f"training: optimizer state of {params.optimizer.kind}": step.optimizer,
        f"training: activations of {at_once:,} tokens, {situation.plan.precision.name}, about": step.activations,
        "training: total": step.total,
        "memory of this device": situation.memory_bytes,
    }
    table = table_of("Memory", "what", ">size")
    for sizes in (weights, training):
        for name, size_bytes in sizes.items():
            table.add_row(name, size_of(size_bytes))
        table.add_section()
    return table


def _time(situation: Situation) -> Table:
    plan, speed = situation.plan, situation.speed
    table = table_of("Work", "what", ">figure")
    table.add_row("FLOPs per token, forward", _si(plan.compute.forward))
    table.add_row("FLOPs per token, training", _si(plan.compute.training))
    table.add_row("tokens of the budget, at most", f"{plan.budget_tokens:,}")
    table.add_row("FLOPs of the budget", _si(plan.compute.training * plan.budget_tokens))
    if speed is not None:
        table.add_section()
        table.add_row("tokens/s here, measured", f"{speed.tokens_per_second:,.0f}")
        table.add_row("FLOP/s here", _si(speed.tokens_per_second * plan.compute.training))
        table.add_row("ETA of the budget", _duration(situation.seconds))
    return table


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
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86_400
    if days >= 2:
        return f"{days:.1f} days"
    if hours >= 2:
        return f"{hours:.1f} hours"
    return f"{minutes:.1f} minutes" if minutes >= 2 else f"{seconds:.0f} s"
