"""The `clozeline` command."""

from clozeline.cli import main

if __name__ == "__main__":
    main()
