"""What a person sees of the hub where there is no network: that it is asked, and one error."""

import logging
from pathlib import Path

import pytest

from clozeline.contest.published import open_published
from clozeline.errors import ArtifactError, ClozelineError, DataError
from clozeline.foreign.hub import asking_hub
from clozeline.pretraining.starting import token_ids
from clozeline.tokenizer.vocabulary.opening import open_published as open_tokenizer

CLIENT = "huggingface_hub.utils._http"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client tells of its attempts, and gives up at once instead of after half a minute."""

    def give_up(*_: object, **__: object) -> None:
        logging.getLogger(CLIENT).warning("Retrying in 1s [Retry 1/5].")
        raise OSError("no network")

    for place in ("huggingface_hub", "transformers.utils.hub"):
        monkeypatch.setattr(f"{place}.hf_hub_download", give_up)


@pytest.mark.parametrize(
    ("ask", "kind"),
    [
        (lambda name: open_published(name), ArtifactError),
        (lambda name: token_ids(name, None, "mlm"), ArtifactError),
        (lambda name: open_tokenizer(name), DataError),
    ],
)
def test_a_name_that_is_nowhere_is_told_once(ask, kind: type[ClozelineError], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), pytest.raises(kind, match="nobody/nowhere"):
        ask("nobody/nowhere")
    assert [record.message for record in caplog.records] == [
        "nobody/nowhere is not a local folder: asking the Hugging Face hub"
    ]


def test_a_folder_is_looked_into_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), asking_hub(str(tmp_path)):
        logging.getLogger(CLIENT).warning("something else")
    assert [record.message for record in caplog.records] == ["something else"]


def test_the_client_speaks_again_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match="broken"), asking_hub("nobody/nowhere"):
        raise OSError("broken")
    logging.getLogger(CLIENT).warning("Retrying in 1s [Retry 1/5].")
    assert "Retrying" in caplog.text
