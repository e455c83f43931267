"""The machine that a report is made on."""

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from markupsafe import Markup

from clozeline.machine.cores import available_cores
from clozeline.machine.processor import processor
from clozeline.reporting.run import Part, Run
from clozeline.reporting.templates import html

_PACKAGES = ("clozeline", "torch", "transformers", "tokenizers", "onnxruntime", "numpy", "dvc", "mlflow", "prefect")


def parts(run: Run) -> Iterable[Part]:
    return [lambda: _facts(run)]


def _facts(run: Run) -> Markup:
    return html("facts", pairs=run.machine.items())


def describe(cpu_facts: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return the processor, cores, memory, system, and versions of the packages that produce the figures."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    installed = {package: _version(package) for package in _PACKAGES}
    return {
        "processor": processor(cpu_facts),
        "cores for this process": str(available_cores()),
        "memory": f"{pages * page_bytes / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
    } | {package: version for package, version in installed.items() if version}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
