"""The page at `/docs` in a real browser can send an example of every route."""

from collections.abc import Iterator

import httpx
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from clozeline.serving.access import ApiKeys
from clozeline.serving.http.status import live
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.make.browser import Browser, Scheme, running_browser
from tests.serving.conftest import run_app

KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def section_of(browser: Browser, path: str) -> WebElement:
    return WebDriverWait(browser.driver, 60).until(
        lambda driver: next(iter(driver.find_elements(By.XPATH, f'//section[h2/code[.="{path}"]]')), None)
    )


def call_of(browser: Browser, path: str) -> str:
    """Return the shell line that the page shows for `path`."""
    return section_of(browser, path).find_element(By.TAG_NAME, "pre").text


def sent(browser: Browser, path: str) -> str:
    """Click on Send, and return the answer that the page shows."""
    section = section_of(browser, path)
    section.find_element(By.XPATH, './/button[.="Send"]').click()

    def told(_: object) -> str:
        return "".join(str(pre.get_attribute("textContent")) for pre in section.find_elements(By.TAG_NAME, "pre")[1:])

    return WebDriverWait(browser.driver, 60).until(lambda driver: told(driver).removesuffix("…"))


def test_answers_in_text_and_json_and_by_model_name_are_shown(browser: Browser, client: httpx.Client) -> None:
    browser.open(str(client.base_url.join("/docs")))
    WebDriverWait(browser.driver, 60).until(lambda _: "/v2/models/encoder" in call_of(browser, "/v2/models/{model}"))
    assert "\n# HELP " in sent(browser, "/metrics")
    assert '"status": "ready"' in sent(browser, "/health")
    assert '"name": "encoder"' in sent(browser, "/v2/models/{model}")
    assert sent(browser, "/embed").startswith("200 ")
    assert sent(browser, "/v1/embeddings").startswith("200 ")
    assert browser.console_errors() == []


def test_the_docs_page_renders_prose_and_code(browser: Browser, client: httpx.Client) -> None:
    browser.open(str(client.base_url.join("/docs")), width=390)
    health = section_of(browser, "/health/live")
    assert [line.text for line in health.find_elements(By.TAG_NAME, "p")] == ["Is the process alive?", live.__doc__]
    prose = browser.driver.find_elements(By.TAG_NAME, "p")
    assert [line.text for line in prose if "`" in line.text] == []
    about = browser.driver.find_elements(By.CSS_SELECTOR, "#about code")
    assert [code.text for code in about][:3] == ["/models/NAME", "/models/NAME/embed", "model"]
    assert browser.overflow() == 0


@pytest.mark.parametrize("width", [390, 1400])
def test_an_example_is_shown_in_full(browser: Browser, client: httpx.Client, width: int) -> None:
    browser.open(str(client.base_url.join("/docs")), width=width)
    field = section_of(browser, "/answer").find_element(By.TAG_NAME, "textarea")
    cut_pixels = browser.driver.execute_script("return arguments[0].scrollHeight - arguments[0].clientHeight", field)
    assert cut_pixels == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_docs_page_is_legible(browser: Browser, client: httpx.Client, scheme: Scheme) -> None:
    browser.open(str(client.base_url.join("/docs")), scheme=scheme)
    section_of(browser, "/health/live")
    assert browser.faint_texts() == []


def test_the_page_sends_the_key_that_the_user_typed(browser: Browser, catalogue: Catalogue) -> None:
    service = Service(Capacity(num_workers=1))
    service.open(catalogue)
    with run_app(create_app(service, ApiKeys.of([KEY]))) as client:
        browser.open(str(client.base_url.join("/docs")))
        form = browser.driver.find_element(By.ID, "key")
        WebDriverWait(browser.driver, 60).until(lambda _: form.is_displayed())
        field = form.find_element(By.TAG_NAME, "input")
        field.send_keys("not the key", Keys.ENTER)
        WebDriverWait(browser.driver, 60).until(lambda _: "does not accept" in form.text)
        field.clear()
        field.send_keys(KEY, Keys.ENTER)
        WebDriverWait(browser.driver, 60).until(lambda _: not form.is_displayed())
        assert sent(browser, "/models").startswith("200 ")
        assert sent(browser, "/v1/embeddings").startswith("200 ")
        assert KEY not in call_of(browser, "/embed")
        assert "$KEY" in call_of(browser, "/embed")
