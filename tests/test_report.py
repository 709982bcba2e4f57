"""Report pages: what they say, what they escape, and how they behave in a browser."""

import html
import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_cli import assert_one_line, natgfn

import natgfn as ng
from natgfn.report import Graph, Subject, Table, Verdict, charts, page, write_page
from natgfn.training import command_of, read_settings, setup_from

EVIL = "<script>alert(1)</script>"
CLOSING = "</script><b>"
FORMULA = "=1+1"


def trained(folder: Path, **settings: Any) -> Path:
    """Two runs in a folder, the first with certificates."""
    env, settings = ng.envs.Hypergrid(side=3), {"batch": 4, "progress": False, **settings}
    watch = (ng.watch.Exact(), ng.watch.Certificate(settings["updates"]))
    ng.train(env, ng.optim.Natural(), out=folder / "natural", watch=watch, **settings)
    ng.train(env, ng.optim.Euclidean(), out=folder / "euclidean", **settings)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs"), updates=4, evaluate_every=2, seeds=2)


@pytest.fixture(scope="module")
def both(runs: Path) -> str:
    """The page that compares them."""
    result = natgfn("report", runs / "natural", runs / "euclidean", "--out", runs / "both.html")
    assert result.exit_code == 0, result.output
    return (runs / "both.html").read_text()


def data_of(text: str) -> dict[str, Any]:
    """What the charts of a page are drawn from."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(found)


def words_of(text: str) -> str:
    """What a reader of a page sees without its charts."""
    body = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", body))


def test_a_page_has_every_metric_of_every_seed(runs: Path, both: str):
    data = data_of(both)
    record = [json.loads(x) for x in (runs / "natural/record.jsonl").read_text().splitlines()]
    figures = {figure["id"]: figure for figure in data["figures"]}
    named = [name for name, x in record[-1].items() if isinstance(x, list) and name != "rejected"]
    assert {f"metrics-{name}" for name in named} <= set(figures)
    assert data["names"] == ["natural", "euclidean"]
    kl = figures["metrics-kl"]
    assert [one["run"] for one in kl["series"]] == [0, 1]
    ends = [x["kl"] for x in (record[1], record[-1])]
    one = kl["series"][0]
    assert one["updates"] == [0, 2, 4]
    assert [one["middle"][i] for i in (0, -1)] == pytest.approx([*map(np.median, ends)], rel=1e-5)
    assert [one["low"][i] for i in (0, -1)] == pytest.approx([*map(min, ends)], rel=1e-5)
    assert [one["high"][i] for i in (0, -1)] == pytest.approx([*map(max, ends)], rel=1e-5)
    assert len(figures["certificates-rho"]["series"]) == 1


def test_a_page_says_what_was_run_and_what_came_out(runs: Path, both: str):
    words = words_of(both)
    for phrase in ("rule.name", "Euclidean", "natgfn train", "jaxlib", "Samples, natural"):
        assert phrase in words
    law = next(figure for figure in data_of(both)["figures"] if figure["kind"] == "law")
    opened = ng.training.reopen(runs / "natural", ng.training.load_setup(runs / "natural"))
    target = np.sort(np.exp(opened.space.log_target))[::-1]
    np.testing.assert_allclose(law["series"][0]["target"], target, rtol=1e-5)
    maps = [figure for figure in data_of(both)["figures"] if figure["kind"] == "map"]
    assert [figure["title"] for figure in maps] == [
        "target, natural",  # of both: it is drawn once
        "learned law, natural",
        "learned law, euclidean",
    ]
    learned = np.array(maps[1]["values"])
    assert learned.sum() == pytest.approx(1, abs=0.01)
    for figure in re.findall(r'role="img" aria-label="([^"]*)"', both):
        assert len(figure) > 20


def test_a_page_is_one_small_file_that_fetches_nothing(both: str):
    assert len(both.encode()) < 1e6
    outside = re.sub(r"<script>.*?</script>", "", both, flags=re.DOTALL)
    assert not re.search(r'(src|href)="(?!data:)', outside)
    assert "default-src 'none'" in both


@pytest.mark.parametrize(
    "rule", [ng.optim.Natural(ng.occupancy.Sampled()), ng.optim.Adam(ng.optim.Cosine(0.1, 9)), None]
)
def test_the_command_on_a_page_makes_the_same_run(rule):
    setup, _ = ng.training.decide(ng.Setup(ng.envs.Hypergrid(side=3), rule, updates=3, seeds=2))
    natgfn_, train, *settings = shlex.split(command_of(setup.configuration()))
    assert (natgfn_, train) == ("natgfn", "train")
    again = setup_from(read_settings(None, settings))
    assert again.configuration() == setup.configuration()


def test_no_command_is_promised_for_an_environment_of_ones_own(tmp_path: Path):
    class Mine(ng.envs.Hypergrid):
        """Known to no export of natgfn."""

    run = ng.train(Mine(side=3), updates=1, batch=4, out=tmp_path / "mine", progress=False)
    text = run.report(tmp_path / "page.html").read_text()
    assert "made from Python" in words_of(text)
    assert "Samples" in words_of(text)
    result = natgfn("report", tmp_path / "mine", "--out", tmp_path / "again.html")
    assert result.exit_code == 0, result.output
    assert "law and samples are missing" in words_of((tmp_path / "again.html").read_text())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a posterior over columns with names from a stranger."""
    folder = tmp_path_factory.mktemp("hostile")
    values = np.random.default_rng(0).normal(size=(30, 4))
    names = [EVIL, CLOSING, "$$", FORMULA]
    pd.DataFrame(values, columns=names).to_csv(folder / "data.csv", index=False)
    result = natgfn("dag", "exact", folder / "data.csv", "--out", folder / "run")
    assert result.exit_code == 0, result.output
    return folder / "run" / "posterior.html"


def test_what_comes_from_a_file_is_escaped(hostile: Path):
    text = hostile.read_text()
    assert EVIL not in text
    assert CLOSING not in text
    assert EVIL in words_of(text)
    assert "natgfn dag exact" in words_of(text)
    graph, edges = data_of(text)["figures"]
    assert graph["names"] == [EVIL, CLOSING, "$$", FORMULA]
    assert edges["names"][0] == [f"{EVIL[:15]}…", CLOSING, "$$", FORMULA]
    scripted = Subject(
        EVIL,
        command=CLOSING,
        verdict=Verdict(EVIL, [CLOSING]),
        headline={EVIL: CLOSING},
        graph=Graph([EVIL, CLOSING], np.array([[np.nan, 0.9], [0.1, np.nan]])),
        tables=(Table(EVIL, (CLOSING,), ((EVIL,),)),),
    )
    rendered = page.render([scripted])
    assert EVIL not in rendered
    assert CLOSING not in rendered


def test_the_page_of_a_posterior_says_what_its_files_say(hostile: Path):
    text, folder = hostile.read_text(), hostile.parent
    summary = json.loads((folder / "summary.json").read_text())
    words = " ".join(words_of(text).split())
    assert f"exact all graphs were summed over, to {summary['accuracy']:.0e}" in words
    assert f"expected number of edges {summary['expected_edges']:.4g}" in words
    edges = pd.read_csv(folder / "edge_marginals.csv", index_col=0).to_numpy()
    graph, _ = data_of(text)["figures"]
    shown = np.array(graph["values"], float)
    off = ~np.eye(4, dtype=bool)
    np.testing.assert_allclose(shown[off], edges[off], rtol=6e-3)
    assert np.isnan(np.diag(shown)).all()
    assert f"{(edges + edges.T).max():.3f}" in words
    assert not (folder / "report.html").exists()


def test_variables_go_around_a_circle_causes_first():
    rng = np.random.default_rng(0)
    order = rng.permutation(9)
    values = np.zeros((9, 9))
    for early, late in ((0, 3), (3, 5), (1, 5), (5, 8), (2, 4)):
        values[order[early], order[late]] = rng.uniform(0.6, 0.9)
        values[order[late], order[early]] = 0.1
    values[order[8], order[0]] = 0.55  # would close a cycle, and is the least probable
    np.fill_diagonal(values, np.nan)
    found = charts.around(values)
    assert sorted(found) == list(range(9))
    for early, late in ((0, 3), (3, 5), (1, 5), (5, 8), (2, 4)):
        assert found.index(order[early]) < found.index(order[late])
    assert abs(found.index(order[2]) - found.index(order[4])) == 1


def test_a_missing_library_is_named_with_its_extra(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = natgfn("report", runs / "natural", "--out", runs / "none.html")
    assert_one_line(result, 2, "jinja2", "pip install 'natgfn[report]'")
    monkeypatch.chdir(runs)
    trained = natgfn("train", "env=hypergrid", "env.side=3", "updates=1", "batch=4")
    assert trained.exit_code == 0
    assert "no page about it: jinja2 is not installed" in trained.output


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("nowhere", ("nowhere holds no run", "natgfn train")),
        ("torn", ("line 2", "not an evaluation")),
        ("garbled", ("garbled is not as natgfn left it",)),
    ],
)
def test_folders_without_a_run_are_one_line(
    folder: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for made in ("torn", "garbled"):
        (tmp_path / made).mkdir()
    header = {"configuration": {"env": {"name": "Mine"}}}
    lines = [header, {"step": 0, "seconds": 0.0, "rejected": [0], "kl": ["far"]}]
    (tmp_path / "torn/record.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (tmp_path / "garbled/summary.json").write_text("[1, 2]")
    assert_one_line(natgfn("report", folder), 2, "error: ", *words)


def test_the_same_run_twice_is_one_line(runs: Path):
    result = natgfn("report", runs / "natural", runs / "euclidean" / ".." / "natural")
    assert_one_line(result, 2, "given twice")


FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1280,1000"),
)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Headless Chromium, with a fresh profile."""
    from selenium import webdriver

    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.fail(f"{' and '.join(missing)} missing: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(programs["chromedriver"])
    driver = webdriver.Chrome(options=options, service=service)
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    yield driver
    driver.quit()


def opened(browser: Any, path: Path) -> float:
    """Open a page, wait for its charts, and return the seconds that its thread has worked."""
    browser.get(path.as_uri())
    deadline = time.monotonic() + 120
    while browser.execute_script("return document.body.dataset.drawn") != "yes":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return {metric["name"]: metric["value"] for metric in found}["TaskDuration"]


@pytest.mark.slow
def test_a_reader_can_look_and_switch(browser: Any, tmp_path: Path):
    trained(tmp_path, updates=400, evaluate_every=2, seeds=5)
    folders, path = (tmp_path / "natural", tmp_path / "euclidean"), tmp_path / "both.html"
    assert natgfn("report", *folders, "--out", path).exit_code == 0
    assert opened(browser, path) < 1
    look_and_switch(browser, data_of(path.read_text())["figures"][0])
    screenshot = tmp_path / "page.png"
    assert browser.save_screenshot(str(screenshot))
    assert screenshot.stat().st_size > 20_000
    assert browser.get_log("browser") == []


def value_of(text: str) -> float:
    """A number as charts write it, such as 4.3·10⁻⁴."""
    factor, _, power = text.partition("·10")
    return float(f"{factor}e{power.translate(str.maketrans('⁻⁰¹²³⁴⁵⁶⁷⁸⁹', '-0123456789')) or 0}")


def look_and_switch(browser: Any, kl: dict[str, Any]) -> None:
    """Read a value under the pointer; switch runs, axes and logarithm; zoom, and back."""
    from selenium.webdriver import ActionChains

    def found(css: str) -> list[Any]:
        return browser.find_elements("css selector", css)

    def ticks() -> list[str]:
        return [tick.text for tick in found("#metrics-kl .tick")]

    def read(share: float) -> str:
        """What the chart says at a share of its width, from -1/2 to 1/2."""
        area = found("#metrics-kl svg svg rect")[0]
        across = int(share * area.rect["width"])
        ActionChains(browser).move_to_element_with_offset(area, across, 0).perform()
        return found("#metrics-kl .note")[0].text

    natural, euclidean = kl["series"]
    assert kl["name"] == "kl"
    assert len(natural["middle"]) == 201
    first, mine, other = read(-0.45).splitlines()
    assert mine.endswith(" natural")
    place = natural["updates"].index(int(first.removeprefix("updates ")))
    assert 0 < place < 20
    for line, series in ((mine, natural), (other, euclidean)):
        assert value_of(line.split()[0]) == pytest.approx(series["middle"][place], rel=1e-3)
    assert [len(found(f"#metrics-kl .{mark}")) for mark in ("line", "band")] == [2, 2]

    _, button = found("#legend button")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert [len(found(f"#metrics-kl .{mark}")) for mark in ("line", "band")] == [1, 1]
    assert "euclidean" not in read(0)
    button.click()
    assert "euclidean" in read(0)

    assert "400" in ticks()
    found("[data-axis=seconds]")[0].click()
    assert read(0).startswith("seconds ")
    assert "400" not in ticks()
    found("[data-axis=updates]")[0].click()

    logarithmic = ticks()
    found("[data-figure=metrics-kl]")[0].click()
    assert ticks() != logarithmic
    assert "0" in ticks()

    area = found("#metrics-kl svg svg rect")[0]
    drag = ActionChains(browser).move_to_element(area).click_and_hold()
    drag.move_by_offset(int(area.rect["width"] / 4), 0).release().perform()
    assert "400" not in ticks()
    ActionChains(browser).double_click(found("#metrics-kl svg svg rect")[0]).perform()
    assert "400" in ticks()


@pytest.mark.slow
def test_a_reader_of_a_graph_chooses_the_threshold_and_points(browser: Any, tmp_path: Path):
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    values = np.zeros((4, 4))
    values[0, 1], values[1, 0], values[1, 2], values[2, 1] = 0.9, 0.05, 0.55, 0.4
    np.fill_diagonal(values, np.nan)
    names = ["A", "B", EVIL, FORMULA]
    verdict = Verdict("do not use yet", ["chains have not met"])
    path = tmp_path / "posterior.html"
    write_page([Subject("graphs", verdict=verdict, graph=Graph(names, values))], path)
    opened(browser, path)

    def found(css: str) -> list[Any]:
        return browser.find_elements("css selector", f"#graph-0 {css}")

    def drawn() -> tuple[int, int]:
        assert found("")[0].get_attribute("aria-label").startswith("4 variables, and 2 edges")
        told = browser.find_element("css selector", "output").text
        edges, pairs = len(found(".edge")), len(found(".band-between"))
        assert told.endswith(f": {edges} edges, {pairs} pairs joined")
        return edges, pairs

    assert drawn() == (2, 2)
    slider = browser.find_element("css selector", ".threshold input")
    slider.send_keys(Keys.ARROW_RIGHT * 10)
    assert drawn() == (1, 2)
    slider.send_keys(Keys.END)
    assert drawn() == (0, 0)
    slider.send_keys(Keys.ARROW_LEFT * 60)
    assert drawn() == (3, 2)

    middle = """
        const path = [...document.querySelectorAll("#graph-0 .felt")].at(0);
        const point = path.getPointAtLength(path.getTotalLength() / 2);
        const { x, y } = new DOMPoint(point.x, point.y).matrixTransform(path.getScreenCTM());
        return [x, y];
    """
    browser.execute_script("document.getElementById('graph-0').scrollIntoView({block: 'center'})")
    x, y = browser.execute_script(middle)
    pointer = ActionBuilder(browser)
    pointer.pointer_action.move_to_location(round(x), round(y))
    pointer.perform()
    assert found(".note")[0].text.splitlines() == [
        "A → B: 0.900",
        "B → A: 0.050",
        "not joined: 0.050",
    ]
    ActionChains(browser).move_to_element(found(".variable circle")[1]).perform()
    assert found(".note")[0].text.splitlines() == [
        *("B", "caused by A: 0.900", f"caused by {EVIL}: 0.400"),
        *(f"causes {EVIL}: 0.550", "causes A: 0.050"),
    ]
    screenshot = tmp_path / "page.png"
    assert browser.save_screenshot(str(screenshot))
    assert screenshot.stat().st_size > 20_000
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_names_from_a_stranger_are_shown_and_not_run(hostile: Path, browser: Any):
    opened(browser, hostile)
    labels = [x.text for x in browser.find_elements("css selector", ".chart .tick")]
    assert CLOSING in labels
    names = [x.text for x in browser.find_elements("css selector", ".variable text")]
    assert FORMULA in names
    assert CLOSING in names
    assert browser.find_elements("css selector", "b, .chart script") == []
    assert browser.get_log("browser") == []
