"""Command lines that run a service of compose.yaml without a container engine.

Debian's bubblewrap gives each service what its image and compose.yaml say: command, environment, user, working
directory, read-only root, tmpfs and volumes. All services share one network without a way out, in which each answers
under its own name and port. Not emulated: images (packages are those of this environment), the separation into two
networks, limits of memory.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.infra.stack.compose_file import ROOT, Compose, image_environment

# Folders of images with the mount points of volumes, which this machine may lack.
_READ_ONLY = ("/srv", "/var/lib")

# In other regions moto wants a location for each bucket, which Garage does not.
_OF_MOTO = {"AWS_DEFAULT_REGION": "us-east-1"}


def machine(hosts: Path) -> list[str]:
    """Return the command prefix of a machine of its own: processes end with it, its network has no way out."""
    own_user = [] if os.geteuid() == 0 else ["--unshare-user"]
    binds = ["--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind", str(hosts), "/etc/hosts"]
    return ["bwrap", *binds, *own_user, "--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--"]


@dataclass(frozen=True)
class Sandbox:
    """Runs services of `compose`; their volumes are folders in `state`, and the checkout is `project`."""

    compose: Compose
    project: Path
    state: Path

    def environment(self, service: str) -> dict[str, str]:
        given = self.compose.variables(service)
        moved = {name: value for name, value in _OF_MOTO.items() if name in given}
        return image_environment(Path("/tmp")) | {"USER": "clozeline"} | given | moved

    def command(self, service: str, command: list[str] | None = None) -> list[str]:
        """Return how the service starts; with `command`, how `docker compose exec` runs it there."""
        uid, gid = self.compose.user(service)
        options = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        for folder in self.compose.services[service]["tmpfs"]:
            options += ["--tmpfs", folder]
        options += ["--ro-bind", str(ROOT), str(ROOT), "--ro-bind", sys.prefix, sys.prefix]
        for folder in _READ_ONLY:
            options += ["--tmpfs", folder]
        options += ["--dir", "/srv/clozeline"]
        for target, source in self._mounts(service).items():
            options += ["--ro-bind" if source.is_relative_to(ROOT) else "--bind", str(source), target]
        for folder in _READ_ONLY:
            options += ["--remount-ro", folder]
        options += ["--unshare-user", "--uid", str(uid), "--gid", str(gid), "--cap-drop", "ALL"]
        options += ["--new-session", "--die-with-parent", "--chdir", self.compose.working_directory(service)]
        return ["bwrap", *options, "--", *(self.compose.command(service) if command is None else command)]

    def _mounts(self, service: str) -> dict[str, Path]:
        """Return the folder of this machine behind each mount point of the service."""
        mounts: dict[str, Path] = {}
        if files := self.compose.image_files(service):
            mounts[self.compose.working_directory(service)] = files
        for source, target in self.compose.volumes(service).items():
            mounts[target] = self.project if source == ".." else self.state / source
        for folder in mounts.values():
            folder.mkdir(parents=True, exist_ok=True)
        return mounts
