"""`clozeline sign`: a signature that a server can require."""

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Use a model")(sign)


def sign(
    model: Annotated[str, typer.Argument(help="A folder of dist/, or models:/NAME@ALIAS or …/VERSION.")],
    key: Annotated[Path, typer.Option(exists=True, help="SSH key; its .pub file if ssh-agent holds the private half.")],
) -> None:
    """Sign a model, so that `clozeline serve --require-signature` serves it.

    The signature of a folder is in the file FOLDER.sig, that of a registered version in its tag. A release signs what
    it registers if CLOZELINE_SIGNING_KEY names a key.

    Example: `clozeline sign models:/clozeline-encoder@champion --key ~/.ssh/id_ed25519`
    """
    from clozeline.serving.models.sources import REGISTRY_SCHEME

    place = _in_the_registry(model, key) if model.startswith(REGISTRY_SCHEME) else _beside(Path(model), key)
    typer.echo(f"signed: the signature is in {place}. Next: clozeline serve {model} --require-signature FILE")


def _beside(folder: Path, key: Path) -> str:
    from clozeline.artifacts.export.manifest import read_manifest, verify
    from clozeline.registry.signature import sign, signature_file
    from clozeline.storage.atomic import replacing_file

    verify(folder, read_manifest(folder))
    file = signature_file(folder)
    signature = sign(folder, key)
    with replacing_file(file) as written:
        written.write_text(signature, encoding="utf-8")
    return str(file)


def _in_the_registry(uri: str, key: Path) -> str:
    from clozeline import registry
    from clozeline.registry.signature import sign
    from clozeline.registry.versions import Registry
    from clozeline.workspace import Workspace, tracking_uri

    found = registry.fetch(uri)
    versions = Registry.open(tracking_uri(Workspace(Path.cwd())))
    versions.tag(found.version, registry.SIGNATURE, sign(found.folder, key))
    return f"the registry, as a tag of {found.version}"
