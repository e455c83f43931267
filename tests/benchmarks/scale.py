"""The page docs/scale.md: its tables, its first paragraph, what breaks first; they stand between its markers.

Their text is in on_paper/scale.md.jinja. Numbers have two significant digits and a unit.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from comparison.frame import Rounds, options, report
from comparison.stages import PROJECT
from on_paper import costs
from on_paper.costs import CLUSTER, CORPUS, PRICES, SERVING, SIZES, TRAINING, CorpusCost

_LOG = logging.getLogger(__name__)
PAGE = PROJECT / "docs" / "scale.md"
CORES = 64
_TIMES = ((86_400 * 365.25, " years"), (86_400, " days"), (3600, " h"), (60, " min"), (1, " s"))
_BYTES = ((1e15, " PB"), (1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"))
_COUNTS = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"), (1, ""))
_MARKED = re.compile(r"<!-- scale (\w+):[^\n]*-->\n(.*?)\n<!-- /scale -->", re.DOTALL)


def two_digits(value: float) -> str:
    """Return the number rounded to two significant digits, without an exponent: 8,300; 12; 1.3; 0.026."""
    rounded = float(f"{value:.1e}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}" if rounded else "0"


def time_of(seconds: float) -> str:
    return _in_units(seconds, _TIMES, 1.5)  # 90 min, but 2 h


def bytes_of(size: float) -> str:
    return _in_units(size, _BYTES)


def count_of(number: float) -> str:
    return _in_units(number, _COUNTS)


def dollars_of(amount: float) -> str:
    return f"${two_digits(amount)}" if amount >= 0.01 else "under $0.01"


def _in_units(value: float, units: Sequence[tuple[float, str]], least: float = 1.0) -> str:
    """Write `value` in the first unit of which it is at least `least` times, or in the last one."""
    size, unit = next((one for one in units if float(f"{value:.1e}") >= least * one[0]), units[-1])
    return f"{two_digits(value / size)}{unit}"


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(costs.__file__).parent),
    autoescape=False,  # Markdown, of our own numbers
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {
    "digits": two_digits,
    "time": time_of,
    "bytes": bytes_of,
    "count": count_of,
    "dollars": dollars_of,
    "percent": "{:.0%}".format,
}
_TEMPLATE = _ENVIRONMENT.get_template("scale.md.jinja")
_GIVEN = {
    "CORPUS": CORPUS,
    "CLUSTER": CLUSTER,
    "TRAINING": TRAINING,
    "SERVING": SERVING,
    "PRICES": PRICES,
    "costs": costs,
    "vars": vars,
    "texts": {name: CorpusCost(size) for name, size in SIZES.items()},
    "cores": int(CLUSTER.machine_cores.value),
    "worth": costs.bytes_worth_a_second_machine,
}
# Names of the blocks.
BLOCKS = tuple(_TEMPLATE.blocks)


def computed(name: str, **others: object) -> str:
    """Return the text of a block as its figures give it now; `others` replace what the template is given."""
    return "".join(_TEMPLATE.blocks[name](_TEMPLATE.new_context(_GIVEN | others))).strip("\n")


def blocks_of(page: str) -> dict[str, str]:
    """Return the text between the markers of the page, by name."""
    return dict(_MARKED.findall(page))


def block(name: str, text: str) -> str:
    """Return the lines of a block, with its markers."""
    return f"<!-- scale {name}: written by make bench NAME=scale ARGS=--write -->\n{text}\n<!-- /scale -->"


def written(page: str, **others: object) -> str:
    """Return the page with every block as it is computed now."""
    return _MARKED.sub(lambda found: block(found[1], computed(found[1], **others)), page)


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
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for name in BLOCKS:
            _LOG.info("%s\n%s\n", name, computed(name))
    cost = CorpusCost(SIZES["10 TB"])
    report("scale", Rounds((cost.seconds(CORES),), (cost.seconds_today(CORES),)), 1, {"cores": CORES})
