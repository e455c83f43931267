"""The page docs/scale.md: arithmetic on paper."""

import logging

from comparison.frame import Rounds, options, report
from comparison.stages import PROJECT
from on_paper import page
from on_paper.costs import SIZES, CorpusCost

PAGE = PROJECT / "docs" / "scale.md"
CORES = 64
_LOG = logging.getLogger(__name__)


def main() -> None:
    """The tables of docs/scale.md: arithmetic from measured figures.

    Nothing is measured here. The figures and prices are in on_paper/figures.yaml, the arithmetic in on_paper/costs.py,
    the text in on_paper/scale.md.jinja. `--write` puts the tables into the page. Otherwise they go to stderr. The line
    has the seconds of 10 TB of text on one machine of 64 cores: ours in partitions, theirs as the stages work today.
    """
    parser = options(main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/scale.md")
    chosen = parser.parse_args()
    if chosen.write:
        PAGE.write_text(page.written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for name in page.BLOCKS:
            _LOG.info("%s\n%s\n", name, page.computed(name))
    cost = CorpusCost(SIZES["10 TB"])
    report("scale", Rounds((cost.seconds(CORES),), (cost.seconds_today(CORES),)), 1, {"cores": CORES})
