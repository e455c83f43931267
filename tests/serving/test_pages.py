"""The playground and `/docs` work in a real browser by keyboard and mouse, on screens of all sizes, in light and dark.

The playground also copes with a server that is not up yet, a person who types fast, and unusable texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from clozeline.serving.http.status import live
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.make.apps import KEY, opened, running
from tests.make.browser import Browser, Scheme, running_browser
from tests.make.packages import classifier_graph, write_embedder, write_package
from tests.serving.conftest import run_app


@pytest.fixture(scope="module")
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

    def answered(self, section: str, **written: str) -> str:
        """Write texts into fields of a section, press its button, and return what it says of the answer."""
        for field, text in written.items():
            self.write(f"{section}-{field}", text)
        self.one(f"{section} form button:not([type])").click()
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


def test_a_blank_can_be_filled_and_a_word_chosen_with_only_the_keyboard(page: Page, client: httpx.Client) -> None:
    page.write("#fill-text", "the [MASK] of")
    page.one("#fill-text").send_keys(Keys.ENTER)
    page.wait_for("#fill .told")
    body = {"inputs": "the [MASK] of", "parameters": {"top_k": 8}}
    candidates = client.post("/fill-mask", json=body).json()
    page.shows("#fill", candidates, "token_str")
    page.every("#fill li button")[1].send_keys(Keys.ENTER)
    assert page.one("#fill-text").get_attribute("value") == candidates[1]["sequence"]


def test_each_blank_has_its_own_candidates_and_blanks_can_be_added(page: Page) -> None:
    page.write("#fill-text", "return [MASK] of ")
    page.one("#add-mask").click()
    assert page.one("#fill-text").get_attribute("value") == "return [MASK] of [MASK]"
    page.one("#fill form button:not([type])").click()
    page.wait_for("#fill .told")
    assert [title.text for title in page.every("#fill h3")] == ["Blank 1 of 2", "Blank 2 of 2"]
    assert len(page.words("#fill")) == 16


@pytest.mark.parametrize(
    ("text", "place", "wanted"),
    [
        ("return the", 10, "return the [MASK]"),
        ("return of it", 6, "return [MASK] of it"),
        ("return of it", 7, "return [MASK] of it"),
        ("return the.", 10, "return the [MASK]."),
        ("[MASK] it", 0, "[MASK] [MASK] it"),
    ],
)
def test_an_added_mask_is_separated_by_spaces(page: Page, text: str, place: int, wanted: str) -> None:
    page.write("#fill-text", text)
    page.browser.driver.execute_script(
        "document.querySelector('#fill-text').setSelectionRange(arguments[0], arguments[0])", place
    )
    page.one("#add-mask").click()
    assert page.one("#fill-text").get_attribute("value") == wanted


def test_a_text_is_continued_by_the_likeliest_words_or_by_drawn_ones(page: Page, client: httpx.Client) -> None:
    page.write("#complete-text", "return 🙂 the")
    page.one("#complete-text").send_keys(Keys.ENTER)
    page.wait_for("#complete .told")
    body = {"inputs": "return 🙂 the", "parameters": {"max_new_tokens": 32}}
    generated = client.post("/complete", json=body).json()["generated_text"]
    assert page.one("#complete .marked").get_property("textContent") == f"return 🙂 the{generated}"
    assert page.one("#complete mark").get_property("textContent") == generated
    page.one("#complete-drawn").click()
    page.one("#complete form button").click()
    changed = "document.querySelector('#complete mark')?.textContent !== arguments[0]"
    driver = page.browser.driver
    WebDriverWait(driver, 60).until(lambda _: driver.execute_script(f"return {changed}", generated))
    assert page.one("#complete .marked").get_property("textContent").startswith("return 🙂 the")


def test_two_texts_are_compared(page: Page, client: httpx.Client) -> None:
    page.answered("#compare", one="return the list", other="open the file")
    body = {"inputs": {"source_sentence": "return the list", "sentences": ["open the file"]}}
    (cosine,) = client.post("/similarity", json=body).json()
    assert float(page.one("#compare .big").text) == pytest.approx(cosine, abs=0.0006)


def test_a_text_is_classified_with_time_and_model(page: Page, client: httpx.Client) -> None:
    told = page.answered("#classify", text="open the file")
    (labels,) = client.post("/classify", json={"inputs": "open the file"}).json()
    page.shows("#classify", labels)
    card = client.get("/models").json()["models"][1]
    assert "ms in the server" in told
    assert f"library, version {card['version']}, graph {card['sha256'][:12]}" in told


def test_a_multi_label_text_shows_which_labels_apply(page: Page, client: httpx.Client) -> None:
    Select(page.one("#classify select")).select_by_value("topics")
    page.answered("#classify", text="open the file")
    (labels,) = client.post("/classify", json={"inputs": "open the file", "model": "topics"}).json()
    given = [one["label"] for one in labels if one["score"] > 0.4]
    assert 0 < len(given) < len(labels)
    assert page.one("#classify p.given").text == f"Assigned: {', '.join(given)}"
    assert [name.text for name in page.every("#classify li.given .name")] == given


def test_a_pair_model_has_two_text_fields(page: Page, client: httpx.Client) -> None:
    assert not page.one("#classify-other").is_displayed()
    Select(page.one("#classify select")).select_by_value("ranker")
    assert "ranker, version" in page.answered("#classify", text="open", other="the file")
    body = {"inputs": {"text": "open", "text_pair": "the file"}, "model": "ranker"}
    ((label,),) = client.post("/classify", json=body).json()
    page.shows("#classify", [label])
    page.one("#classify-other").clear()
    Select(page.one("#classify select")).select_by_value("library")
    page.one("#classify form button").click()
    told = "document.querySelector('#classify .told:last-child')?.textContent.includes('library, version')"
    WebDriverWait(page.browser.driver, 60).until(lambda _: page.browser.ask(told))


def test_entities_are_highlighted_with_one_colour_per_type(page: Page, client: httpx.Client) -> None:
    text = "open 🙂 the lists of a <b>file</b>"
    page.browser.driver.execute_script("document.querySelector('#tag-text').value = arguments[0]", text)
    page.one("#tag form button").click()
    page.wait_for("#tag .told")
    body = {"inputs": text, "parameters": {"aggregation_strategy": "first"}}
    entities = client.post("/tag", json=body).json()
    marks = page.every("#tag mark")
    assert [mark.text for mark in marks] == [
        f"{text[one['start'] : one['end']]}{one['entity_group']}" for one in entities
    ]
    colours = {
        one["entity_group"]: mark.value_of_css_property("background-color")
        for one, mark in zip(entities, marks, strict=True)
    }
    assert len(set(colours.values())) == len(colours) == 2
    told = page.browser.ask("[...document.querySelectorAll('#tag .marked')].map(one => one.textContent).join('')")
    for one in reversed(entities):
        text = text[: one["end"]] + one["entity_group"] + text[one["end"] :]
    assert told == text
    assert page.every("#tag b") == []


def test_a_question_is_answered_and_the_answer_highlighted_in_the_context(page: Page, client: httpx.Client) -> None:
    page.write("#answer-question", "open")
    page.write("#answer-context", "the list of a file, and é")
    page.one("#answer-question").send_keys(Keys.ENTER)
    page.wait_for("#answer .told")
    inputs = {"question": "open", "context": "the list of a file, and é"}
    parameters = {"top_k": 3, "handle_impossible_answer": True}
    best, *others = client.post("/answer", json={"inputs": inputs, "parameters": parameters}).json()
    shown = [one["answer"] or "(no answer)" for one in (best, *others)]
    assert [name for name, _ in page.words("#answer")] == shown
    assert [mark.text for mark in page.every("#answer mark")] == ([best["answer"]] if best["answer"] else [])


def test_lineage_is_collapsed_and_opens_with_the_keyboard(page: Page, client: httpx.Client) -> None:
    page.one("#models summary").send_keys(Keys.ENTER)
    shown = page.wait_for("#models dl").text
    card = client.get("/models").json()["models"][0]
    assert all(told in shown for told in (card["sha256"], card["lock_sha256"], card["source"], card["version"]))
    assert f"int8: {card['scheme']}" in shown


def test_a_refusal_is_explained_and_markup_is_shown_as_text(page: Page) -> None:
    page.write("#fill-text", "<img src=x onerror=alert(1)> no blank")
    page.one("#fill form button:not([type])").click()
    wrong = page.wait_for("#fill .wrong")
    assert "<img src=x onerror=alert(1)> no blank" in wrong.text
    assert page.every("img") == []
    complaints = page.browser.console_errors()
    assert len(complaints) == 1
    assert "422" in complaints[0]


def test_the_page_sends_the_key_that_the_user_typed(browser: Browser, catalogue: Catalogue) -> None:
    with running(catalogue, key=KEY) as client:
        browser.open(str(client.base_url))
        page = Page(browser)
        page.wait_for("#key-text").send_keys("not the key", Keys.ENTER)
        assert "key" in page.wait_for("#problem").text
        page.write("#key-text", KEY)
        page.one("#key-text").send_keys(Keys.ENTER)
        page.wait_for("#compare")
        assert not page.one("#key").is_displayed()
        page.one("#compare form button").click()
        page.wait_for("#compare .told")
        assert browser.ask("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)") == "{}{}"


def test_only_sections_with_a_model_are_shown(browser: Browser, catalogue: Catalogue) -> None:
    with running([served for served in catalogue if served.identity.name == "library"]) as client:
        page = page_of(browser, client, "#classify")
        hidden = ("fill", "complete", "compare", "choose", "tag", "answer", "key", "problem")
        assert [page.one(f"#{name}").is_displayed() for name in hidden] == [False] * len(hidden)


def test_texts_are_compared_by_the_similarity_model(browser: Browser, catalogue: Catalogue, tmp_path: Path) -> None:
    write_embedder(tmp_path / "docsearch")
    docsearch = opened(tmp_path / "docsearch")[0]
    with running([catalogue.named("encoder"), docsearch]) as client:
        page = page_of(browser, client, "#compare")
        choice = Select(page.one("#compare select"))
        assert [one.get_attribute("value") for one in choice.options] == ["docsearch", "encoder"]
        assert "docsearch, version" in page.answered("#compare")


def test_an_encoder_without_a_head_compares_texts_but_offers_no_blanks(browser: Browser, tmp_path: Path) -> None:
    write_embedder(tmp_path / "docsearch")
    with running(opened(tmp_path / "docsearch")) as client:
        page = page_of(browser, client, "#compare")
        hidden = ("fill", "complete", "classify", "choose", "problem")
        assert [page.one(f"#{name}").is_displayed() for name in hidden] == [False] * len(hidden)
        assert "docsearch, version" in page.answered("#compare")
        assert page.one("#compare .big").text


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")])
def test_the_playground_fits_the_screen_is_legible_and_loads_nothing_external(
    browser: Browser, client: httpx.Client, tmp_path: Path, width: int, scheme: Scheme
) -> None:
    browser.open(str(client.base_url), width=width, scheme=scheme)
    page = Page(browser)
    for section in ("#fill", "#complete", "#compare", "#classify", "#choose", "#tag", "#answer"):
        page.wait_for(f"{section} form button:not([type])").click()
        page.wait_for(f"{section} .told")
    browser.driver.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.overflow() == 0
    assert browser.faint_texts() == []
    paths = [address.removeprefix(str(client.base_url)).strip("/") for address in browser.requests()]
    assert paths == ["", "models", "fill-mask", "complete", "embed", "classify", "zero-shot", "tag", "answer"]
    assert browser.console_errors() == []
    picture = Image.open(browser.screenshot(tmp_path / "page.png")).convert("L")
    assert picture.width == width
    assert (picture.getpixel((2, 2)) > 128) == (scheme == "light")


def test_the_content_security_policy_blocks_injected_scripts(page: Page, client: httpx.Client) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    page.browser.driver.execute_script(
        "const script = document.createElement('script'); document.body.append(script);"
        "try { script.textContent = 'window.foreign = 1' } catch {}"
        "try { document.body.innerHTML += '<b>' } catch {}"
    )
    assert page.browser.ask("window.foreign") is None
    assert page.every("b") == []
    assert page.browser.console_errors() != []


def test_typed_labels_can_be_ranked_with_only_the_keyboard(page: Page, client: httpx.Client) -> None:
    page.write("#choose-text", "open the file")
    page.write("#choose-labels", "list, file,,  é , list")
    page.write("#choose-template", "of {}")
    page.one("#choose-template").send_keys(Keys.ENTER)
    page.wait_for("#choose .told")
    parameters = {"candidate_labels": ["list", "file", "é"], "hypothesis_template": "of {}"}
    labels = client.post("/zero-shot", json={"inputs": "open the file", "parameters": parameters}).json()
    page.shows("#choose", labels)
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
    nli = opened(tmp_path / "nli")[0]
    with running([catalogue.named("encoder"), nli]) as client:
        browser.open(str(client.base_url))
        page = Page(browser)
        page.wait_for("#choose-each").send_keys(Keys.SPACE)
        page.answered("#choose", labels="any words at all, list")
        parameters = {"candidate_labels": ["any words at all", "list"], "multi_label": True}
        body = {"inputs": "Open it for reading.", "parameters": parameters, "model": "nli"}
        labels = client.post("/zero-shot", json=body).json()
        page.shows("#choose", labels)
        Select(page.one("#choose select")).select_by_value("encoder")
        assert not page.one("#choose-each").is_displayed()
        page.write("#choose-labels", "file, list")
        page.one("#choose form button").click()
        told = "(document.querySelector('#choose .told')?.textContent ?? '').includes('encoder, version')"
        WebDriverWait(browser.driver, 60).until(lambda _: browser.ask(told))
        assert sum(share for _, share in page.words("#choose")) == pytest.approx(100, abs=0.2)
        assert browser.console_errors() == []


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
    with running(catalogue) as client:
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
    with running(opened(tmp_path / "topics")) as client:
        given = _given(client, list(labels))
        assert 100 < len(given) < len(labels)
        page = page_of(browser, client, "#classify-text")
        page.answered("#classify", text="open the file")
        assert page.one("#classify p.given").text == f"Assigned: {', '.join(given)}"
        assert [name for name, _ in page.words("#classify")] == given


def _given(client: httpx.Client, labels: list[str]) -> list[str]:
    (scores,) = client.post("/classify", json={"inputs": "open the file", "parameters": {"labels": labels}}).json()
    return [one["label"] for one in scores if one["score"] > 0.4]


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


def test_the_docs_page_sends_the_key_that_the_user_typed(browser: Browser, catalogue: Catalogue) -> None:
    with running(catalogue, key=KEY) as client:
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
