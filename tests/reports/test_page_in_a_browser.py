"""The page in headless Chromium: no console error, every figure drawn, no horizontal scrolling on a phone or a desk.

One owner has a name longer than a phone is wide, and accuracies at both ends of the axis.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from collegium.reports.page import write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# The page itself is unchanged, in a frame as wide as the screen; the frame's owner measures it.
FRAME = """<!doctype html><iframe src="report.html" width="{width}" height="800" style="border: 0"></iframe><pre></pre>
<script>
onload = () => {{
  const inside = document.querySelector("iframe").contentDocument;
  const figures = [...inside.querySelectorAll('svg[role="img"]')].map((figure) => {{
    const box = figure.getBoundingClientRect();
    const drawn = [...figure.querySelectorAll("path, use, rect")].filter((part) => {{
      const style = inside.defaultView.getComputedStyle(part);
      return style.stroke !== "none" || style.fill !== "none";
    }});
    const texts = [...figure.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
    const markers = [...figure.querySelectorAll("use")].map((marker) => marker.getBoundingClientRect());
    const covered = markers.filter((marker) => texts.some((text) => text.left < marker.right
      && marker.left < text.right && text.top < marker.bottom && marker.top < text.bottom));
    return [figure.getAttribute("aria-label"), box.width, box.height, drawn.length, covered.length];
  }});
  const width = inside.documentElement.clientWidth, needed = inside.documentElement.scrollWidth;
  const ids = [...inside.querySelectorAll("[id]")].map((element) => element.id);
  document.querySelector("pre").textContent = JSON.stringify({{ figures, width, needed, ids }});
}};
</script>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")


@pytest.fixture
def page(summary, tmp_path: Path) -> Path:
    long = "an-owner-with-a-name-that-is-far-longer-than-a-phone-is-wide-" * 2
    for baseline in ("task-arithmetic", "searched-soup"):
        summary["accuracy"][baseline] = {"union": dict(summary["accuracy"]["soup"]["union"])}
    for accuracy in summary["accuracy"].values():
        accuracy["union"][long] = 0.0
    summary["accuracy"]["oracle"]["union"][long] = 1.0
    summary["accuracy"][f"expert:{long}"] = {"union": {"newsroom": 0.4, long: 0.5}}
    summary["pool_map"]["owners"][long] = [[0.2, 0.3]]
    summary["coverage"]["owners"][long] = {"proxies": 1}
    intervals = {method: {"union": {"newsroom": [0.4, 0.6], "mean": [0.5, 0.6]}} for method in summary["accuracy"]}
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "intervals": intervals}))
    return write_report(tmp_path)


@pytest.mark.parametrize("width", [390, 1200])
def test_every_figure_is_drawn_and_nothing_is_wider_than_the_screen(page: Path, width: int) -> None:
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(width=width))
    shown, _ = _open(frame)
    found = json.loads(re.search("<pre>(.+)</pre>", shown).group(1).replace("&amp;", "&"))
    assert found["width"] == width
    assert found["needed"] <= width
    named = "\n".join(label for label, *_ in found["figures"])
    for domain in ("newsroom", "cinema", "distribution", "an-owner"):
        assert f"Accuracy on {domain}" in named
    assert "Shares of the own expert at layer 1" in named
    assert "Map of 40 items of the public pool" in named
    for label, wide, high, parts, covered in found["figures"]:
        assert (wide > 100, high > 50, parts > 3) == (True, True, True), label
        assert covered == 0, f"a marker lies on a name or a number: {label}"
    assert {"accuracy", "figure", "routing", "pool-map"} <= set(found["ids"])


def test_the_console_stays_empty(page: Path) -> None:
    shown, log = _open(page)
    assert "</footer>" in shown
    assert ":CONSOLE" not in log
    faulty = page.with_name("faulty.html")  # or the browser would not tell
    faulty.write_text(page.read_text().replace("</main>", "<script>1</script></main>"))
    assert ":CONSOLE" in _open(faulty)[1]


def _open(page: Path) -> tuple[str, str]:
    """The page as the browser has it when it is done, and the browser's log."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--hide-scrollbars"]  # a phone's take no room
    options += [
        "--allow-file-access-from-files",
        "--window-size=1300,900",
        f"--user-data-dir={page.parent / 'browser'}",
    ]
    options += ["--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom", page.as_uri()]
    done = subprocess.run([str(BROWSER), *options], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr
