"""Browser, and the playground page of a server with every model of tests/serving/conftest.py."""

from collections.abc import Iterator

import httpx
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.make.browser import Browser, running_browser


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


class Page:
    """User actions on the page."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    def one(self, selector: str) -> WebElement:
        return self.browser.driver.find_element(By.CSS_SELECTOR, selector)

    def every(self, selector: str) -> list[WebElement]:
        return self.browser.driver.find_elements(By.CSS_SELECTOR, selector)

    def label(self, field: str) -> str:
        """Text of the label of a field."""
        return self.one(f"label[for={field}]").text

    def wait_for(self, selector: str) -> WebElement:
        """Wait until an element that matches `selector` is shown, and return it."""
        waiting = WebDriverWait(self.browser.driver, 60)
        return waiting.until(lambda _: next((one for one in self.every(selector) if one.is_displayed()), None))

    def write(self, field: str, text: str) -> None:
        self.one(field).clear()
        self.one(field).send_keys(text)

    def words(self, section: str) -> list[tuple[str, float]]:
        names, shares = self.every(f"{section} li .name"), self.every(f"{section} li .share")
        return [(name.text, float(share.text.removesuffix(" %"))) for name, share in zip(names, shares, strict=True)]


@pytest.fixture
def page(browser: Browser, client: httpx.Client) -> Iterator[Page]:
    browser.open(str(client.base_url))
    page = Page(browser)
    page.wait_for("#fill")
    yield page
    assert browser.console_errors() == []
