"""The docstrings of the packages that a lock pins are read, without importing them, wherever they are installed."""

import shutil
import sys
from pathlib import Path

import pytest

from clozeline.corpus.sources.python_docs import STANDARD_LIBRARY, documented_modules
from clozeline.system.errors import DataError

MODULE = '''\
"""Module doc."""
raise RuntimeError("this module must not be imported")

if True:
    class Outer:
        """Class doc.

            indented
        """
        def method(self):
            "Method doc, with a bad \\escape."
            def inner():
                """Inner doc."""
    async def late():
        """Async doc."""
try:
    pass
except ValueError:
    def fallback():
        """Fallback doc."""
def silent():
    return """not a docstring"""
'''

FILES = {
    "acme/__init__.py": '"""The package."""',
    "acme/tools.py": MODULE,
    "acme/old.py": 'print "Python 2"',
    "acme/nul.py": '"""x"""\0',
    "acme/latin.py": '# -*- coding: latin-1 -*-\n"""Caf\u00e9."""',
    "acme/tests/test_tools.py": '"""Not documentation."""',
    "acme/templates/{{name}}.py": '"""Not a module."""',
    "_acme_native.py": '"""Private half."""',
}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with one distribution, `acme` 1.2, and a lock that pins it."""
    site = tmp_path / "site"
    install(site)
    monkeypatch.syspath_prepend(str(site))
    (tmp_path / "lock.txt").write_text("acme==1.2\n")
    return tmp_path


def install(site: Path, name: str = "acme", version: str = "1.2") -> None:
    for file, content in FILES.items():
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="latin-1" if "latin" in file else "utf-8")
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in FILES) + "../../bin/acme.py,,\n")


def acme(lock: Path) -> list[dict[str, object]]:
    """Return the records of the distribution, without the standard library."""
    modules = [module for module in documented_modules(lock) if module.library != STANDARD_LIBRARY]
    return [record for module in modules for record in module.records()]


def record(text: str, source: str, title: str, **more: object) -> dict[str, object]:
    return {"text": text, "source": source, "title": title, **more}


def test_every_docstring_is_read_with_its_qualified_name_and_library(environment: Path) -> None:
    assert acme(environment / "lock.txt") == [
        record("Private half.", "acme_native", "_acme_native"),
        record("The package.", "acme", "acme"),
        record("Café.", "acme", "acme.latin"),
        record("", "acme", "acme.nul", unreadable=True),
        record("", "acme", "acme.old", unreadable=True),
        record("Module doc.", "acme", "acme.tools"),
        record("Class doc.\n\nindented", "acme", "acme.tools.Outer"),
        record("Method doc, with a bad \\escape.", "acme", "acme.tools.Outer.method"),
        record("Inner doc.", "acme", "acme.tools.Outer.method.inner"),
        record("Async doc.", "acme", "acme.tools.late"),
        record("Fallback doc.", "acme", "acme.tools.fallback"),
    ]


def test_documented_modules_are_not_imported(environment: Path) -> None:
    acme(environment / "lock.txt")
    assert not [name for name in sys.modules if name.startswith("acme")]


def test_the_location_of_the_environment_does_not_matter(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = acme(environment / "lock.txt")
    shutil.move(environment / "site", environment / "elsewhere")
    monkeypatch.syspath_prepend(str(environment / "elsewhere"))
    assert acme(environment / "lock.txt") == before


def test_a_file_in_two_distributions_is_read_once(environment: Path) -> None:
    install(environment / "site", name="acme-skinny", version="3")
    once = acme(environment / "lock.txt")
    (environment / "lock.txt").write_text("acme==1.2\nacme-skinny==3\n")
    assert acme(environment / "lock.txt") == once


def test_modules_of_the_standard_library_are_found(tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text("# nothing but the standard library\n")
    modules = {module.name: module for module in documented_modules(tmp_path / "lock.txt")}
    assert {"json", "json.decoder", "argparse", "asyncio.tasks"} <= modules.keys()
    assert not [name for name in modules if "site-packages" in name or ".test" in name or name.startswith("test.")]
    titles = [record["title"] for record in modules["json"].records()]
    assert titles == ["json", "json.dump", "json.dumps", "json.load", "json.loads"]


def test_locks_of_other_tools_are_understood(environment: Path) -> None:
    before = acme(environment / "lock.txt")
    (environment / "lock.txt").write_text(
        "# written by a tool\n--index-url https://example.org\nacme==1.2 ; python_version >= '3' \\\n"
        "    --hash=sha256:00 \\\n    --hash=sha256:01\n    # via something\n"
        "elsewhere==9 ; sys_platform == 'never'\n"
    )
    assert acme(environment / "lock.txt") == before


def test_a_local_build_of_the_pinned_version_is_that_version(environment: Path) -> None:
    site = environment / "site"
    info = site / "acme-1.2.dist-info" / "METADATA"
    info.write_text(info.read_text().replace("Version: 1.2", "Version: 1.2+cpu"))
    assert acme(environment / "lock.txt")


@pytest.mark.parametrize(
    ("pin", "given"),
    [("acme==1.3", "acme==1.3 is installed as 1.2"), ("nowhere==1", "nowhere==1 is not installed")],
)
def test_an_environment_that_differs_from_the_lock_is_refused(environment: Path, pin: str, given: str) -> None:
    (environment / "lock.txt").write_text(f"{pin}\n")
    with pytest.raises(DataError, match=r"lock\.txt .*\(1 differences\)") as caught:
        documented_modules(environment / "lock.txt")
    assert given in str(caught.value)
    assert "pip install -r" in caught.value.do


def test_an_unpinned_line_is_named(environment: Path) -> None:
    (environment / "lock.txt").write_text("acme==1.2\nnot a pin at all\n")
    with pytest.raises(DataError, match=r"lock\.txt, line 2: not a pinned package"):
        documented_modules(environment / "lock.txt")
