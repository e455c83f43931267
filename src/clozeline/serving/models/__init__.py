"""Which models there are: where they come from, how they are opened, who answers, and what follows a moved alias."""
