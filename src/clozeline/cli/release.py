"""`clozeline run`, `release`, `rollback`, `history`, `sign` and `lineage`: from raw text to champions and back.

`sign` makes a signature that a server can require.
"""

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.tree import Tree

from clozeline.cli.verbs import ending_orderly, project_here, project_to_run, sound_project_here
from clozeline.params import editing, reading
from clozeline.records.package import read_manifest, verify
from clozeline.registry import signature
from clozeline.system.errors import ArtifactError, ClozelineError, ParamsError, TransientError
from clozeline.system.files import replacing_file
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tracking.run_logger import require_tensorboard

if TYPE_CHECKING:
    from clozeline.registry.lineage import Ancestor, Trace
    from clozeline.registry.versions import Registry


def release(accept_held: Annotated[bool, typer.Option("--accept")] = False) -> None:
    """Release the packages in `dist/`: check, register, and promote what passes the gates of params.yaml.

    A version that passes becomes the `champion`, and the old champion becomes the `previous` version. A version that
    fails stays the `candidate`. Candidate and champion are measured on the same items, and `release.promote` says what
    the interval of the difference has to show. A version is held until you give `--accept` if that cannot be decided,
    or if it is a task's first version and does not beat the simple method (without `release.beat_baseline`, the
    trivial answer). Releasing a package again creates no second version.

    Examples:

    `clozeline release`

    `clozeline release --accept`   after a look at the evidence

    Args:
        accept_held: Promote held versions too, except those that were rolled back.
    """
    workspace = sound_project_here()
    with ending_orderly():
        from clozeline.cli import summary
        from clozeline.flows.release import release as release_all
        from clozeline.orchestration.release import require_registry
        from clozeline.orchestration.servers import ensure_prefect_server

        require_registry(workspace, reading.read_params(workspace.root / "params.yaml"))  # before a server is started
        ensure_prefect_server(workspace)
        summary.show_releases(workspace, release_all(workspace.root, accept_held))


def rollback(
    model: Annotated[str, typer.Argument()] = "encoder",
    to: Annotated[str | None, typer.Option("--to", metavar="VERSION")] = None,
    undo: Annotated[bool, typer.Option("--undo")] = False,
    why: Annotated[str, typer.Option("--why", metavar="TEXT")] = "",
) -> None:
    """Make the previous version the champion again; a second rollback in a row is refused.

    No later release promotes a version that was rolled back. Only `--undo` or `--to` does.

    Examples:

    `clozeline rollback`

    `clozeline rollback library`

    `clozeline rollback library --undo`

    `clozeline rollback library --to 3 --why "wrong labels in version 4"`

    Args:
        model: Name of a registered model (`clozeline-encoder`), or its name in dist/ (`encoder`).
        to: Go back to this version, however old.
        undo: Make the rolled-back version the champion again.
        why: Reason, kept in the record of the change.
    """
    if to and undo:
        raise ParamsError(
            "a rollback goes to one version: give --to VERSION or --undo, not both",
            do=f"`clozeline rollback {model} --to {to}`, or `clozeline rollback {model} --undo`",
        )
    name, registry = _registered_model(model)
    done = registry.roll_back(name, to=to, undo=undo, why=why)
    typer.echo(f"{name}: version {done.after} is the champion, version {done.before} the previous one")


def history(
    model: Annotated[str, typer.Argument()] = "encoder", as_json: Annotated[bool, typer.Option("--json")] = False
) -> None:
    """Show each change of the champion: who made it, when, why, and on which evidence.

    Examples:

    `clozeline history`

    `clozeline history library --json`

    Args:
        model: Name of a registered model, or its name in dist/.
        as_json: Print one JSON record for each change.
    """
    name, registry = _registered_model(model)
    changes = registry.changes(name)
    if not changes:
        raise ArtifactError(f"{name} has never had a champion", do="`clozeline release` it first")
    for change in changes:
        typer.echo(change.model_dump_json() if as_json else f"{change}{change.evidence and f' ({change.evidence})'}")


def _registered_model(model: str) -> "tuple[str, Registry]":
    """Return the full name of `model`, and the registry of the project in this folder.

    Raises:
        ArtifactError: the registry has other models, but not this one.
    """
    workspace = project_here()
    from clozeline.registry.models import CHAMPION, MODEL_PREFIX, model_name
    from clozeline.registry.versions import Registry

    name = model if model.startswith(MODEL_PREFIX) else model_name(model)
    registry = Registry.open(tracking_uri(workspace))
    known = registry.names_with(CHAMPION)
    if known and name not in known:
        raise ArtifactError(
            f"there is no registered model {model}, but {', '.join(sorted(known))}",
            do="correct the name, or release that model first (`clozeline release`)",
        )
    return name, registry


def sign(model: str, key: Annotated[Path, typer.Option(exists=True)]) -> None:
    """Sign a model, so that `clozeline serve --require-signature` serves it.

    The signature of a folder is in the file FOLDER.sig, that of a registered version in its tag. A release signs what
    it registers if CLOZELINE_SIGNING_KEY names a key.

    Example: `clozeline sign models:/clozeline-encoder@champion --key ~/.ssh/id_ed25519`

    Args:
        model: A folder of dist/, or models:/NAME@ALIAS or …/VERSION.
        key: SSH key; its .pub file if ssh-agent holds the private half.
    """
    from clozeline.registry import models
    from clozeline.registry.sources import REGISTRY_SCHEME
    from clozeline.registry.versions import Registry

    if model.startswith(REGISTRY_SCHEME):
        version = models.live_version(model)
        package = models.fetch(f"models:/{version.name}/{version.version}")
        signed = signature.sign(package.folder, key)
        Registry.open(tracking_uri(Workspace(Path.cwd()))).tag(version, models.SIGNATURE, signed)
        place = f"the registry, as a tag of {version}"
    else:
        folder = Path(model)
        verify(folder, read_manifest(folder))
        file, signed = signature.signature_file(folder), signature.sign(folder, key)
        with replacing_file(file) as written:
            written.write_text(signed, encoding="utf-8")
        place = str(file)
    typer.echo(f"signed: the signature is in {place}. Next: clozeline serve {model} --require-signature FILE")


def lineage(
    uri: Annotated[str, typer.Argument(metavar="MODEL")], verify: Annotated[bool, typer.Option("--verify")] = False
) -> None:
    """Trace a registered model back to the raw text, by the hashes of the dvc.lock that it was released with.

    Example: `clozeline lineage models:/clozeline-encoder@champion --verify`

    Args:
        uri: A registered model: models:/NAME@ALIAS or …/VERSION.
        verify: Check the hash of every file on the way; name each that is missing or differs.
    """
    workspace = project_here()
    from clozeline.registry import lineage

    traced = lineage.trace(uri, workspace)
    tree = as_tree(traced)
    wide_enough(tree).print(tree)
    if verify:
        num_checked = lineage.verify(traced, workspace)
        typer.echo(f"verified: {num_checked} files and folders exist, and every hash matches")
        if traced.forgotten:
            typer.echo(f"forgotten: {', '.join(sorted(traced.forgotten))}; `clozeline forget` removed a text in them")


def wide_enough(tree: Tree) -> Console:
    """Return a console as wide as the longest line: a hash that is cut short is useless."""
    console = Console()
    unlimited = console.options.update(max_width=sys.maxsize)
    return Console(width=max(console.width, console.measure(tree, options=unlimited).maximum))


def as_tree(traced: "Trace") -> Tree:
    """Return the whole lineage as a tree; repeated ancestors are not expanded again."""
    tree = Tree(traced.uri)
    version = tree.add(f"{traced.version}, package sha256 {traced.version.package_sha256[:12]}")
    run = version.add(f"MLflow run {traced.version.run_id}, git commit {traced.commit or '(not in a checkout)'}")
    _add(run, traced, traced.origin, set())
    return tree


def _add(tree: Tree, traced: "Trace", ancestor: "Ancestor", listed: set[str]) -> None:
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


def run(
    release: bool = True,
    refresh: Annotated[bool, typer.Option("--refresh")] = False,
    config: Annotated[list[Path] | None, typer.Option(metavar="FILE")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
) -> None:
    """Bring every stage up to date, release the models, and show the results, as tables and in reports/report.html.

    Only stages that depend on a change run; earlier results come from DVC's cache. `make run` calls this.

    Examples:

    `clozeline run`                everything

    `clozeline run --no-release`   leave the registry as it is

    `clozeline run --set pretrain.steps=500 --set seed=7`   change two values of params.yaml first

    `clozeline run --config configs/clm.yaml`   change all values that this file names

    `CLOZELINE_TENSORBOARD=work/tensorboard clozeline run`   write the curves for TensorBoard, too

    Args:
        release: Release the models that pass the gates of params.yaml.
        refresh: Read a source again that DVC cannot watch: a URL, a database, the hub.
        config: Change params.yaml to the values in FILE, as in configs/.
        settings: Change one value of params.yaml.
    """
    workspace = project_here()
    require_tensorboard()
    _change_params(workspace, config or (), settings or ())
    project_to_run()
    started = time.monotonic()
    with ending_orderly():
        from clozeline.cli import summary
        from clozeline.flows.pipeline import pipeline
        from clozeline.flows.release import release as release_all
        from clozeline.orchestration.release import Release, ReleaseRefusedError
        from clozeline.orchestration.servers import ensure_prefect_server
        from clozeline.reporting import page

        ensure_prefect_server(workspace)
        stages = pipeline(workspace.root, refresh=refresh)
        releases: Sequence[Release] = ()
        failure: ClozelineError | None = None
        if release:
            try:
                releases = release_all(workspace.root, trial=True)
            except ReleaseRefusedError as error:
                failure, releases = error, error.releases
            except TransientError as error:
                failure = error
        summary.show(workspace, stages, releases, seconds=time.monotonic() - started)
        page.write(workspace, datetime.now(UTC))
        if failure:
            failure.is_reported = False  # show the error again below the tables
            raise failure


def _change_params(workspace: Workspace, files: Sequence[Path], settings: Sequence[str]) -> None:
    """Change params.yaml before anything runs, and say how."""
    changes = [change for file in files for change in editing.changes_in(file)] + editing.assignments(settings)
    source = ", ".join([*map(str, files), *(["--set"] if settings else [])])
    lines = editing.edit(workspace.root / "params.yaml", changes, source) if changes else []
    for line in lines:
        typer.echo(f"params.yaml: {line}", err=True)
    if lines and workspace.is_in_git:
        typer.echo("`git diff params.yaml` shows the changes, `git checkout params.yaml` takes them back", err=True)
