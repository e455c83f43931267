"""Tables of figures in a terminal."""

from rich.table import Table


def table_of(title: str, *columns: str) -> Table:
    """A column whose name begins with `>` holds numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table
