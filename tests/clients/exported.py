"""For pytest in the project's environment: packages as the export stage writes them, for clients to open."""

import os
import shutil
from pathlib import Path


def test_packages_are_exported(classifier_package: Path, tagger_package: Path, answerer_package: Path) -> None:
    packages = {"classifier": classifier_package, "tagger": tagger_package, "answerer": answerer_package}
    for name, package in packages.items():
        shutil.copytree(package, Path(os.environ["CLOZELINE_EXPORTED"]) / name)
