"""Command lines that run a service of compose.yaml without a container engine.

Debian's bubblewrap gives each service what its image and compose.yaml say: command, environment, user, working
directory, read-only root, tmpfs and volumes. All services share one network without a way out, in which each answers
under its own name and port. Not emulated: images (packages are those of this environment), the separation into two
networks, limits of memory. Where namespaces are refused, services are plain processes with the paths of this machine.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tests.infra.stack.compose_file import ROOT, Compose, image_environment

# Folders of images with the mount points of volumes, which this machine may lack.
_READ_ONLY = ("/srv", "/var/lib")

# In other regions moto wants a location for each bucket, which Garage does not.
_OF_MOTO = {"AWS_DEFAULT_REGION": "us-east-1"}


def namespaces_are_allowed() -> bool:
    """Return whether a sandbox may contain another one here."""
    inner = ["bwrap", "--ro-bind", "/", "/", "--unshare-user", "true"]
    return subprocess.run([*machine(Path("/etc/hosts")), *inner], capture_output=True, check=False).returncode == 0


def machine(hosts: Path) -> list[str]:
    """Return the command prefix of a machine of its own: processes end with it, its network has no way out."""
    own_user = [] if os.geteuid() == 0 else ["--unshare-user"]
    binds = ["--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind", str(hosts), "/etc/hosts"]
    return ["bwrap", *binds, *own_user, "--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--"]


@dataclass(frozen=True)
class Process:
    """A command to start."""

    command: list[str]
    environment: dict[str, str]
    folder: Path


@dataclass(frozen=True)
class Sandbox:
    """Runs services of `compose`; their volumes are folders in `state`, and the checkout is `project`."""

    compose: Compose
    project: Path
    state: Path
    is_contained: bool

    def process(self, service: str, command: list[str] | None = None) -> Process:
        """Return how the service starts; with `command`, how `docker compose exec` runs it there."""
        command = self.compose.command(service) if command is None else command
        given = Process(command, self._environment(service), Path(self.compose.working_directory(service)))
        return self._contained(service, given) if self.is_contained else self._plain(service, given)

    def _environment(self, service: str) -> dict[str, str]:
        given = self.compose.variables(service)
        moved = {name: value for name, value in _OF_MOTO.items() if name in given}
        return image_environment(Path("/tmp")) | {"USER": "clozeline"} | given | moved

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

    def _contained(self, service: str, given: Process) -> Process:
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
        options += ["--new-session", "--die-with-parent", "--chdir", str(given.folder)]
        return replace(given, command=["bwrap", *options, "--", *given.command], folder=self.state)

    def _plain(self, service: str, given: Process) -> Process:
        """Return the same process, with the paths of this machine and its loopback in place of names."""
        paths = {**self._mounts(service), "/tmp": self.state / "tmp" / service}
        paths.setdefault("/srv/clozeline", self.state / "tmp" / service)
        paths["/tmp"].mkdir(parents=True, exist_ok=True)
        path = re.compile("|".join(rf"(?<![\w/.]){re.escape(name)}(?![\w.])" for name in paths))

        def here(text: str) -> str:
            return self._hosts.sub("127.0.0.1", path.sub(lambda found: str(paths[found[0]]), text))

        environment = {
            name: value if name in {"PATH", "USER"} else here(value) for name, value in given.environment.items()
        }
        if environment.get("PGHOST"):
            environment["PGHOST"] = "127.0.0.1"
        return Process([here(word) for word in given.command], environment, Path(here(str(given.folder))))

    @cached_property
    def _hosts(self) -> re.Pattern[str]:
        """Names of services in addresses."""
        return re.compile(rf"(?<=//)(?:{'|'.join(map(re.escape, self.compose.services))})(?=:\d)")
