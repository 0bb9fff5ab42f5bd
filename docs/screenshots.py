"""Makes the pictures of docs/run/console.md from the demo: ``python docs/screenshots.py``, with Debian's chromium."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent / "run"
VIEWPORT = {"width": 1280, "height": 860}


def main() -> None:
    """Run the demo; take a picture when its worker has died, and others when it is over."""
    command = [sys.executable, "-m", "affinity", "demo", "--console", "--conversations", "30"]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as demo,  # noqa: S603
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=VIEWPORT)  # type: ignore[arg-type]  # two numbers
        page.goto(line(demo, r"Open (\S+)"))
        page.get_by_role("heading", name="Overview", exact=True).wait_for()
        page.get_by_role("link", name="Workers", exact=True).click()
        page.locator("tr", has_text="lease expired").first.wait_for(timeout=120_000)
        page.screenshot(path=FOLDER / "console-workers.png")
        page.get_by_role("link", name="Overview", exact=True).click()
        page.locator("svg.moves rect").first.wait_for()
        page.screenshot(path=FOLDER / "console-overview.png")
        page.get_by_role("link", name="Workers", exact=True).click()
        line(demo, r"(The run is over)")
        page.locator("tr", has_text="lease expired").last.get_by_role("link").click()
        page.locator("svg.strip").wait_for()
        page.screenshot(path=FOLDER / "console-session.png")
        browser.close()
        demo.send_signal(signal.SIGINT)


def line(demo: subprocess.Popen[str], pattern: str) -> str:
    """What the pattern captures in the first line that has it."""
    assert demo.stderr is not None
    return next(found[1] for text in demo.stderr if (found := re.search(pattern, text)))


if __name__ == "__main__":
    main()
