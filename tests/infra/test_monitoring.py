"""The rules for Prometheus and the dashboard for Grafana name metrics that the server has, in valid queries.

Grafana has no tool that checks a dashboard without a server: its queries are checked by Prometheus's own tool.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from clozeline.serving.metrics import Metrics
from tests.make.processes import run_to_end

INFRA = Path(__file__).parents[2] / "infra"
RULES = INFRA / "prometheus/rules.yml"
DASHBOARD: dict[str, Any] = json.loads((INFRA / "grafana/clozeline.json").read_text(encoding="utf-8"))
NAME = re.compile(r"\b(?:clozeline|process)_\w+")
GRAFANAS_OWN = re.compile(r"\$__\w+")


RULE_GROUPS = YAML(typ="safe").load(RULES)["groups"]
OF_PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
OF_RULES = [rule["expr"] for group in RULE_GROUPS for rule in group["rules"]]


def test_every_query_names_existing_metrics_of_the_server() -> None:
    told = Metrics(num_workers=1, waiting_tokens=lambda: 0).text().decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", told, re.MULTILINE))
    histograms = [name for name, kind in kinds.items() if kind == "histogram"]
    known = {*kinds, *(f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count"))}
    for query in (*OF_RULES, *OF_PANELS):
        named = set(NAME.findall(query))
        assert named or query.startswith("up{"), query
        assert named <= known, query


def test_prometheus_accepts_rules_configuration_and_queries_and_the_rules_fire_when_they_should(tmp_path: Path) -> None:
    program = shutil.which("promtool")
    assert program, "promtool is not installed: `make system`, or `apt-get install prometheus`"
    rules = [{"record": f"panel_{i}", "expr": GRAFANAS_OWN.sub("5m", q)} for i, q in enumerate(OF_PANELS)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    for command in (
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
        ("check", "config", "prometheus.yml"),
        ("check", "rules", str(tmp_path / "panels.yml")),
    ):
        run_to_end([program, *command], RULES.parent)
    assert all({*rule["annotations"]} == {"summary", "action"} for group in RULE_GROUPS for rule in group["rules"])
