"""Which commit a run started from."""

import subprocess
from pathlib import Path


def git_tags(root: Path) -> dict[str, str]:
    """Return tags for the commit and whether tracked files differ from it; {} outside a git checkout."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"mlflow.source.git.commit": commit, "git.is_dirty": str(bool(changed)).lower()}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None
    return result.stdout.strip()
