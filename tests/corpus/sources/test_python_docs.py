"""The docstrings of the packages that a lock pins are read, without importing them, wherever they are installed."""

import shutil
import sys
from pathlib import Path

import pytest

from clozeline.corpus.sources import python_docs
from clozeline.corpus.sources.python_docs import documented_modules
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
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock that pins the one distribution `acme` 1.2 of an environment without a standard library."""
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(python_docs.sysconfig, "get_path", lambda name: str(tmp_path / "no-library"))
    (tmp_path / "lock.txt").write_text("acme==1.2\n")
    return tmp_path / "lock.txt"


def install(site: Path, name: str = "acme", version: str = "1.2") -> None:
    for file, content in FILES.items():
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="latin-1" if "latin" in file else "utf-8")
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in FILES) + "../../bin/acme.py,,\n")


def acme(lock: Path) -> list[tuple[object, ...]]:
    """Return text, source, title of each record, and whether it is unreadable."""
    records = [record for module in documented_modules(lock) for record in module.records()]
    return [(*(record[key] for key in ("text", "source", "title")), "unreadable" in record) for record in records]


def test_every_docstring_is_read_with_its_qualified_name_and_library_and_nothing_is_imported(lock: Path) -> None:
    of_tools = {
        "": "Module doc.",
        ".Outer": "Class doc.\n\nindented",
        ".Outer.method": "Method doc, with a bad \\escape.",
        ".Outer.method.inner": "Inner doc.",
        ".late": "Async doc.",
        ".fallback": "Fallback doc.",
    }
    assert acme(lock) == [
        ("Private half.", "acme_native", "_acme_native", False),
        ("The package.", "acme", "acme", False),
        ("Café.", "acme", "acme.latin", False),
        ("", "acme", "acme.nul", True),
        ("", "acme", "acme.old", True),
        *((text, "acme", f"acme.tools{name}", False) for name, text in of_tools.items()),
    ]
    assert not [name for name in sys.modules if name.startswith("acme")]


def test_place_way_to_write_the_lock_and_local_builds_do_not_matter(lock: Path, monkeypatch) -> None:
    """A file in two distributions is read once."""
    before, site = acme(lock), lock.with_name("site")
    metadata = site / "acme-1.2.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.2", "Version: 1.2+cpu"))
    lock.write_text(
        "# written by a tool\n--index-url https://example.org\nacme==1.2 ; python_version >= '3' \\\n"
        "    --hash=sha256:00 \\\n    --hash=sha256:01\n    # via something\n"
        "elsewhere==9 ; sys_platform == 'never'\nacme-skinny==3\n"
    )
    install(site, name="acme-skinny", version="3")
    monkeypatch.syspath_prepend(shutil.move(site, lock.with_name("elsewhere")))
    assert acme(lock) == before


def test_modules_of_the_standard_library_are_found(tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text("# nothing but the standard library\n")
    modules = {module.name: module for module in documented_modules(tmp_path / "lock.txt")}
    assert {"json", "json.decoder", "argparse", "asyncio.tasks"} <= modules.keys()
    assert not [name for name in modules if "site-packages" in name or ".test" in name or name.startswith("test.")]
    titles = [record["title"] for record in modules["json"].records()]
    assert titles == ["json", "json.dump", "json.dumps", "json.load", "json.loads"]
    assert {module.library for module in modules.values()} == {python_docs.STANDARD_LIBRARY}


@pytest.mark.parametrize(
    ("pins", "given", "do"),
    [
        ("acme==1.3", r"\(1 differences\).*acme==1.3 is installed as 1.2", "pip install -r"),
        ("nowhere==1", r"\(1 differences\).*nowhere==1 is not installed", "pip install -r"),
        ("acme==1.2\nnot a pin at all", ", line 2: not a pinned package", "pip freeze"),
    ],
)
def test_an_environment_that_differs_from_the_lock_is_refused(lock: Path, pins: str, given: str, do: str) -> None:
    lock.write_text(f"{pins}\n")
    with pytest.raises(DataError, match=rf"(?s)lock\.txt.*{given}") as caught:
        documented_modules(lock)
    assert do in caught.value.do
