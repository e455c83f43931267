"""The project's own params.yaml with some of its tasks, for what need not hold for each task that it ever gets."""

from pathlib import Path

from ruamel.yaml import YAML

PROJECT = Path(__file__).parents[1]


def write_params(file: Path, *tasks: str) -> Path:
    """Writes `file` with these tasks and their packages alone, and the encoder's."""
    yaml = YAML()
    tree = yaml.load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
    packages = tree["export"]["models"]
    tree["finetune"] = {task: tree["finetune"][task] for task in tasks}
    tree["export"]["models"] = {name: packages[name] for name in ("encoder", *tasks)}
    with file.open("w", encoding="utf-8") as opened:
        yaml.dump(tree, opened)
    return file
