"""Claim: on the base install every verb works, or says which extra to install."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import typer

from clozeline.cli import app
from tests.conftest import PROJECT

# Packages that an extra brings; the base install has none of them.
WITHOUT = ("datasets", "dvc", "jinja2", "onnx", "optimum", "optuna", "peft", "prefect", "psutil", "pyarrow", "ray",
           "scipy", "sklearn", "torch", "transformers")  # fmt: skip
# Verb → its command line and the extra that it needs; None: it works, and reports what is missing, if anything is.
VERBS: Mapping[str, tuple[str, str | None]] = {
    "ablate": ("ablate params.yaml seed=1", "train"),
    "answer": ("answer --context here where", None),
    "choose": ("choose --labels one,two text", None),
    "classify": ("classify text", None),
    "compare": ("compare", "train"),
    "complete": ("complete text", None),
    "demo": ("demo", "train"),
    "embed": ("embed text", None),
    "evaluate": ("evaluate --model encoder --text params.yaml", "train"),
    "fill": ("fill [MASK]", None),
    "forget": ("forget params.yaml", "train"),
    "gc": ("gc", "flows"),
    "glue": ("glue .", "train"),
    "history": ("history", None),
    "import": ("import .", "train"),
    "init": ("init .", None),
    "lineage": ("lineage models:/x@champion", None),
    "params": ("params", None),
    "plan": ("plan", "train"),
    "release": ("release", "flows"),
    "remote": ("remote push", "flows"),
    "report": ("report", "train"),
    "rollback": ("rollback", None),
    "run": ("run", "flows"),
    "search": ("search text", "train"),
    "serve": ("serve dist/x", None),
    "sign": ("sign dist/x --key params.yaml", None),
    "stage": ("stage preprocess out=x", "train"),
    "status": ("status", "flows"),
    "sweep": ("sweep sweep.yaml", "sweep"),
    "tag": ("tag text", None),
    "ui": ("ui", "flows"),
}


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
