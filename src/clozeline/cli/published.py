"""`clozeline import`: a published model as a package of this project, proven, released and ready to serve."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clozeline.cli import ask, verbs
from clozeline.params import delivery, editing, project, reading
from clozeline.system import errors, files
from clozeline.system.workspace import Workspace

if TYPE_CHECKING:
    from clozeline.orchestration.importing import Described
    from clozeline.records.finetune.scored_items import HeldOut
    from clozeline.records.published import Published


# File → its bytes; None: there is no such file.
Contents = Mapping[Path, bytes | None]


def import_(
    model: str,
    task: str | None = None,
    name: str | None = None,
    text: Annotated[Path | None, typer.Option("--text", "-t")] = None,
    labelled: Path | None = None,
    fields: Annotated[list[str] | None, typer.Option("--field", metavar="NAME=YOURS")] = None,
    pairs: Annotated[bool, typer.Option("--pairs")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub. [default: main]")] = None,
    release: bool = True,
) -> None:
    """Make a published model a package of this project: ONNX, INT8 proven, registered, ready for `clozeline serve`.

    Its head, its pooling and its prompts stay as they are. The command writes the commit and the hash of each file into
    `imports` of params.yaml, and DVC runs the stage `import@NAME`, so that the package can be made again anywhere.
    INT8 is served if it answers like fp32: on --labelled, on --text, or else on built-in sentences.
    Records of --labelled have the fields text and label; sentence1, sentence2 and score (sentence vectors, one score
    of a pair); tokens and ner_tags; question, context and answers; or text, second and label (--pairs).

    Examples:

    - `clozeline import sentence-transformers/all-MiniLM-L6-v2 --text notes.txt`
    - `clozeline import ./my-folder --name sentiment --labelled reviews.csv --field label=stars`
    - `clozeline import google-bert/bert-base-uncased --task feature-extraction`

    Args:
        model: A folder with a model, or a name on the Hugging Face hub.
        task: Kind of model: feature-extraction, fill-mask, … [default: what the model is published as]
        name: Name in dist/ and in the registry. [default: from the model's name]
        text: Your text: INT8 is compared with fp32 on it.
        labelled: Your labelled records (.jsonl, .csv, .parquet): INT8 has to be as good on them.
        fields: Another name of a field in --labelled.
        pairs: The classifier reads pairs of texts.
        release: Register the package, and release it if it passes its gates.
    """
    workspace = verbs.project_to_run()
    from clozeline.orchestration.import_items import items_file, write_items
    from clozeline.orchestration.importing import described
    from clozeline.records.published import resolved

    earlier = reading.read_params(params_file := workspace.root / "params.yaml")
    called = _name(name or Path(model).resolve().name, earlier)
    names, published = _names(fields or ()), resolved(model, revision)
    found = described(published, task, reads_pairs=pairs)
    items = _items(found, text, labelled, names)
    with verbs.ending_orderly():
        entry = _checked_entry(published, found, items_file(called))
        file = workspace.root / items_file(called)
        before = {one: one.read_bytes() if one.exists() else None for one in (params_file, file)}
        try:
            write_items(file, _without_forgotten(items, workspace))
            editing.edit(params_file, [(f"imports.{called}", entry)], "clozeline import")
            typer.echo(f"params.yaml: imports.{called}: {found.family}, {found.task}", err=True)
            _package(workspace, called)
        except BaseException:  # it failed, or was interrupted
            _restore(before)
            raise
        if release:
            _release(workspace, called, before if called in earlier.imports else None)
    _say_next(found, called, is_proven_on_own=(text or labelled) is not None)


def _say_next(found: "Described", called: str, *, is_proven_on_own: bool) -> None:
    if not is_proven_on_own:
        typer.echo("INT8 was compared with fp32 on built-in sentences; `--text FILE` compares them on your text")
    kind = "entailment" if found.tells_entailment else "pairs" if found.reads_pairs else found.task
    typer.echo(f"Next: `clozeline {ask.EXAMPLES[kind]} --model dist/{called}`, or `clozeline serve dist/{called}`")


def _check_opens(entry: Mapping[str, Any]) -> None:
    """Refuse a model that lacks weights, or tokens that it needs, before a stage starts."""
    from clozeline.exporting.trained import opened_published

    with opened_published(delivery.ImportParams.model_validate(entry)):
        pass


def _restore(before: Contents) -> None:
    for file, content in before.items():
        if content is None:
            file.unlink(missing_ok=True)
            continue
        with files.replacing_file(file) as beside:
            beside.write_bytes(content)


def _package(workspace: Workspace, called: str) -> None:
    from clozeline.flows.pipeline import pipeline
    from clozeline.orchestration.servers import ensure_prefect_server

    ensure_prefect_server(workspace)
    pipeline(workspace.root, only=f"import@{called}")


def _release(workspace: Workspace, called: str, before: Contents | None) -> None:
    """Release the package, and show its figures. If it is refused, the earlier import comes back.

    Args:
        before: files of the earlier import of this name; None: this is the first.

    Raises:
        ReleaseRefusedError: the package failed a gate.
    """
    from clozeline.cli import summary
    from clozeline.flows.release import release
    from clozeline.orchestration.release import ReleaseRefusedError

    try:
        releases = release(workspace.root, only=called)
    except ReleaseRefusedError as error:
        summary.show_releases(workspace, error.releases)
        error.is_reported = False  # show the error again below the tables
        if before is not None:
            _restore(before)
            _package(workspace, called)  # DVC has it in its cache
            typer.echo(f"params.yaml and dist/{called} are those of the earlier import again", err=True)
        raise
    summary.show_releases(workspace, releases)
    if before is not None and any(made.outcome in ("held", "kept") for made in releases):
        typer.echo(
            f"params.yaml and dist/{called} are those of the new model, and the champion is still served; to go back, "
            "import the earlier model again"
        )


def _name(given: str, params: project.Params) -> str:
    called = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")
    if not called or called in params.export.models:
        raise errors.ParamsError(
            f"the name {given} is taken, or has no letter; `export.models` has {', '.join(params.export.models)}",
            do=f"choose another one: `--name {called or 'my'}-2`",
        )
    return called


def _names(fields: Sequence[str]) -> dict[str, str]:
    """Return field of the records → its name in the user's file."""
    names = {name: theirs for name, _, theirs in (field.partition("=") for field in fields)}
    if not all(name and theirs for name, theirs in names.items()):
        raise errors.ParamsError(
            f"--field has no name of the records or no name of your file: {', '.join(fields)}",
            do="write it as `--field label=stars`",
        )
    return names


def _items(
    found: "Described", text: Path | None, labelled: Path | None, names: Mapping[str, Any]
) -> "Sequence[HeldOut]":
    from clozeline.cli.evaluate import source_of
    from clozeline.orchestration.import_items import built_in_items, items_of_records, items_of_texts

    if text is not None and labelled is not None:
        raise errors.ParamsError(
            f"INT8 is compared with fp32 on items from one of --text {text} and --labelled {labelled}, not both",
            do="leave one out; records with labels say more",
        )
    if labelled is not None:
        return items_of_records(labelled, found.task, found.labels, reads_pairs=found.reads_pairs, names=names)
    if text is not None:
        return items_of_texts(text, source_of(text), found.task)
    return built_in_items(found.task, reads_pairs=found.reads_pairs)


def _without_forgotten(items: "Sequence[HeldOut]", workspace: Workspace) -> "Sequence[HeldOut]":
    from clozeline.orchestration.import_items import without
    from clozeline.records.snapshot import FORGOTTEN_LOCK, Forgotten

    forgotten = Forgotten.read(workspace.root / FORGOTTEN_LOCK)
    return without(items, lambda text: forgotten.cut(text) != text)


def _checked_entry(published: "Published", found: "Described", items: str) -> dict[str, Any]:
    """Return the entry of params.yaml, with which the model opens; on the hub this downloads it."""
    entry = {
        "model": published.name,
        "revision": published.revision,
        "task": found.task,
        "pooling": found.vectors.pooling,
        "prompts": dict(found.vectors.prompts),
        "default_prompt": found.vectors.default_prompt,
        "max_length": found.max_length,
        "reads_pairs": found.reads_pairs,
        "items": items,
        "sha256": published.sha256(),
    }
    _check_opens(entry)
    return entry
