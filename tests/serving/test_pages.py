"""The playground and `/docs` work in a real browser by keyboard and mouse, on screens of all sizes, in light and dark.

The playground also copes with a server that is not up yet, and with unusable texts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from clozeline.serving.models import Capacity, Catalogue, Service
from tests.make.apps import KEY, opened, running
from tests.make.browser import Browser, Scheme, running_browser
from tests.make.packages import write_embedder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def until(browser: Browser, what: Callable[[], Any]) -> Any:
    return WebDriverWait(browser.driver, 60).until(lambda _: what())


class Page:
    """User actions on the page."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    def one(self, selector: str) -> WebElement:
        return self.browser.driver.find_element(By.CSS_SELECTOR, selector)

    def every(self, selector: str) -> list[WebElement]:
        return self.browser.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait_for(self, selector: str) -> WebElement:
        """Wait until an element that matches `selector` is shown, and return it."""
        shown: WebElement = until(
            self.browser, lambda: next(filter(WebElement.is_displayed, self.every(selector)), None)
        )
        return shown

    def write(self, field: str, text: str) -> None:
        self.one(field).clear()
        self.one(field).send_keys(text)

    def put(self, field: str, text: str) -> None:
        """Put a text into a field at once: typing is slow, and the driver cannot type emoji."""
        self.browser.driver.execute_script(f"document.querySelector({field!r}).value = arguments[0]", text)

    def press(self, section: str) -> None:
        self.one(f"{section} form button:not([type])").click()

    def answered(self, section: str, text: str) -> str:
        """Write the text of a section, press its button, and return what it says of the answer."""
        self.write(f"{section}-text", text)
        self.press(section)
        return self.wait_for(f"{section} .told:last-child").text

    def shows(self, section: str, scores: Sequence[Mapping[str, Any]], name: str = "label") -> None:
        """Assert that the section lists these scores, best first, as bars."""
        assert self.words(section) == [(one[name], round(100 * one["score"], 1)) for one in scores]
        widths = [float(bar.value_of_css_property("width").removesuffix("px")) for bar in self.every(f"{section} .bar")]
        assert widths == sorted(widths, reverse=True)
        assert widths[0] > 0

    def words(self, section: str) -> list[tuple[str, float]]:
        names, shares = self.every(f"{section} li .name"), self.every(f"{section} li .share")
        return [(name.text, float(share.text.removesuffix(" %"))) for name, share in zip(names, shares, strict=True)]


def page_of(browser: Browser, client: httpx.Client, shown: str) -> Page:
    """Open the playground, and wait until it shows an element."""
    browser.open(str(client.base_url))
    page = Page(browser)
    page.wait_for(shown)
    return page


@pytest.fixture
def page(browser: Browser, client: httpx.Client) -> Iterator[Page]:
    yield page_of(browser, client, "#fill")
    assert browser.console_errors() == []


def told(client: httpx.Client, path: str, inputs: object, **more: object) -> Any:
    return client.post(path, json={"inputs": inputs, **more}).raise_for_status().json()


def test_a_blank_can_be_filled_and_a_word_chosen_with_only_the_keyboard(page: Page, client: httpx.Client) -> None:
    page.write("#fill-text", "the [MASK] of")
    page.one("#fill-text").send_keys(Keys.ENTER)
    page.wait_for("#fill .told")
    candidates = told(client, "/fill-mask", "the [MASK] of", parameters={"top_k": 8})
    page.shows("#fill", candidates, "token_str")
    page.every("#fill li button")[1].send_keys(Keys.ENTER)
    assert page.one("#fill-text").get_attribute("value") == candidates[1]["sequence"]
    page.answered("#fill", text="[MASK] of [MASK]")
    page.wait_for("#fill h3")
    assert len(page.words("#fill")) == 16
    for text, place, wanted in (("return of it", 6, "return [MASK] of it"), ("[MASK] it", 0, "[MASK] [MASK] it")):
        page.put("#fill-text", text)
        page.browser.ask(f"document.querySelector('#fill-text').setSelectionRange({place}, {place})")
        page.one("#add-mask").click()
        assert page.one("#fill-text").get_attribute("value") == wanted


def test_a_text_is_classified_with_its_model_and_shows_which_labels_apply(page: Page, client: httpx.Client) -> None:
    said = page.answered("#classify", text="open the file")
    page.shows("#classify", told(client, "/classify", "open the file")[0])
    card = client.get("/models").json()["models"][1]
    assert f"library, version {card['version']}, graph {card['sha256'][:12]}" in said
    Select(page.one("#classify select")).select_by_value("topics")
    page.press("#classify")
    page.wait_for("#classify p.given")
    (labels,) = told(client, "/classify", "open the file", model="topics")
    given = [one["label"] for one in labels if one["score"] > 0.4]
    assert 0 < len(given) < len(labels)
    assert page.one("#classify p.given").text == f"Assigned: {', '.join(given)}"
    assert [name.text for name in page.every("#classify li.given .name")] == given


def test_entities_are_highlighted_with_one_colour_per_type(page: Page, client: httpx.Client) -> None:
    text = "open 🙂 the lists of a <b>file</b>"
    page.put("#tag-text", text)
    page.press("#tag")
    page.wait_for("#tag .told")
    entities = told(client, "/tag", text, parameters={"aggregation_strategy": "first"})
    colours = {
        one["entity_group"]: mark.value_of_css_property("background-color")
        for one, mark in zip(entities, page.every("#tag mark"), strict=True)
    }
    assert len(set(colours.values())) == len(colours) == 2
    shown = page.browser.ask("[...document.querySelectorAll('#tag .marked')].map(one => one.textContent).join('')")
    for one in reversed(entities):
        text = text[: one["end"]] + one["entity_group"] + text[one["end"] :]
    assert shown == text
    assert page.every("#tag b") == []


def test_a_refusal_names_the_field_of_the_page_and_markup_is_shown_as_text(page: Page) -> None:
    for section, text, fault in (
        ("fill", "<img src=x onerror=alert(1)> no blank", "has no mask"),
        ("tag", "   ", "cannot be used"),
    ):
        page.put(f"#{section}-text", text)
        page.press(f"#{section}")
        said = page.wait_for(f"#{section} .wrong").text
        assert said.startswith(f"“{page.one(f'label[for={section}-text]').text}” {fault}")
        assert [part for part in (". Given: ", ". Expected: ", ". What to do: ") if part not in said] == []
    assert page.every("img") == []
    assert ["422" in complaint for complaint in page.browser.console_errors()] == [True] * 2


def test_the_content_security_policy_blocks_injected_scripts(page: Page, client: httpx.Client) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert not [part for part in ("unsafe", "http") if part in policy]
    page.browser.driver.execute_script(
        "const script = document.createElement('script'); document.body.append(script);"
        "try { script.textContent = 'window.foreign = 1' } catch {}"
        "try { document.body.innerHTML += '<b>' } catch {}"
    )
    assert page.browser.ask("window.foreign") is None
    assert page.every("b") == []
    assert page.browser.console_errors() != []


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_the_playground_fits_the_screen_is_legible_and_loads_nothing_external(
    browser: Browser, client: httpx.Client, tmp_path: Path, width: int, scheme: Scheme
) -> None:
    browser.open(str(client.base_url), width=width, scheme=scheme)
    page = Page(browser)
    page.wait_for("#fill form")
    for section in ("#fill", "#complete", "#compare", "#classify", "#choose", "#tag", "#answer"):
        page.press(section)
        page.wait_for(f"{section} .told")
    browser.driver.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert (browser.overflow(), browser.faint_texts()) == (0, [])
    paths = [address.removeprefix(str(client.base_url)).strip("/") for address in browser.requests()]
    assert paths == ["", "models", "fill-mask", "complete", "embed", "classify", "zero-shot", "tag", "answer"]
    assert browser.console_errors() == []
    picture = Image.open(browser.screenshot(tmp_path / "page.png")).convert("L")
    assert picture.width == width
    assert (picture.getpixel((2, 2)) > 128) == (scheme == "light")


def test_the_page_waits_until_the_models_are_loaded_and_reports_a_server_that_is_gone(
    browser: Browser, catalogue: Catalogue
) -> None:
    service = Service(Capacity(num_workers=1))
    with running(service) as client:
        page = page_of(browser, client, "#problem")
        assert page.one("#problem").text == "The models are loading; this page waits for them."
        service.open(catalogue)
        page.wait_for("#tag")
        assert not page.one("#problem").is_displayed()
        assert all("503" in complaint for complaint in browser.console_errors())
    page.press("#tag")
    assert "What to do: check that the server runs" in page.wait_for("#tag .wrong").text
    browser.console_errors()


def test_only_sections_with_a_model_are_shown(browser: Browser, tmp_path: Path) -> None:
    write_embedder(tmp_path / "docsearch")
    with running(opened(tmp_path / "docsearch")) as client:
        page = page_of(browser, client, "#compare")
        sections = page.every("main section")
        assert [one.get_attribute("id") for one in sections if one.is_displayed()] == ["compare", "models"]


def section_of(browser: Browser, path: str) -> WebElement:
    found = f'//section[h2/code[.="{path}"]]'
    section: WebElement = until(browser, lambda: next(iter(browser.driver.find_elements(By.XPATH, found)), None))
    return section


def call_of(browser: Browser, path: str) -> str:
    """Return the shell line that the page shows for `path`."""
    return section_of(browser, path).find_element(By.TAG_NAME, "pre").text


def sent(browser: Browser, path: str) -> str:
    """Click on Send, and return the answer that the page shows."""
    section = section_of(browser, path)
    section.find_element(By.XPATH, './/button[.="Send"]').click()

    def told() -> str:
        answers = section.find_elements(By.TAG_NAME, "pre")[1:]
        return "".join(str(pre.get_attribute("textContent")) for pre in answers).removesuffix("…")

    return str(until(browser, told))


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_the_docs_page_shows_answers_in_text_and_json_and_by_model_name_legibly(
    browser: Browser, client: httpx.Client, width: int, scheme: Scheme
) -> None:
    browser.open(str(client.base_url.join("/docs")), width=width, scheme=scheme)
    until(browser, lambda: "/v2/models/encoder" in call_of(browser, "/v2/models/{model}"))
    assert "\n# HELP " in sent(browser, "/metrics")
    assert '"name": "encoder"' in sent(browser, "/v2/models/{model}")
    assert sent(browser, "/embed").startswith("200 ")
    assert [line.text for line in browser.driver.find_elements(By.TAG_NAME, "p") if "`" in line.text] == []
    assert (browser.overflow(), browser.faint_texts(), browser.console_errors()) == (0, [], [])


def test_both_pages_send_the_key_that_the_user_typed_and_store_it_nowhere(
    browser: Browser, catalogue: Catalogue
) -> None:
    with running(catalogue, key=KEY) as client:
        page = page_of(browser, client, "#key-text")
        page.one("#key-text").send_keys("not the key", Keys.ENTER)
        assert "key" in page.wait_for("#problem").text
        page.write("#key-text", KEY)
        page.one("#key-text").send_keys(Keys.ENTER)
        page.wait_for("#compare")
        page.press("#compare")
        page.wait_for("#compare .told")
        browser.open(str(client.base_url.join("/docs")))
        field = page.wait_for("#key input")
        field.send_keys(KEY, Keys.ENTER)
        until(browser, lambda: not field.is_displayed())
        assert sent(browser, "/v1/embeddings").startswith("200 ")
        assert (KEY in call_of(browser, "/embed"), "$KEY" in call_of(browser, "/embed")) == (False, True)
        assert browser.ask("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)") == "{}{}"
