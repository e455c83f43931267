"""The Jinja2 templates of the page. They escape everything but `Markup`, because texts of users may hold HTML."""

import re
from functools import cache
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from clozeline.reporting import numbers

_QUOTED: Final = re.compile(r"`([^`]+)`")


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("clozeline.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        auto_reload=False,
    )
    made.filters |= {form.__name__: form for form in (numbers.count, numbers.share, numbers.short, with_code)}
    return made


def html(template: str, **values: object) -> Markup:
    """Render `templates/<template>.html` with `values`."""
    return Markup(_templates().get_template(f"{template}.html").render(values))


def with_code(text: object) -> Markup:
    """Escape `text`, and set what is in back quotes, such as a command in an error, as code."""
    return Markup(_QUOTED.sub(r"<code>\1</code>", str(escape(text))))


def code(text: object) -> Markup:
    return html("code", text=text)


def verdict(is_good: bool, text: str) -> Markup:
    return html("message", kind="good" if is_good else "bad", text=f"{'✓' if is_good else '✗'} {text}")


def joined(*pieces: object) -> Markup:
    """Return the concatenation of the pieces, without those that are None."""
    return Markup("").join(escape(piece) for piece in pieces if piece is not None)
