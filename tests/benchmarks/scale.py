"""The page docs/scale.md: arithmetic on paper."""

import logging

from comparison.frame import Rounds, options, report
from comparison.stages import PROJECT
from on_paper import page
from on_paper.exchange import EVERY_FAULT, MACHINES, NUM_PARTITIONS, SEED, runs

PAGE = PROJECT / "docs" / "scale.md"
_LOG = logging.getLogger(__name__)


def main() -> None:
    """The tables of docs/scale.md: arithmetic from measured figures, and a simulation of the exchange on a cluster.

    Nothing is measured here. The figures and prices are in on_paper/figures.yaml, the arithmetic in on_paper/costs.py,
    the text in on_paper/scale.md.jinja; on_paper/exchange.py is the simulator. `--write` puts the tables into the page.
    Otherwise they go to stderr. The line has the simulated seconds of 10,000 partitions on the largest cluster with
    every fault: ours with a ledger and second tries, theirs with neither.
    """
    parser = options(main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/scale.md")
    chosen = parser.parse_args()
    if chosen.write:
        PAGE.write_text(page.written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for name in page.BLOCKS:
            _LOG.info("%s\n%s\n", name, page.computed(name))
    (_, without), *_, (_, with_both) = runs(EVERY_FAULT)
    facts = {"partitions": NUM_PARTITIONS, "machines": MACHINES[-1], "seed": SEED}
    (theirs, _), (ours, factor) = without[-1], with_both[-1]
    report("scale", Rounds((ours,), (theirs,)), 1, facts | {"times_the_lower_bound": round(factor, 3)})
