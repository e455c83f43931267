import pytest
from pydantic import ValidationError

from clozeline.params.text import SourceParams
from tests.corpus.conftest import params_of

__all__ = ["params_of"]
SQL = {"kind": "sql", "url": "sqlite:///tickets.db", "query": "SELECT 1"}
COMMIT = "b08601e04326c79dfdd32d625aee71d232d685c3"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "sql", "url": "sqlite:///x.db"}, "set `query` for kind `sql`"),
        ({"kind": "sql", "query": "SELECT 1"}, "a `url` for kind `sql`"),
        ({"kind": "python-docs", "url": "s3://texts"}, "a `url` for kind `sql`"),
        ({"query": "SELECT 1"}, "set `query` for kind `sql`"),
        (SQL | {"url": "postgresql://reader:geheim@db/tickets"}, "without a password"),
        ({"url": "https://me:geheim@example.org/x"}, "without a password"),
        ({"url": "my-texts"}, "protocol://"),
    ],
)
def test_source_settings_that_do_not_fit_their_kind_are_refused(
    params_of, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        params_of(**changes)


@pytest.mark.parametrize(
    ("changes", "is_watched"),
    [
        ({}, True),
        ({"kind": "python-docs"}, True),
        ({"url": "s3://texts/in"}, False),
        (SQL, False),
        ({"kind": "hub", "dataset": "a/b", "revision": COMMIT}, True),
        ({"kind": "hub", "dataset": "a/b", "revision": "main"}, False),
        ({"kind": "hub", "dataset": "a/b"}, False),
    ],
)
def test_dvc_watches_only_sources_determined_by_local_files(
    params_of, changes: dict[str, str], is_watched: bool
) -> None:
    source: SourceParams = params_of(**changes).source
    assert source.is_watched is is_watched
