"""The page in a real browser: nothing fails, nothing is fetched, nothing overflows, and everything is readable."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from clozeline.reporting.page import build
from tests.make.browser import Browser, Scheme, running_browser
from tests.reporting.conftest import Ran


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def unfold(browser: Browser, is_open: str = "true") -> None:
    browser.driver.execute_script(f"document.querySelectorAll('details').forEach(one => one.open = {is_open})")


@pytest.fixture
def report(ran: Ran) -> Path:
    path = ran.root / "reports/report.html"
    path.write_text(build(ran.run).html, encoding="utf-8")
    return path


SCREEN_HEIGHTS = {360: 844, 1280: 900}


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_the_report_needs_no_network_fits_the_screen_and_is_legible(
    browser: Browser, report: Path, tmp_path: Path, width: int, scheme: Scheme
) -> None:
    browser.open(report, width=width, scheme=scheme)
    assert browser.requests() == [report.resolve().as_uri()]
    assert browser.console_errors() == []
    assert browser.overflow() == 0
    assert browser.ask("document.documentElement.scrollHeight") < 5 * SCREEN_HEIGHTS[width], "a few screens"
    unfold(browser)
    assert browser.overflow() == 0
    assert browser.faint_texts() == []
    picture = Image.open(browser.screenshot(tmp_path / "report.png")).convert("L")
    assert picture.width == width
    lightest, darkest = picture.getextrema()[::-1]
    assert lightest - darkest > 150
    assert (picture.getpixel((2, picture.height - 2)) > 128) == (scheme == "light")


def test_the_menu_fits_a_phone_screen_and_a_link_unfolds_its_chapter(browser: Browser, report: Path) -> None:
    browser.open(report, width=360)
    links = "[...document.querySelectorAll('nav a')].map(one => one.getBoundingClientRect())"
    assert browser.ask(f"{links}.filter(one => one.left < 0 || one.right > 360 || !one.height).length") == 0
    boxes = "[...document.querySelectorAll('.scroll')].filter(one => one.checkVisibility())"
    assert browser.ask(f"{boxes}.filter(one => one.scrollWidth > one.clientWidth).length") == 0
    is_open = "document.querySelector('#gates').closest('details').open"
    assert not browser.ask(is_open)
    browser.driver.find_element("css selector", 'nav a[href="#gates"]').click()
    assert browser.ask(is_open)


def test_the_browser_check_detects_errors_requests_and_overflow(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><body style='color: #888; background: #999'>faint<div style='width: 2000px; height: 9px'></div>"
        "<script>nothing_of_that_name()</script><img src='http://127.0.0.1:9/x.png'>"
    )
    browser.open(page, width=360)
    assert any("nothing_of_that_name" in error for error in browser.console_errors())
    assert browser.requests_outside() == ["http://127.0.0.1:9/x.png"]
    assert browser.overflow() > 1000
    assert len(browser.faint_texts()) == 1
