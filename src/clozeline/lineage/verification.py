"""Check of a lineage against the stored bytes."""

from clozeline.artifacts.export.manifest import package_sha256, read_manifest
from clozeline.artifacts.export.manifest import verify as verify_package
from clozeline.errors import ArtifactError
from clozeline.lineage.trace import Trace
from clozeline.versions.objects import Objects
from clozeline.workspace import Workspace


def verify(traced: Trace, workspace: Workspace) -> int:
    """Check that every file from the registered package back to the raw text exists and is unchanged.

    A source with a snapshot may have changed since: the snapshot is checked in its place. What was removed because a
    text in it was forgotten is not looked for.

    Returns:
        Number of files and folders checked.

    Raises:
        ArtifactError: names every file that is missing or differs.
    """
    verify_package(traced.package.folder, read_manifest(traced.package.folder))
    faults = []
    if package_sha256(traced.package.folder) != traced.version.package_sha256:
        faults.append(f"{traced.package.folder}: not the package that was registered")
    ancestors = traced.stored()
    with Objects.open(workspace.root) as objects:
        if objects.md5_of(traced.package.folder) != traced.origin.md5:
            faults.append(f"{traced.package.folder}: not the output of {traced.origin.stage} ({traced.origin.md5})")
        for ancestor in ancestors:
            fault = objects.fault_of(ancestor.path, ancestor.md5, traced.commit)
            if fault:
                faults.append(f"{ancestor.path}: {fault}")
    if faults:
        raise ArtifactError(
            f"the lineage of {traced.uri} is broken: {len(faults)} of {len(ancestors)} files and folders",
            given="; ".join(faults),
            do="fetch them (`dvc pull --run-cache`); if `clozeline gc` removed them (it keeps versions with an alias),"
            " check out the commit it was released from and run `dvc repro`",
        )
    return len(ancestors)
