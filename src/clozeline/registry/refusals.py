"""Refusals of a rollback."""

from clozeline.errors import ArtifactError
from clozeline.registry import Registered


def nowhere_to_go(name: str, champion: Registered | None, asked: str) -> ArtifactError:
    return ArtifactError(
        f"{name} has no version to go back to",
        given=f"champion: {champion or 'none'}; asked for: {asked}",
        expected="a champion that replaced another version",
        do=f"name another version (`clozeline rollback {name} --to VERSION`); without one, release a second"
        " version first (`clozeline run` after a change)",
    )


def no_second_time(champion: Registered, previous: Registered) -> ArtifactError:
    if previous.was_rolled_back:
        return ArtifactError(
            f"{champion.name} is rolled back already",
            given=f"champion: {champion}; previous: {previous}, which was rolled back",
            expected="a previous version that was not rolled back",
            do=f"leave it, or put version {previous.version} back with `clozeline rollback {champion.name} --undo`",
        )
    return ArtifactError(
        f"{champion.name} has no rollback to undo",
        given=f"champion: {champion}; previous: {previous}, which was not rolled back",
        expected="a previous version that was rolled back",
        do=f"`clozeline rollback {champion.name}` makes version {previous.version} the champion",
    )
