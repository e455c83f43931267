"""`clozeline forget`: remove a document from every store of the project, and keep it out."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from clozeline.cli.project import project_here
from clozeline.errors import DataError

if TYPE_CHECKING:
    from clozeline.orchestration.forgetting import Findings
    from clozeline.workspace import Workspace

_MB: Final = 1e6
_DOC_ID: Final = re.compile("[0-9a-f]{32}")
_CLEAN: Final = Path("data/clean")
_NOT_CLEANED: Final = (
    "weights and vocabularies of the versions above: they were learnt from it",
    "git's history, backups, and Prefect's database, which keeps log lines",
    "sources, unless they are changed; caches and work/ of other machines: run the same command there",
)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Look at it")(forget)


def forget(
    document: Annotated[str, typer.Argument(help="File with the text, - for standard input, or a doc_id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without this option nothing is removed.")] = False,
) -> None:
    """Say where a document is, and with `--yes` remove it and keep it out.

    It is found by its words, as a text of its own or inside a longer one, in snapshots, splits, DVC's cache, run cache
    and remote, outputs, reports, logs, search indexes, MLflow's files of runs, and the lineage of registered versions.
    A tombstone in forgotten.lock, a keyed hash, keeps it out of later snapshots. Versions that come from it are marked;
    `clozeline lineage --verify` then says `forgotten` of what was removed.

    It may be killed at any moment: the same command goes on. Commit forgotten.lock and dvc.lock afterwards, keep
    forgotten.key out of git, and run `clozeline run`.

    Examples:

    `clozeline forget letter.txt`

    `clozeline forget letter.txt --yes`
    """
    workspace = project_here()
    from clozeline.orchestration.forgetting import forget as forget_text
    from clozeline.params import read_params

    params = read_params(workspace.root / "params.yaml")
    text = _text_of(document, workspace)
    found = forget_text(workspace, text, params.preprocess.max_characters, is_dry=not yes)
    _show(found, "removed" if yes else "removable")
    if yes:
        typer.echo("forgotten: commit forgotten.lock and dvc.lock, then `clozeline run` makes everything without it")
    elif found.is_anywhere or found.is_known:
        typer.echo(f"nothing was removed yet: `clozeline forget {document} --yes` does it")
    else:
        typer.echo(
            f"it is in none of these stores; `clozeline forget {document} --yes` keeps it out of later snapshots"
        )


def _text_of(document: str, workspace: "Workspace") -> str:
    if document == "-":
        return sys.stdin.read()
    path = Path(document)
    if not path.is_file() and _DOC_ID.fullmatch(document):
        return _text_with_id(document, workspace.root / _CLEAN)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{document} cannot be read",
            given=" ".join(str(error).split()),
            expected="a file with the text of the document in UTF-8, - for standard input, or a doc_id of data/clean",
            do="correct the name: `clozeline forget FILE`",
        ) from error


def _text_with_id(doc_id: str, clean: Path) -> str:
    from clozeline.artifacts.preprocess.clean_text import DOC_ID, SPLITS, TEXT, columns_of, file_of

    for split in SPLITS:
        for ids, texts in columns_of(file_of(clean, split), DOC_ID, TEXT):
            if doc_id in (known := ids.to_pylist()):
                return str(texts[known.index(doc_id)].as_py())
    raise DataError(
        "no text has this doc_id",
        given=doc_id,
        expected=f"a doc_id of {clean}",
        do="give the text itself: `clozeline forget FILE`",
    )


def _show(found: "Findings", removed: str) -> None:
    from rich.console import Console

    from clozeline.cli.tables import table_of

    typer.echo(f"{found.num_words:,} words; in the present data: {', '.join(found.holding) or 'nowhere'}")
    stores = table_of("", "store", ">not concerned", f">{removed}", ">MB")
    for store in found.stores:
        counts = (f"{store.num_kept:,}", f"{store.num_removable:,}", f"{store.num_bytes / _MB:,.1f}")
        stores.add_row(store.name, *counts)
    Console().print(stores)
    for one in found.versions:
        aliases = f" ({', '.join(one.aliases)})" if one.aliases else ""
        trained = "trained on it" if one.was_trained_on else "not found in its splits"
        typer.echo(f"{one.version}{aliases}: {trained}; it is in {', '.join(one.holding) or 'nothing that is stored'};")
        typer.echo(f"  {removed} behind it: {', '.join(one.removed)}")
    typer.echo("not changed, and not claimed to be clean:")
    for line in (*found.left, *_NOT_CLEANED):
        typer.echo(f"  {line}")
