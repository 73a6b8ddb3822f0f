"""The live page in a real browser, against a running pipeline."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from asyncstream import Emitter, KeyedContext, KeyedProcessFunction, Pipeline
from tests.web.browser import Browser, browsing
from tests.web.shop import EVIL, Shop, serving

SCREENSHOTS = os.environ.get("SCREENSHOTS")
"""A folder for the pictures of the documentation; by default none are kept."""

TOKEN = "open sesame"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with serving() as shop:
        yield shop


@pytest.fixture
def page(browser: Browser, shop: Shop) -> Iterator[Browser]:
    """The page of the shop, where everything works, as soon as it shows something that moves."""
    shop.do(shop.well)
    browser.look()
    browser.open(shop.url)
    browser.until(lambda: not browser.all(".node[data-level=critical]"), "nothing is stuck")
    browser.until_text("[data-step=price] .figures", "/s")
    yield browser
    browser.forget()
    assert browser.complaints() == []


def row(browser: Browser, step: str) -> dict[str, str]:
    """The figures of a step in the table, by the heads of the columns."""
    script = """
        const row = document.querySelector(`#steps tr[data-step="${CSS.escape(arguments[0])}"]`);
        const heads = [...document.querySelectorAll("#steps thead th")].map((head) => head.textContent);
        return Object.fromEntries([...row.children].map((cell, i) => [heads[i], cell.textContent]));
    """
    found: dict[str, str] = browser.run(script, step)
    return found


def test_figures_are_shown_and_move(page: Browser) -> None:
    assert page.text("#name") == "shop orders"
    assert page.text("#state") == "running"
    assert page.text("#live") == "live"
    page.until(lambda: row(page, "price")["p99"].endswith("ms"), "latency of the calls")
    assert re.fullmatch(r"\d+/s", row(page, "price")["In"])
    assert re.fullmatch(r"\d+ / 24", row(page, "price")["In flight"])
    page.find("[data-step=orders].node").click()

    def read() -> int:
        facts = page.run(
            "return [...document.querySelectorAll('#details .facts div')].map((d) => d.textContent)"
        )
        return int(
            next(fact for fact in facts if fact.startswith("read")).removeprefix("read").replace(",", "")
        )

    before = read()
    page.until(lambda: read() > before + 100, "more is read")

    def line() -> Any:
        return page.run("return document.querySelector('#details .line.tone-main').getAttribute('d')")

    drawn = line()
    assert drawn
    page.until(lambda: line() != drawn, "the chart moves")
    page.until(lambda: page.text("#checkpoints").startswith("number"), "a checkpoint")


def test_step_between_others_without_figures_is_not_called_quiet(page: Browser) -> None:
    # in -> three filters -> all, which a reduce reads; there is a counter at both ends only
    script = """
        const kinds = [
          ["in", "source"], ["a", "filter"], ["b", "filter"], ["c", "filter"],
          ["all", "union"], ["sum", "reduce"],
        ];
        const counters = (t) => ({ in: { read: 90 * t }, all: { elements_in: 30 * t } });
        const still = { waiting: {}, held_back_by: null, stuck: null, idle: false };
        const status = (seconds) => ({
          started_ms: 0, now_ms: seconds * 1000, state: "running",
          steps: kinds.map(([name, kind], i) => ({
            ...still, name, kind, inputs: i ? [kinds[i - 1][0]] : [],
            input_steps: i ? [kinds[i - 1][0]] : [], counts: counters(seconds)[name] ?? {},
          })),
        });
        return import("./history.js").then(({ History, levelOf }) => {
          const history = new History();
          [0, 1, 2, 3].forEach((seconds) => history.add(status(seconds)));
          const { steps, flow } = history.last;
          return [...steps.values()].map((step) => {
            const { in: into, out } = flow.get(step.name);
            return [into, out, levelOf(step, history.last)[1]];
          });
        });
    """
    assert page.run(script) == [
        [None, 90, "running"],
        [90, None, "running"],
        [None, None, "no figures"],
        [None, 30, "running"],
        [30, 30, "running"],
        [30, None, "running"],
    ]


def test_details_have_the_charts_of_what_a_step_is_by_now(page: Browser) -> None:
    # a step without a time as yet; then with one; then, in the next job, one that calls
    script = """
        const still = {
          name: "a", inputs: [], input_steps: [], waiting: {}, counts: {}, latency: null, oldest_call: null,
          concurrency: null, watermark_ms: null, lag_ms: null,
        };
        const status = (started_ms, now_ms, step) => ({
          started_ms, now_ms, state: "running", steps: [{ ...still, ...step }],
        });
        const section = document.createElement("section");
        document.body.append(section);
        const modules = ["./history.js", "./details.js"].map((name) => import(name));
        return Promise.all(modules).then(([{ History }, { Details }]) => {
          const [history, details] = [new History(), new Details(section, () => {})];
          const charts = (...of) => {
            history.add(status(...of));
            details.show("a", history);
            return section.querySelectorAll(".chart").length;
          };
          const found = [charts(0, 0, { kind: "map" })];
          section.querySelector(".close").focus();
          found.push(
            charts(0, 1000, { kind: "map", watermark_ms: 5, lag_ms: 5 }),
            charts(2000, 3000, { kind: "async_map", concurrency: 5 }),
            document.activeElement.className,
          );
          section.remove();
          return found;
        });
    """
    assert page.run(script) == [1, 2, 3, "close"]


def test_failed_elements_open_and_show_values_only_when_asked(page: Browser) -> None:
    page.until(lambda: page.text("#failed-count") != "0", "a failure")
    assert not page.find("#failed-list").is_displayed()
    page.find("#failed summary").click()
    assert page.find("#failed-list").is_displayed()
    first = page.text("#failed-list li")
    assert "customer" in first
    assert "RetriesExhausted" in first
    assert "element hidden" in first
    assert "no customer" not in page.text("body")  # the error quotes the element
    page.find("#values").click()
    page.until_text("#failed-list code", EVIL)
    assert "no customer" in page.text("#failed-list")
    page.find("#values").click()
    page.until_text("#failed-list li", "element hidden")
    assert "no customer" not in page.text("body")


def test_markup_in_names_and_elements_is_only_text(page: Browser) -> None:
    page.find("#values").click()
    page.find("#failed summary").click()
    page.until_text("#failed-list code", EVIL)
    page.run("document.querySelector(`.node[data-step='${CSS.escape(arguments[0])}']`).click()", EVIL)
    page.until_text("#details-title", EVIL)
    assert page.all("img") == []
    assert page.run("return document.querySelectorAll('[onerror]').length") == 0


@pytest.mark.parametrize(
    ("broken", "step", "why"),
    [("answers", "price", "call"), ("writes", "ledger", "write"), ("returns", "all", "returns")],
)
def test_step_that_is_stuck_turns_red_and_is_named(
    page: Browser, shop: Shop, broken: str, step: str, why: str
) -> None:
    node = f".node[data-step={step}]"
    colour = "return getComputedStyle(document.querySelector(arguments[0])).borderLeftColor"

    def level() -> Any:
        return page.run("return document.querySelector(arguments[0]).dataset.level", node)

    page.until(lambda: level() in ("good", "quiet"), f"{step} is well")
    well = page.run(colour, node)
    shop.do(getattr(shop, broken).clear)
    page.until(lambda: level() == "critical", f"{step} is stuck")
    assert page.run(colour, node) != well
    assert page.run(colour, node) == "rgb(192, 38, 43)"
    alert = page.text(f"#alerts [data-key='{step}']")
    assert f"{step} is stuck" in alert
    assert why in alert
    assert row(page, step)["State"] == "stuck"
    shop.do(getattr(shop, broken).set)
    page.until(lambda: not page.all("#alerts > *"), "all is well again")


def test_step_called_failed_that_is_stuck_is_not_taken_for_a_failed_job(browser: Browser) -> None:
    browser.look()
    with serving(lambda shop: shop.pipeline(ledger="failed")) as shop:
        shop.do(shop.writes.clear)
        browser.open(shop.url)
        browser.until_text("#alerts", "failed is stuck")
        shop.do(shop.well)
    browser.until(lambda: browser.text("#live") != "live", "the connection is lost")


def test_keyboard_alone_is_enough(page: Browser) -> None:
    def focused() -> Any:
        return page.run("const at = document.activeElement; return at.dataset.step ?? at.id ?? at.tagName")

    for _ in range(12):
        press(page, "Tab")
        if focused() == "orders":
            break
    assert focused() == "orders"
    press(page, "Enter")
    page.until_text("#details-title", "orders")
    press(page, "Escape")
    assert not page.find("#details").is_displayed()
    assert focused() == "orders"
    outline = page.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # where the focus is, can be seen


def press(browser: Browser, key: str) -> None:
    codes = {"Tab": 9, "Enter": 13, "Escape": 27}
    text = {"Enter": "\r"}.get(key, "")
    for kind in ("keyDown", "keyUp"):
        event = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        browser.driver.execute_cdp_cmd("Input.dispatchKeyEvent", event | ({"text": text} if text else {}))


def test_screen_reader_hears_what_everything_is(page: Browser) -> None:
    page.find(".node[data-step=price]").click()
    buttons = page.accessible_names("button")
    assert "" not in buttons
    assert any(re.match(r"price, async_map, running\. .*calls in flight", name) for name in buttons)
    charts = page.accessible_names("image")
    assert any(name.startswith("Throughput: in ") for name in charts)
    assert "Pipeline" in page.accessible_names("region")
    assert page.run("return document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(page: Browser, shop: Shop, scheme: Any) -> None:
    page.look(scheme=scheme)
    page.find(".node[data-step=price]").click()
    page.find("#failed summary").click()
    shop.do(shop.answers.clear)
    page.until(lambda: page.all("#alerts > *"), "something is stuck")
    assert page.run(CONTRAST) == []
    shop.do(shop.answers.set)


CONTRAST = """
    // texts with less contrast than 4.5 : 1 to what is behind them
    const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
    const linear = (part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const weights = [0.2126, 0.7152, 0.0722];
    const light = (colour) => weights.reduce((sum, each, i) => sum + each * linear(colour[i] / 255), 0);
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const colour = rgb(getComputedStyle(at).backgroundColor);
        if ((colour[3] ?? 1) === 1) return colour;
      }
      return [255, 255, 255];
    };
    const bad = [];
    for (const element of document.querySelectorAll("body *")) {
      const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
      if (!own || !element.checkVisibility() || element.closest(".skip")) continue;
      const style = getComputedStyle(element);
      const colour = rgb(element instanceof SVGElement ? style.fill : style.color);
      const [less, more] = [light(colour), light(behind(element))].sort((a, b) => a - b);
      if ((more + 0.05) / (less + 0.05) < 4.5) bad.push(`${element.className}: ${element.textContent}`);
    }
    return bad;
"""


def test_light_and_dark_follow_the_reader(page: Browser) -> None:
    def background() -> Any:
        return page.run("return getComputedStyle(document.body).backgroundColor")

    light = background()
    page.look(scheme="dark")
    dark = background()
    assert light != dark
    page.find("#theme").click()
    assert (page.text("#theme"), background()) == ("Theme: light", light)
    page.driver.refresh()
    page.until_text("#theme", "light")
    page.look(scheme="light")
    page.find("#theme").click()
    assert (page.text("#theme"), background()) == ("Theme: dark", dark)


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_page_fits_the_screen(page: Browser, width: int) -> None:
    page.look(width, 800)
    page.until_text("[data-step=price] .figures", "/s")
    page.run("document.querySelector('.node[data-step=price]').click()")
    page.until_text("#details-title", "price")
    assert page.run("return document.documentElement.scrollWidth") <= width
    inside = "const g = document.getElementById('graph'); return g.scrollWidth <= g.clientWidth"
    page.until(lambda: page.run(inside), "nobody has to scroll the graph sideways")  # when it is drawn anew
    overlaps = """
        const boxes = [...document.querySelectorAll(".node")].map((node) => node.getBoundingClientRect());
        const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
        return boxes.some((a, i) => boxes.some((b, j) => i < j && meet(a, b)));
    """
    assert not page.run(overlaps)


def test_input_is_found_where_names_have_dots(page: Browser) -> None:
    script = """
        const [inputs, input_steps] = arguments;
        return import("./history.js").then(({ inputsOf }) =>
          inputsOf({ inputs, input_steps }).map(Object.values));
    """
    inputs = ["a", "a.b", "a.b", "a.failed", "a.x.y", "a.b.x.y"]
    steps = ["a", "a.b", "a", "a", "a", "a.b"]
    found = [["a", None], ["a.b", None], ["a", "b"], ["a", "failed"], ["a", "x.y"], ["a.b", "x.y"]]
    assert page.run(script, inputs, steps) == found


def test_step_that_a_job_failed_in_is_marked_when_the_others_have_ended(page: Browser) -> None:
    script = """
        const [name, failed_step] = arguments;
        const sample = { hasEnded: true, status: { failed_step } };
        return import("./history.js").then(({ levelOf }) => levelOf({ name }, sample));
    """
    assert page.run(script, "price", "price") == ["critical", "failed"]
    assert page.run(script, "price", "ledger") == page.run(script, "price", None) == ["quiet", "ended"]


LONG = "of_many_words_" * 18


class Aside(KeyedProcessFunction[int, int]):
    """Sends everything to an output with a long name."""

    def process_element(self, value: int, ctx: KeyedContext, out: Emitter[int]) -> None:
        ctx.side(LONG, value)


def with_long_names(shop: Shop) -> Pipeline:
    async def numbers() -> AsyncIterator[int]:
        for number in count():
            yield number
            await asyncio.sleep(0.02)

    async def fail(number: int) -> int:
        raise LookupError(str(number))

    pipeline = Pipeline(LONG * 4)
    numbered = pipeline.source(numbers, name="numbers").key_by(lambda number: number % 2)
    aside = numbered.process(Aside(), name="aside")
    aside.discard(name="nothing")
    aside.side(LONG, of=int).async_map(fail, name=f"fails {LONG}", on_error="skip").discard(name=LONG)
    return pipeline


@pytest.mark.parametrize("width", [360, 1440])
def test_long_names_leave_room_for_the_rest(browser: Browser, width: int) -> None:
    browser.look(width, 900)
    with serving(with_long_names) as shop:
        browser.open(shop.url)
        browser.until(lambda: browser.text("#failed-count") != "0", "a failure")
        browser.find("#failed summary").click()
        assert browser.run("return document.documentElement.scrollWidth") <= width
        box = "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()"
        assert browser.run(box, "tbody td")["left"] < width, "the state of a step is in view"
        failures, error = (browser.run(box, of)["width"] for of in ("#failed-list", "#failed-list .error"))
        assert error > failures / 5
        assert browser.run(box, ".bar")["height"] < 200
        labels = "return [...document.querySelectorAll('.edge-rate')].map((each) => each.offsetWidth)"
        assert max(browser.run(labels)) <= 196, "as wide as a step"
    browser.until(lambda: browser.text("#live") != "live", "the connection is lost")
    browser.complaints()


def test_nothing_comes_from_another_host(page: Browser, shop: Shop) -> None:
    loaded = page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert loaded
    assert [name for name in loaded if not name.startswith((shop.url, "data:"))] == []


def test_page_says_that_the_job_is_gone_and_goes_on_with_the_next(browser: Browser) -> None:
    browser.look()
    with serving() as first:
        browser.open(first.url)
        browser.until_text("#live", "live")
        browser.until(lambda: row(browser, "price")["Out"] not in ("–", "0/s"), "something flows")
        browser.until(lambda: browser.text("#checkpoints").endswith("failed since0"), "a checkpoint")
    browser.until(lambda: browser.text("#live") != "live", "the connection is lost")
    assert browser.text("#state") == "stopped"
    assert browser.text("#uptime").startswith("ran ")
    figures = row(browser, "price")
    assert (figures["State"], figures["In"], figures["Out"]) == ("ended", "–", "–")
    assert "ago" not in browser.text("#checkpoints")


def test_figures_are_of_the_past_while_the_server_cannot_be_reached(page: Browser, shop: Shop) -> None:
    def look() -> tuple[str, Any]:
        return page.text("#state"), page.run("return getComputedStyle(document.querySelector('main')).filter")

    assert look() == ("running", "none")
    page.reach(False)  # which breaks nothing that is there
    shop.do(shop.cut)
    page.until(lambda: page.text("#state") == "was running", "the connection is lost")
    assert look() == ("was running", "grayscale(1)")
    assert re.fullmatch(r"last seen .*\d\d:\d\d:\d\d.*", page.text("#uptime"))
    assert "was running" in page.driver.title
    page.reach(True)
    page.until(lambda: page.text("#state") == "running", "it is there again")
    assert look() == ("running", "none")
    assert page.text("#uptime").startswith("up ")
    page.complaints()


def test_token_is_asked_for_and_kept_to_the_page(browser: Browser) -> None:
    browser.look()
    with serving(token=TOKEN) as shop:
        browser.open(shop.url)
        browser.until(lambda: browser.find("#login").is_displayed(), "a token is asked for")
        assert browser.text("#steps tbody") == ""
        enter(browser, "wrong")
        browser.until_text("#login-why", "not the token")
        enter(browser, "Łódź")  # which no header can hold
        browser.until(lambda: browser.find("#login").is_displayed(), "it is asked for again")
        enter(browser, TOKEN)
        browser.until_text("#state", "running")
        browser.forget()
        browser.open(f"{shop.url}#token={TOKEN.replace(' ', '%20')}")
        browser.until_text("#state", "running")
        assert browser.driver.current_url == shop.url


def test_token_in_the_address_may_have_any_character(browser: Browser) -> None:
    browser.look()
    with serving(token="a+b/c=&%2B") as shop:
        browser.open(f"{shop.url}#token=a+b/c=%26%252B")
        browser.until_text("#state", "running")
        browser.forget()


def enter(browser: Browser, token: str) -> None:
    browser.find("#token").send_keys(token)
    browser.find("#login-form button").click()


def test_pictures_for_the_documentation(browser: Browser) -> None:
    with serving(lambda shop: shop.pipeline("alerts")) as shop:
        browser.look(height=860)
        browser.open(shop.url)
        browser.until_text(".node[data-step=price] .figures", "p99")
        browser.find(".node[data-step=price]").click()
        browser.until_text("#details-title", "price")
        if SCREENSHOTS:
            time.sleep(45)  # for charts with something in them
        picture(browser, "dashboard")
        browser.look(height=860, scheme="dark")
        picture(browser, "dashboard-dark")
        browser.look(width=390, height=844)
        picture(browser, "dashboard-phone")
        browser.look(height=860)
        browser.find(".node[data-step=price]").click()
        shop.do(shop.answers.clear)
        browser.until_text("#alerts", "price is stuck")
        picture(browser, "dashboard-stuck")
        shop.do(shop.answers.set)


def picture(browser: Browser, name: str) -> None:
    """A picture of what the page shows; kept where pictures are wanted."""
    shown = browser.driver.get_screenshot_as_png()
    assert shown.startswith(b"\x89PNG")
    if SCREENSHOTS:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        (Path(SCREENSHOTS) / f"{name}.png").write_bytes(shown)
