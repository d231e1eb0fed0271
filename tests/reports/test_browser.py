"""The report in a real browser, Chromium; skipped where there is none."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from implicitq.reports.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
]
# A window has a least width, a frame has none.
FRAME = """<!doctype html><body><script>
addEventListener("message", message => document.body.dataset.found = message.data)
</script><iframe src="probed.html" style="border: 0; width: {width}px; height: 900px"></iframe></body>"""
PROBE = """
<script>addEventListener("load", () => {
  const boxes = [...document.querySelectorAll("figure svg")].map(svg => svg.getBoundingClientRect());
  const texts = [...document.querySelectorAll("figure svg text")].map(text => text.getBoundingClientRect().height);
  const found = {
    figures: boxes.length,
    visible: boxes.filter(box => box.width > 200 && box.height > 80).length,
    within: boxes.every(box => box.right <= innerWidth + 1),
    wide: document.documentElement.scrollWidth > innerWidth + 1,
    width: innerWidth,
    least: Math.min(...texts),
    ink: getComputedStyle(document.body).color,
    paper: getComputedStyle(document.body).backgroundColor,
    axis: getComputedStyle(document.querySelector("figure svg text")).fill,
  };
  parent.postMessage(JSON.stringify(found), "*");
})</script>
"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")


def look(page: Path, profile: Path, width: int, *more: str) -> tuple[dict, str]:
    """What the browser made of the page, and what it complained of."""
    probed = page.with_name("probed.html")
    probed.write_text(page.read_text().replace("</body>", f"{PROBE}</body>"))
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(width=width))
    words = [str(CHROMIUM), *FLAGS, *more, f"--user-data-dir={profile}", "--window-size=1400,1000", "--dump-dom"]
    done = subprocess.run([*words, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'data-found="([^"]+)"', done.stdout)
    assert found is not None
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(found[1].replace("&quot;", '"')), "\n".join(complaints)


def brightness(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_figure_is_visible_and_legible(finished_sweep, tmp_path, width, dark):
    page = write_report(finished_sweep).page
    found, complaints = look(page, tmp_path / "profile", width, *(["--force-dark-mode"] if dark else []))
    assert not complaints
    assert found["figures"] == found["visible"] == page.read_text().count("<svg") > 0
    assert found["within"]
    assert not found["wide"]
    assert found["width"] == width
    assert found["least"] >= 8  # pixels
    ink, paper = brightness(found["ink"]), brightness(found["paper"])
    assert (ink > paper + 100) if dark else (paper > ink + 100)
    assert abs(brightness(found["axis"]) - ink) < 1  # figures take the page's colour
