"""Tables of figures in a terminal."""

from rich.table import Table


def table_of(title: str, *columns: str) -> Table:
    """Return an empty table; a column whose name starts with `>` holds numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table
