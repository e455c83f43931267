"""`clozeline lineage`: the origins of a model."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clozeline.cli.project import project_here

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from clozeline.lineage.trace import Ancestor, Trace


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Use a model")(lineage)


def lineage(
    uri: Annotated[str, typer.Argument(metavar="MODEL", help="A registered model: models:/NAME@ALIAS or …/VERSION.")],
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Check the hash of every file on the way; name each that is missing or differs."),
    ] = False,
) -> None:
    """Trace a registered model back to the raw text, by the hashes of the dvc.lock that it was released with.

    Example: `clozeline lineage models:/clozeline-encoder@champion --verify`
    """
    workspace = project_here()
    from clozeline.lineage import verification
    from clozeline.lineage.trace import trace

    traced = trace(uri, workspace)
    tree = as_tree(traced)
    wide_enough(tree).print(tree)
    if verify:
        num_checked = verification.verify(traced, workspace)
        typer.echo(f"verified: {num_checked} files and folders exist, and every hash matches")
        if traced.forgotten:
            typer.echo(
                f"forgotten: {', '.join(sorted(traced.forgotten))}; a text in them was removed by `clozeline forget`"
            )


def wide_enough(tree: "Tree") -> "Console":
    """Return a console as wide as the longest line: a hash that is cut short is useless."""
    from rich.console import Console

    console = Console()
    unlimited = console.options.update(max_width=sys.maxsize)
    return Console(width=max(console.width, console.measure(tree, options=unlimited).maximum))


def as_tree(traced: "Trace") -> "Tree":
    """Return the whole lineage as a tree; repeated ancestors are not expanded again."""
    from rich.tree import Tree

    tree = Tree(traced.uri)
    version = tree.add(f"{traced.version}, package sha256 {traced.version.package_sha256[:12]}")
    run = version.add(f"MLflow run {traced.version.run_id}, git commit {traced.commit or '(not in a checkout)'}")
    _add(run, traced, traced.origin, set())
    return tree


def _add(tree: "Tree", traced: "Trace", ancestor: "Ancestor", listed: set[str]) -> None:
    of_source = "a source, copied by snapshot" if ancestor.has_copy else "a source"
    made_by = f"made by {ancestor.stage}" if ancestor.stage else of_source
    if ancestor.path in listed:
        tree.add(f"{ancestor.path} (see above)")
        return
    listed.add(ancestor.path)
    state = ", forgotten" if ancestor.path in traced.forgotten else ""
    branch = tree.add(f"{ancestor.path}  md5 {ancestor.md5}, {made_by}{state}")
    for parent in ancestor.parents:
        _add(branch, traced, parent, listed)
