"""The page that follows a demo, without Spark: the files that are written, and what a browser makes of them."""

from __future__ import annotations

import json
import webbrowser
from dataclasses import replace

import pytest

from headrace.demo import data, report
from headrace.demo.live import Live
from headrace.demo.pipeline import Results
from tests import pages
from tests.browser import browser
from tests.demo.test_report import run_of

CLOCK = 'document.getElementById("clock").textContent'
NEWS = 'document.getElementById("news").textContent'


@pytest.fixture(scope="module")
def run():
    return run_of(data.load(), minutes=300)


@pytest.fixture
def opened(monkeypatch):
    found = []

    def note(url):
        found.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", note)
    return found


@pytest.fixture
def live(tmp_path):
    return Live(tmp_path / "my page.html")


def early(run, minutes):
    """The run when so many minutes had come out."""
    labels = sorted({label for _, label in run.results.rows})[:minutes]
    rows = {key: row for key, row in run.results.rows.items() if key[1] in labels}
    arrivals = [arrival for arrival in run.results.arrivals if arrival.minute in labels]
    return replace(run, results=Results(rows, 0, arrivals))


def test_the_page_is_there_from_the_start_and_is_the_last_one_in_the_end(run, opened, live, tmp_path):
    page, script = tmp_path / "my page.html", tmp_path / "my page.live.js"
    live.begin(early(run, 0))
    assert opened == [page.resolve().as_uri()]
    assert 'data-live="my%20page.live.js"' in page.read_text()
    assert not live.is_due()
    live.update(early(run, 60))
    news = json.loads(script.read_text().removeprefix("headraceLive(").removesuffix(");\n"))
    assert (news["rows"], news["wanted"], news["data"]["count"]) == (60 * 12, 1800 * 12, 60)
    assert news["data"]["running"]
    assert "of the rows are there" in news["pieces"]["tiles"]
    report.write(page, run)
    live.close()
    assert [one.name for one in tmp_path.iterdir()] == ["my page.html"]
    text = page.read_text()
    assert 'data-live=""' in text
    assert "result against the table from the file" in text


def test_rows_that_come_while_the_page_is_made_do_not_matter(run, opened, live, monkeypatch):
    state = report.state
    growing = early(run, 60)

    def slow(of):
        growing.results.rows["elsewhere", "2017-03-15 14:41"] = (1, 1.0, 1)
        return state(of)

    monkeypatch.setattr(report, "state", slow)
    live.update(growing)
    assert not opened


def test_a_machine_without_a_browser_says_where_the_page_is(run, live, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(webbrowser, "open", lambda _url: False)
    live.begin(early(run, 0))
    said = capsys.readouterr().err
    assert (tmp_path / "my page.html").resolve().as_uri() in said
    assert "no browser opens it" in said


@pages.needs_browser
@pytest.mark.slow
def test_the_page_moves_while_the_demo_runs_and_ends_as_the_last_one(run, opened, live, tmp_path):
    page = tmp_path / "my page.html"
    live.begin(early(run, 0))
    with browser() as shown:
        shown.look(820)
        shown.open(page)
        assert shown.run(CLOCK) == "no rows yet"
        found = pages.check_boxes(shown)
        assert pages.texts_on_texts(found) == []
        live.update(early(run, 60))
        shown.wait_for(f'{CLOCK} === "Wed 15 Mar, 15:40"')
        assert shown.run(NEWS) == "Running: 720 of 21,600 rows."
        shown.run('document.querySelector("#time").dataset.same = "yes"')
        live.update(early(run, 120))
        shown.wait_for(f'{CLOCK} === "Wed 15 Mar, 16:40"')
        assert shown.run('document.querySelector("#time").dataset.same') == "yes"
        shown.run('document.getElementById("play").click()')
        found = pages.check_boxes(shown)
        assert pages.texts_on_texts(found) == []
        bars = shown.run('document.getElementById("chart-delay").data[0].x.length')
        live.update(early(run, 300))
        # Who has pressed Pause is left where they are.
        shown.wait_for(f'document.getElementById("chart-delay").data[0].x.length > {bars}')
        assert shown.run(CLOCK) == "Wed 15 Mar, 16:40"
        report.write(page, run)
        live.close()
        shown.wait_for('document.documentElement.dataset.live === "" && document.getElementById("news").hidden')
        assert shown.run('document.querySelector(".tile b").textContent') == "equal"
        [error] = set(shown.errors)
        assert "ERR_FILE_NOT_FOUND" in error


@pages.needs_browser
@pytest.mark.slow
def test_a_page_whose_demo_has_failed_says_so(run, opened, live, tmp_path):
    live.begin(early(run, 0))
    live.close()
    with browser() as shown:
        shown.look(390)
        shown.open(tmp_path / "my page.html")
        shown.wait_for(f'{NEWS} === "The demo has ended before its result was there."')
