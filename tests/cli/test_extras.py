"""Claim: on the base install every verb works, or says which extra to install."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import typer

from clozeline.cli import app
from clozeline.cli.verbs import telling_of_extras
from tests.conftest import PROJECT

# Packages that an extra brings; the base install has none of them.
WITHOUT = ("datasets", "dvc", "jinja2", "onnx", "optimum", "optuna", "peft", "prefect", "psutil", "pyarrow", "ray",
           "scipy", "sklearn", "torch", "transformers")  # fmt: skip
# Extra → the command lines that need it; "": the verb works, or reports what is missing, if anything is.
BY_EXTRA: Mapping[str, Sequence[str]] = {
    "": (
        *("answer --context here where", "choose --labels one,two text", "classify text", "complete text"),
        *("embed text", "fill [MASK]", "history", "init .", "lineage models:/x@champion", "params", "rollback"),
        *("serve dist/x", "sign dist/x --key params.yaml", "tag text"),
    ),
    "train": (
        *("ablate params.yaml seed=1", "compare", "demo", "evaluate --model encoder --text params.yaml"),
        *("forget params.yaml", "glue .", "import .", "plan", "report", "search text", "stage preprocess out=x"),
    ),
    "flows": ("gc", "release", "remote push", "run", "status", "ui"),
    "sweep": ("sweep sweep.yaml",),
}
VERBS = {typed.split()[0]: (typed, extra) for extra, lines in BY_EXTRA.items() for typed in lines}
RUN = """
import json, os, sys
sys.modules |= dict.fromkeys(json.loads(sys.argv[1]))
from clozeline.cli import main
for verb, (typed, _) in json.loads(sys.argv[2]).items():
    os.chdir(verb)
    os.dup2(os.open("told.txt", os.O_CREAT | os.O_WRONLY), 2)
    sys.argv[1:] = typed.split()
    try:
        main()
    except SystemExit as end:
        print(verb, end.code or 0)
    sys.stderr.flush()
    os.chdir("..")
"""


def test_a_verb_works_on_the_base_install_or_names_its_extra(tmp_path: Path) -> None:
    """One process runs all of them: each has to import what it needs."""
    assert set(typer.main.get_command(app).commands) == set(VERBS)
    for verb in VERBS:
        (tmp_path / verb).mkdir()
        for name in ("dvc.yaml", "params.yaml"):
            (tmp_path / verb / name).write_bytes((PROJECT / name).read_bytes())
    command = [sys.executable, "-c", RUN, json.dumps(WITHOUT), json.dumps(VERBS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    codes = dict(line.split() for line in done.stdout.splitlines() if line.partition(" ")[0] in VERBS)
    for verb, (_, extra) in VERBS.items():
        told = (tmp_path / verb / "told.txt").read_text(encoding="utf-8")
        assert "Traceback" not in told
        assert re.findall(r"pip install 'clozeline\[(\w+)\]'", told) == ([extra] if extra else []), verb
        assert ("error:" in told) == (codes[verb] != "0"), verb
        assert (codes[verb] == "0") == (verb == "params")


def test_a_missing_package_outside_all_extras_raises_the_plain_import_error() -> None:
    with pytest.raises(ModuleNotFoundError), telling_of_extras():
        import no_such_package  # noqa: F401 - it is not there
