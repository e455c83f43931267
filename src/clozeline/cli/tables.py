"""Tables of figures in a terminal."""

from collections.abc import Iterable

from rich.table import Table


def table_of(title: str, *columns: str, rows: Iterable[Iterable[str]] = ()) -> Table:
    """Return a table; a column whose name starts with `>` holds numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        table.add_row(*row)
    return table
