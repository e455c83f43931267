"""The project's params.yaml with some of its tasks only, for tests that need not hold for every task."""

from pathlib import Path

from ruamel.yaml import YAML

PROJECT = Path(__file__).parents[1]


def write_params(file: Path, *tasks: str) -> Path:
    """Write `file` with only these tasks, their packages and the encoder's package."""
    yaml = YAML()
    tree = yaml.load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
    packages = tree["export"]["models"]
    tree["finetune"] = {task: tree["finetune"][task] for task in tasks}
    tree["export"]["models"] = {name: packages[name] for name in ("encoder", *tasks)}
    with file.open("w", encoding="utf-8") as opened:
        yaml.dump(tree, opened)
    return file
