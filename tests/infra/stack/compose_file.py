"""infra/compose.yaml and infra/Dockerfile, with the secrets of one installation."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[3]
_VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?::(?P<rule>[?-])(?P<default>[^}]*))?\})")
_WORKDIR = "/srv/clozeline"
_COPIED = re.compile(r"^COPY (infra/\w+) \./$", re.MULTILINE)


@dataclass(frozen=True)
class Compose:
    """compose.yaml, with the secrets of one installation."""

    services: dict[str, Any]
    secrets: dict[str, str]
    settings: dict[str, str]

    @classmethod
    def read(cls) -> "Compose":
        content = YAML(typ="safe").load(ROOT / "infra/compose.yaml")
        example = read_env_file(ROOT / "infra/.env.example")
        secrets = {name: value or f"GK{len(name):032x}" for name, value in example.items()}
        return cls(content["services"], secrets, read_env_file(ROOT / "infra/settings.env"))

    def command(self, service: str) -> list[str]:
        return [self._filled(word) for word in self.services[service]["command"]]

    def variables(self, service: str) -> dict[str, str]:
        """Return the service's environment: settings.env, then its own variables."""
        own = self.services[service]["environment"]
        return self.settings | {name: self._filled(str(value)) for name, value in own.items()}

    def environment(self, service: str, home: Path, **elsewhere: object) -> dict[str, str]:
        """Return the environment of a plain process; `elsewhere` replaces variables for addresses and folders."""
        given = self.services[service]["environment"]
        assert not set(elsewhere) - set(given), f"compose.yaml sets no {set(elsewhere) - set(given)} for {service}"
        home.mkdir(parents=True, exist_ok=True)
        moved = {name: str(value) for name, value in elsewhere.items()}
        return image_environment(home) | self.variables(service) | moved

    def health_check(self, service: str) -> list[str]:
        """Return the command of the health check, without the word CMD."""
        kind, *command = self.services[service]["healthcheck"]["test"]
        assert kind == "CMD"
        return [str(word) for word in command]

    def user(self, service: str) -> tuple[int, int]:
        uid, gid = self._filled(self.services[service]["user"]).split(":")
        return int(uid), int(gid)

    def working_directory(self, service: str) -> str:
        return str(self.services[service].get("working_dir", _WORKDIR))

    def volumes(self, service: str) -> dict[str, str]:
        """Return source and target of each mount; a source is a named volume, or `..` for the checkout."""
        pairs = (volume.split(":")[:2] for volume in self.services[service].get("volumes", []))
        return dict(pairs)

    def image_files(self, service: str) -> Path | None:
        """Return the folder that the Dockerfile copies into the working directory of the service's image, which is not
        seen if the checkout is mounted there.
        """
        if "build" not in self.services[service] or ".." in self.volumes(service):
            return None
        stage = self.services[service]["build"]["target"]
        dockerfile = (ROOT / "infra/Dockerfile").read_text(encoding="utf-8")
        (body,) = re.findall(rf"^FROM \S+ AS {stage}$(.*?)(?=^FROM |\Z)", dockerfile, re.MULTILINE | re.DOTALL)
        copied = _COPIED.search(body)
        return ROOT / copied[1] if copied else None

    def in_order(self, profile: str | None = None) -> Iterator[str]:
        """Yield the services of the profile after those that they depend on."""
        seen: set[str] = set()

        def after(service: str) -> Iterator[str]:
            if service not in seen:
                seen.add(service)
                for needed in self.services[service].get("depends_on", {}):
                    yield from after(needed)
                yield service

        for service, given in self.services.items():
            if profile in given.get("profiles", [None]):
                yield from after(service)

    def is_job(self, service: str) -> bool:
        """Return whether others wait for the service to complete."""
        waits = (given.get("depends_on", {}).get(service, {}) for given in self.services.values())
        return any(wait.get("condition") == "service_completed_successfully" for wait in waits)

    def _filled(self, text: str) -> str:
        return interpolated(text, self.secrets)


def image_environment(home: Path) -> dict[str, str]:
    """Return the environment of an image: its Python first on the path, no variables of this shell."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "HOME": str(home), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with `${NAME}`, `${NAME:?}`, `${NAME:-default}` and `$$` replaced as compose specifies."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        if found := variables.get(match["name"]):
            return found
        assert match["rule"] == "-", f"{match['name']} has no value"
        return match["default"]

    return _VARIABLE.sub(value, text)


def read_env_file(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.partition("=")[::2] for line in lines if line and not line.startswith("#"))
