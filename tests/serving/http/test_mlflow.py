"""The client of MLflow's scoring server calls this server, and gets the same answers as from `mlflow.pyfunc`."""

import json
from pathlib import Path
from typing import Any

import httpx
import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.pyfunc.scoring_server.client import ScoringServerClient

from clozeline.inference.tokenization import TextTooLongError
from clozeline.serving.http.house_labels import CLASSIFYING
from clozeline.serving.http.house_texts import FILLING
from clozeline.serving.models import Catalogue
from tests.make.apps import opened, running
from tests.make.packages import write_encoder_of_another_mask

TEXTS = ["return the [MASK]", "open the file"]


@pytest.fixture(scope="module")
def scoring(client: httpx.Client) -> ScoringServerClient:
    return ScoringServerClient(client.base_url.host, client.base_url.port)


def records(scoring: ScoringServerClient, given: object, **params: object) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = scoring.invoke(given, params=params)["predictions"]
    return answer


def approximately(told: Any) -> Any:
    """Return a value that equals `told` up to the rounding of its numbers."""
    if isinstance(told, dict):
        return {key: approximately(value) for key, value in told.items()}
    if isinstance(told, list):
        return [approximately(value) for value in told]
    return pytest.approx(told, abs=1e-5) if isinstance(told, float) else told


def test_a_record_equals_the_prediction_of_the_registered_model(
    scoring: ScoringServerClient, catalogue: Catalogue
) -> None:
    scoring.wait_server_ready(timeout=120)
    assert scoring.get_version() == mlflow.__version__
    expected = catalogue.answering(FILLING).model.records(TEXTS, top_k=2, truncate=False)
    assert records(scoring, TEXTS, top_k=2) == approximately(expected)
    with pytest.raises(TextTooLongError, match="text 1"):
        catalogue.answering(FILLING).model.records(["a", "the " * 100], top_k=2, truncate=False)
    labels = catalogue.answering(CLASSIFYING).model.records(TEXTS, top_k=3, truncate=False)
    assert records(scoring, TEXTS, model="library", top_k=3) == approximately(labels)


def test_a_mask_that_is_cut_off_is_left_out_without_an_error(client: httpx.Client, catalogue: Catalogue) -> None:
    texts = ["open the file", "the " * 100 + "[MASK]", "the [MASK]", "the [MASK] " + "the " * 100 + "[MASK]"]
    told = client.post("/invocations", json={"inputs": texts, "params": {"truncate": True}}).json()["predictions"]
    assert [len(record["masks"]) for record in told] == [0, 0, 1, 0]
    assert catalogue.answering(FILLING).model.records(texts, top_k=5, truncate=True) == approximately(told)


def test_the_mlflow_client_can_send_texts_in_every_format(scoring: ScoringServerClient) -> None:
    frames = [pd.DataFrame({"number": [1, 2], "text": TEXTS}), pd.DataFrame({"any name": TEXTS})]
    for given in (*frames, np.array(TEXTS), np.array(TEXTS)[:, None]):
        assert [len(record["masks"]) for record in records(scoring, given)] == [1, 0]


ROWS = [{"text": text} for text in TEXTS]


def test_bodies_of_other_clients_are_accepted(client: httpx.Client) -> None:
    one_column = {"inputs": {"any name": TEXTS}}
    for body in ({"dataframe_records": ROWS}, {"instances": TEXTS}, {"instances": ROWS}, one_column):
        answer = client.post("/invocations", json=body).json()
        assert [len(record["masks"]) for record in answer["predictions"]] == [1, 0]


PAIRS = {
    "ranker": [{"text": "open", "text_pair": "the file"}, {"text": "é of", "text_pair": "list"}],
    "reader": [{"question": "open", "context": "the list of a file, and é"}, {"question": "é", "context": "a file"}],
}


@pytest.mark.parametrize("name", PAIRS)
def test_pair_rows_are_accepted_in_every_format(
    scoring: ScoringServerClient, client: httpx.Client, catalogue: Catalogue, name: str
) -> None:
    rows = PAIRS[name]
    written = [json.dumps(row) for row in rows]
    expected = catalogue.named(name).model.records(written, top_k=2, truncate=False)
    for given in (pd.DataFrame(rows), pd.DataFrame(rows).assign(number=1), written):
        assert records(scoring, given, model=name, top_k=2) == approximately(expected)
    # MLflow's client cannot send these bodies.
    params = {"model": name, "top_k": 2}
    for columns, told in (({key: [row[key] for row in rows] for key in rows[0]}, expected), (rows[0], expected[:1])):
        answer = client.post("/invocations", json={"inputs": columns, "params": params}).json()
        assert answer["predictions"] == approximately(told)


def test_input_without_the_texts_that_the_model_reads_is_refused(client: httpx.Client) -> None:
    for model, body, told in (
        ("ranker", {"inputs": ["open the file"]}, "`inputs[0]` does not hold the two texts"),
        ("ranker", {"inputs": {"text": ["a"]}}, "`text` and `text_pair`"),
        ("reader", {"inputs": ['{"question": "a", "context": "b"}', "[1]"]}, "`inputs[1]` does not hold"),
        ("reader", {"inputs": {"question": ["a", "b"], "context": ["c"]}}, "inputs[1]"),
        ("encoder", {"inputs": ["a"], "instances": ["a"]}, "exactly one of"),
        ("encoder", {"instances": [{"a": "x", "b": "y"}]}, "columns: a, b"),
        ("encoder", {"instances": [{"text": "x"}, {"other": "y"}]}, "instances[1]"),
        ("encoder", {"dataframe_split": {"columns": ["a", "text"], "data": [["x"]]}}, "dataframe_split[0]"),
        ("encoder", {"dataframe_split": {"columns": [], "data": [[]]}}, "`dataframe_split.columns`"),
    ):
        refused = client.post(f"/models/{model}/invocations", json=body)
        assert (refused.status_code, refused.json()["error_code"]) == (400, "BAD_REQUEST")
        assert told in refused.json()["message"]


def test_bracketed_mask_is_accepted_by_every_model(tmp_path: Path) -> None:
    write_encoder_of_another_mask(tmp_path / "other")
    with running(opened(tmp_path / "other")) as client:
        body = {"inputs": ["return the [MASK] of <mask>", "open the file"]}
        told = client.post("/invocations", json=body).json()["predictions"]
    assert [len(record["masks"]) for record in told] == [2, 0]
