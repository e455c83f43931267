"""Zero-shot in the playground: a person types labels, and an encoder or an entailment model ranks them."""

from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from clozeline.registry.sources import parse_sources
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.make.browser import Browser
from tests.make.packages import classifier_graph, write_package
from tests.serving.conftest import run_app
from tests.serving.playground.conftest import Page


def test_typed_labels_can_be_ranked_with_only_the_keyboard(page: Page, client: httpx.Client) -> None:
    page.write("#choose-text", "open the file")
    page.write("#choose-labels", "list, file,,  é , list")
    page.write("#choose-template", "of {}")
    page.one("#choose-template").send_keys(Keys.ENTER)
    page.wait_for("#choose .told")
    parameters = {"candidate_labels": ["list", "file", "é"], "hypothesis_template": "of {}"}
    labels = client.post("/zero-shot", json={"inputs": "open the file", "parameters": parameters}).json()
    assert page.words("#choose") == [(one["label"], round(100 * one["score"], 1)) for one in labels]
    widths = [float(bar.value_of_css_property("width").removesuffix("px")) for bar in page.every("#choose .bar")]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1]
    assert not page.one("#choose-each").is_displayed()


def test_a_label_that_does_not_fit_the_blank_is_named(page: Page) -> None:
    page.write("#choose-labels", "list, lists")
    page.one("#choose form button").click()
    assert "label 'lists'" in page.wait_for("#choose .wrong").text
    assert [("422" in told) for told in page.browser.console_errors()] == [True]


def test_an_entailment_model_is_preselected_and_supports_multiple_labels(
    browser: Browser, catalogue: Catalogue, tmp_path: Path
) -> None:
    names = ("contradiction", "neutral", "entailment")
    write_package(tmp_path / "nli", "text-classification", classifier_graph(), labels=names, reads_pairs=True)
    service = Service(Capacity(num_workers=1))
    nli = open_source(parse_sources([str(tmp_path / "nli")])[0], "int8")
    service.open(Catalogue([catalogue.named("encoder"), nli]))
    with run_app(create_app(service)) as client:
        browser.open(str(client.base_url))
        page = Page(browser)
        page.wait_for("#choose-each").send_keys(Keys.SPACE)
        page.write("#choose-labels", "any words at all, list")
        page.one("#choose form button").click()
        page.wait_for("#choose .told")
        parameters = {"candidate_labels": ["any words at all", "list"], "multi_label": True}
        body = {"inputs": "Open it for reading.", "parameters": parameters, "model": "nli"}
        labels = client.post("/zero-shot", json=body).json()
        assert page.words("#choose") == [(one["label"], round(100 * one["score"], 1)) for one in labels]
        Select(page.one("#choose select")).select_by_value("encoder")
        assert not page.one("#choose-each").is_displayed()
        page.write("#choose-labels", "file, list")
        page.one("#choose form button").click()
        told = "(document.querySelector('#choose .told')?.textContent ?? '').includes('encoder, version')"
        WebDriverWait(browser.driver, 60).until(lambda _: browser.ask(told))
        assert sum(share for _, share in page.words("#choose")) == pytest.approx(100, abs=0.2)
        assert browser.console_errors() == []
