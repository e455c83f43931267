"""The playground copes with a server that is not up yet, a person who types fast, and unusable texts."""

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

FAULTS = {
    "no mask": ("fill-text", "no blank", "has no mask"),
    "no visible character": ("compare-other", "   ", "cannot be used"),
    "too long": ("compare-other", "a " * 100, "is too long for the model"),
    "no text": ("tag-text", "   ", "cannot be used"),
    "no question": ("answer-question", "   ", "cannot be used"),
    "too many labels": ("choose-labels", ",".join(map(str, range(101))), "cannot be used"),
    "no place for the label": ("choose-template", "about", "cannot be used"),
}


def test_the_page_waits_until_the_models_are_loaded(browser: Browser, catalogue: Catalogue) -> None:
    service = Service(Capacity(num_workers=1))
    with run_app(create_app(service)) as client:
        browser.open(str(client.base_url))
        page = Page(browser)
        assert page.wait_for("#problem").text == "The models are loading; this page waits for them."
        service.open(catalogue)
        page.wait_for("#fill")
        assert not page.one("#problem").is_displayed()
        assert all("503" in complaint for complaint in browser.console_errors())


def test_an_unreachable_server_is_reported_with_what_to_do(browser: Browser, catalogue: Catalogue) -> None:
    service = Service(Capacity(num_workers=1))
    service.open(catalogue)
    with run_app(create_app(service)) as client:
        browser.open(str(client.base_url))
        Page(browser).wait_for("#tag")
    page = Page(browser)
    page.one("#tag form button").click()
    assert "the server does not answer" in page.wait_for("#tag .wrong").text
    assert "What to do: check that the server runs" in page.one("#tag .wrong").text
    browser.console_errors()


@pytest.mark.parametrize(("field", "text", "fault"), FAULTS.values(), ids=FAULTS)
def test_an_error_uses_the_field_names_of_the_page_and_says_what_to_do(
    page: Page, field: str, text: str, fault: str
) -> None:
    page.browser.driver.execute_script(f"document.querySelector('#{field}').value = arguments[0]", text)
    section = field.partition("-")[0]
    page.one(f"#{section} form button:not([type])").click()
    told = page.wait_for(f"#{section} .wrong").text
    assert told.startswith(f"“{page.label(field)}” {fault}")
    assert ". Given: " in told
    assert ". Expected: " in told
    assert ". What to do: " in told
    assert ["422" in complaint for complaint in page.browser.console_errors()] == [True]


def test_an_error_about_a_pair_that_is_too_long_names_no_field(page: Page) -> None:
    Select(page.one("#classify select")).select_by_value("ranker")
    for name in ("classify-text", "classify-other"):
        page.browser.driver.execute_script(f"document.querySelector('#{name}').value = 'a '.repeat(50)")
    page.one("#classify form button").click()
    assert page.wait_for("#classify .wrong").text.startswith("the text is too long for the model")
    page.write("#classify-other", "   ")
    page.one("#classify form button").click()
    said = f"“{page.label('classify-other')}” cannot be used"
    told = "document.querySelector('#classify .wrong')?.textContent"
    WebDriverWait(page.browser.driver, 60).until(lambda _: (page.browser.ask(told) or "").startswith(said))
    page.browser.console_errors()


def test_pressing_enter_twice_sends_one_request(page: Page) -> None:
    page.browser.driver.execute_script(
        "window.numAsked = 0; const before = window.fetch;"
        "window.fetch = async (...given) => { window.numAsked++; await new Promise(done => { window.go = done; });"
        " return before(...given); };"
    )
    for _ in range(3):
        page.one("#tag-text").send_keys(Keys.ENTER)
    assert not page.one("#tag form button").is_enabled()
    page.browser.driver.execute_script("window.go()")
    page.wait_for("#tag .told")
    assert page.browser.ask("window.numAsked") == 1
    page.one("#tag-text").send_keys(Keys.ENTER)
    assert page.browser.ask("window.numAsked") == 2
    page.browser.driver.execute_script("window.go()")


def test_every_given_label_is_shown(browser: Browser, tmp_path: Path) -> None:
    labels = tuple(f"topic {number}" for number in range(260))
    facts = {"label_scores": "sigmoid", "decision_threshold": 0.4}
    write_package(tmp_path / "topics", "text-classification", classifier_graph(len(labels)), labels=labels, **facts)
    service = Service(Capacity(num_workers=1))
    service.open(Catalogue([open_source(source, "int8") for source in parse_sources([str(tmp_path / "topics")])]))
    with run_app(create_app(service)) as client:
        given = _given(client, list(labels))
        assert 100 < len(given) < len(labels)
        browser.open(str(client.base_url))
        page = Page(browser)
        page.wait_for("#classify-text")
        page.write("#classify-text", "open the file")
        page.one("#classify form button").click()
        page.wait_for("#classify .told")
        assert page.one("#classify p.given").text == f"Assigned: {', '.join(given)}"
        assert [name for name, _ in page.words("#classify")] == given


def _given(client: httpx.Client, labels: list[str]) -> list[str]:
    body = {"inputs": "open the file", "parameters": {"labels": labels}}
    (scores,) = client.post("/classify", json=body).json()
    return [one["label"] for one in scores if one["score"] > 0.4]
