"""Makes the drawings of the README and of docs/index.md.

``python docs/pictures.py diagram`` writes *moves.svg*: a session whose worker dies.

``python docs/pictures.py recording`` writes *first-hour.svg*. It runs the three commands of the README in an empty
folder, presses the button that kills the worker in the middle of an answer, and draws what both terminals show, at the
times at which they did. Pauses of more than two seconds are shortened to two.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final
from xml.sax.saxutils import escape

DOCS: Final = Path(__file__).resolve().parent
ROOT: Final = DOCS.parent

COLORS: Final = """
  .ground { fill: #ffffff; stroke: #d0d7de } .box { fill: #f6f8fa; stroke: #8c959f } .text { fill: #1f2328 }
  .note { fill: #59636e } .ours { fill: #1a7f5a } .gone { fill: none; stroke: #8c959f; stroke-dasharray: 5 4 }
  .line { stroke: #59636e; fill: none } .typed { fill: #0550ae } .press { fill: #b35900 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; stroke: #3d444d } .box { fill: #151b23; stroke: #9198a1 } .text { fill: #e6edf3 }
    .note { fill: #9198a1 } .ours { fill: #3fb98a } .gone { stroke: #9198a1 } .line { stroke: #9198a1 }
    .typed { fill: #79c0ff } .press { fill: #f0883e }
  }"""

# -- the diagram


def diagram() -> str:
    """A session moves from a worker that was killed to another one."""
    parts = [_text(20, 32, "1  worker-a holds the session", "head"), _text(380, 32, "2  worker-a is killed", "head")]
    for left, is_alive in ((20, True), (380, False)):
        parts += _worker(left, "worker-a", ["ann's chat", "its model"] if is_alive else [], is_gone=not is_alive)
        parts += _worker(left + 170, "worker-b", [] if is_alive else ["ann's chat", "its model"])
        parts.append(f'<rect class="box" x="{left}" y="180" width="320" height="56" rx="6"/>')
        parts.append(_text(left + 160, 203, "one database: SQLite or PostgreSQL", "head", middle=True))
        parts.append(_text(left + 160, 223, "leases, history, ann's state and journal", "note", middle=True))
        at = left + (75 if is_alive else 245)
        parts.append(f'<path class="line" d="M{at},150 V176" marker-end="url(#arrow)" marker-start="url(#arrow)"/>')
    parts.append(_text(20, 262, "Each answer commits state and history.", "note"))
    parts.append(_text(380, 262, "worker-b reads the state and goes on.", "note"))
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
        ' orient="auto-start-reverse"><path class="note" d="M0,0 L8,4 L0,8 z"/></marker></defs>'
    )
    rule = ".text, .note, .head { font: 13px system-ui, sans-serif } .head { font-weight: 600; fill: #1f2328 }"
    dark = "@media (prefers-color-scheme: dark) { .head { fill: #e6edf3 } }"
    return _svg(720, 280, "A session moves from a worker that was killed to another one", rule + dark, [arrow, *parts])


def _worker(left: int, name: str, holds: Sequence[str], *, is_gone: bool = False) -> list[str]:
    title = f"{name}: killed" if is_gone else name
    found = [f'<rect class="{"gone" if is_gone else "box"}" x="{left}" y="50" width="150" height="100" rx="6"/>']
    found.append(_text(left + 12, 74, title, "note" if is_gone else "head"))
    return [*found, *(_text(left + 12, 102 + 22 * row, text, "ours") for row, text in enumerate(holds))]


def _text(x: float, y: float, text: str, kind: str, *, middle: bool = False) -> str:
    kind = f"text {kind}" if kind == "ours" else kind
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text class="{kind}" x="{x}" y="{y}"{anchor}>{escape(text)}</text>'


def _svg(width: int, height: int, title: str, style: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    ground = f'<rect class="ground" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    lines = [head, f"<title>{escape(title)}</title>", f"<style>{COLORS}\n  {style}</style>", ground, *parts, "</svg>"]
    return "\n".join(lines) + "\n"


# -- the recording

COMMANDS: Final = ("affinity init", "affinity dev chat:app", "affinity conversation ask ann 'hello' --kind chat")
"""The three commands of the README."""

AGAIN: Final = "affinity conversation ask ann 'still there?' --kind chat"
LONGEST_PAUSE: Final = 2.0
COLUMNS: Final = 100
PATIENCE: Final = 60.0
"""Seconds for which a line is waited for."""


@dataclass
class Recording:
    """What two terminals have shown, and when."""

    lines: list[tuple[float, int, str, str]] = field(default_factory=list)
    """Seconds since the beginning, the terminal, the kind of the line, its text."""
    _began: float = field(default_factory=time.monotonic)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, terminal: int, kind: str, text: str) -> None:
        """Record a line."""
        with self._changed:
            self.lines.append((time.monotonic() - self._began, terminal, kind, text))
            self._changed.notify_all()

    def wait_for(self, text: str, number: int = 1) -> str:
        """Return the line that has this text for the ``number``-th time, when it is there."""

        def found() -> list[str]:
            return [line for *_, line in self.lines if text in line][number - 1 : number]

        with self._changed:
            if not self._changed.wait_for(found, PATIENCE):
                raise TimeoutError(f"no line with {text!r}: {self.lines}")
            return found()[0]


def record() -> Recording:
    """Run the three commands, and kill the worker in the middle of the second answer."""
    recording = Recording()
    with tempfile.TemporaryDirectory() as folder:
        _run(recording, 0, COMMANDS[0], folder)
        recording.add(0, "typed", "$ cd chat")
        with _started(recording, 0, COMMANDS[1], f"{folder}/chat"):
            address = recording.wait_for("the console: ").partition("the console: ")[2]
            recording.wait_for("running app")
            recording.add(1, "typed", "$ cd chat")
            _run(recording, 1, COMMANDS[2], f"{folder}/chat")
            press = threading.Timer(1.0, _press, (recording, address))  # an answer takes two seconds and more
            press.start()
            _run(recording, 1, AGAIN, f"{folder}/chat")
            press.join()
            recording.wait_for("running app", 2)
    return recording


def _command(line: str) -> list[str]:
    program, *arguments = shlex.split(line)
    assert program == "affinity"
    return [sys.executable, "-m", "affinity", *arguments]


def _process(line: str, folder: str) -> subprocess.Popen[str]:
    environment = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "AFFINITY_URL": "sqlite:///affinity.db"}
    return subprocess.Popen(  # noqa: S603
        _command(line),
        cwd=folder,
        env=os.environ | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


@contextmanager
def _started(recording: Recording, terminal: int, line: str, folder: str) -> Iterator[None]:
    recording.add(terminal, "typed", f"$ {line}")
    with _process(line, folder) as process:
        reader = threading.Thread(target=_read, args=(recording, terminal, _output(process)))
        reader.start()
        try:
            yield
        finally:
            process.terminate()
            process.wait()
            reader.join()


def _read(recording: Recording, terminal: int, lines: IO[str]) -> None:
    for line in lines:
        if line.strip():
            recording.add(terminal, "said", line.rstrip())


def _run(recording: Recording, terminal: int, line: str, folder: str) -> None:
    recording.add(terminal, "typed", f"$ {line}")
    with _process(line, folder) as process:
        _read(recording, terminal, _output(process))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, line)


def _press(recording: Recording, address: str) -> None:
    """Press the button of the console."""
    import httpx2 as httpx  # of the extra `test-all`

    base = address.partition("/login")[0]
    with httpx.Client(base_url=base, follow_redirects=True) as browser:
        browser.get(address)
        token = re.search(r'name="token" value="([0-9a-f]+)"', browser.get("/workers").text)
        assert token is not None
        recording.add(0, "press", "▶ Kill the worker, pressed in the console")
        form = {"token": token[1], "what": "worker", "back": "/workers"}
        browser.post("/do/kill-worker", data=form, headers={"origin": base}).raise_for_status()


def draw(recording: Recording) -> str:
    """Both terminals, one below the other. Each line appears when it did; without motion all are there."""
    lines = [(at, terminal, kind, _shortened(text)) for at, terminal, kind, text in recording.lines]
    last = max(at for at, *_, text in recording.lines if "This is answer 2" in text or "running app" in text)
    lines = [line for line in lines if line[0] <= last]
    times = _without_pauses([at for at, *_ in lines])
    parts, top = list[str](), 16
    for number, title in enumerate(("terminal 1", "terminal 2")):
        parts.append(f'<text class="note" x="16" y="{top + 14}">{title}</text>')
        top += 22
        for at, (_, terminal, kind, text) in zip(times, lines, strict=True):
            if terminal == number:
                top += 18
                color = {"typed": "typed", "said": "text", "press": "press"}[kind]
                delay = f"animation-delay:{at + 0.5:.1f}s"
                parts.append(f'<text class="{color} show" style="{delay}" x="16" y="{top}">{escape(text)}</text>')
        top += 22
    style = (
        "text { font: 12px ui-monospace, Menlo, Consolas, monospace; white-space: pre }"
        "\n  @media (prefers-reduced-motion: no-preference) { .show { opacity: 0; animation: show 0s forwards } }"
        "\n  @keyframes show { to { opacity: 1 } }"
    )
    return _svg(760, top, "A chat whose worker is killed in the middle of an answer goes on", style, parts)


def _without_pauses(times: Sequence[float]) -> list[float]:
    found, shown = list[float](), 0.0
    for before, at in zip([0.0, *times], times, strict=False):
        shown += min(at - before, LONGEST_PAUSE)
        found.append(shown)
    return found


def _shortened(text: str) -> str:
    """Without what differs in each run, and not longer than the window."""
    text = re.sub(r"\[worker=\S+\]", "", text).strip()
    text = re.sub(r"^\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d+ (\w+) +affinity\.\w+: ", r"\1 \2 ", text)
    text = re.sub(r"token=\S+", "token=…", text)
    return text if len(text) <= COLUMNS else text[: COLUMNS - 1] + "…"


def main(what: str) -> None:
    """Write one of the drawings."""
    if what == "diagram":
        (DOCS / "moves.svg").write_text(diagram())
    elif what == "recording":
        (DOCS / "first-hour.svg").write_text(draw(record()))
    else:
        raise SystemExit(f"{what!r}: diagram or recording")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
