"""Without a network, a user sees that the hub is being asked, and then a single error."""

import logging
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from clozeline.lab.contest import open_published
from clozeline.pretraining.starting import token_ids
from clozeline.records.published import asking_hub, inspect_model, inspect_settings
from clozeline.system.errors import ArtifactError, ClozelineError, DataError, TransientError
from clozeline.tokenizing.tokenizer.vocabulary.opening import open_published as open_tokenizer

CLIENT = "huggingface_hub.utils._http"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the hub's client log a retry and give up at once, instead of after half a minute."""

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
def test_an_unknown_name_is_reported_once(ask, kind: type[ClozelineError], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), pytest.raises(kind, match="nobody/nowhere"):
        ask("nobody/nowhere")
    assert [record.message for record in caplog.records] == [
        "nobody/nowhere is not a local folder: asking the Hugging Face hub"
    ]


def test_a_local_folder_is_opened_without_a_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), asking_hub(str(tmp_path)):
        logging.getLogger(CLIENT).warning("something else")
    assert [record.message for record in caplog.records] == ["something else"]


def test_the_hub_client_logs_again_after_the_block(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match="broken"), asking_hub("nobody/nowhere"):
        raise OSError("broken")
    logging.getLogger(CLIENT).warning("Retrying in 1s [Retry 1/5].")
    assert "Retrying" in caplog.text


def test_a_model_is_not_opened_if_its_files_cannot_be_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub fails only during the inspection; it would answer again when the model is loaded."""

    def fail_once(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("connection reset")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail_once)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for inspect in (inspect_settings, inspect_model):
        with pytest.raises(TransientError, match="cannot be inspected") as caught:
            inspect("someone/model")
        assert "HF_HUB_OFFLINE=1" in caught.value.do


def test_offline_a_model_missing_from_the_cache_is_not_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("not in the cache")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", absent)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    inspect_settings("someone/model")
