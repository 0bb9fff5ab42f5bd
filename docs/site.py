"""Build the site: ``python docs/site.py FOLDER``. A warning, such as a link that leads nowhere, is an error.

``python docs/site.py --llms`` writes *llms.txt*, the list of pages for coding assistants. The site has it too, with the
pages as Markdown, and all of them in *llms-full.txt*.

The pages are this folder in the order of `index.md`, decisions, and a reference made from docstrings.
Links out of this folder lead to the repository.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).resolve().parent
ROOT: Final = DOCS.parent

MODULES: Final = [
    "affinity",
    "affinity.composed.app",
    "affinity.composed.client",
    "affinity.composed.worker",
    "affinity.composed.options",
    "affinity.client",
    "affinity.sync",
    "affinity.orchestration",
    "affinity.schedules",
    "affinity.audit",
    "affinity.trends",
    "affinity.session",
    "affinity.conversation",
    "affinity.agent",
    "affinity.console",
    "affinity.worker",
    "affinity.errors",
    "affinity.records",
    "affinity.telemetry",
    "affinity.testing",
    "affinity_conformance.providers",
    "affinity_conformance.stores",
    "affinity.provider.contract",
]

INTRODUCTIONS: Final = {
    "affinity.composed.app": "`affinity.App`.\n\n",
    "affinity.composed.client": "`affinity.Client`.\n\n",
    "affinity.composed.options": "`affinity.RuntimeOptions`.\n\n",
    "affinity.composed.worker": "`affinity.Worker`.\n\n",
    "affinity.sync": "Each call does what the call of the same name of [affinity.Client](affinity.composed.client.md)"
    " or [affinity.conversation](affinity.conversation.md) does, and waits for it. Calls with overloads, such as"
    " `Client.start` and `Client.handle`, are described there only.\n\n",
}
"""Of modules whose docstrings are elsewhere."""

LINK: Final = re.compile(r"(?<=\]\()(\.\.?/[^)#\s]*)")


def build(folder: Path) -> None:
    """Write the site into the folder, which is emptied."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        shutil.copytree(DOCS, place / "docs", ignore=shutil.ignore_patterns("*.py", "site.yml", "__pycache__"))
        source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
        for page in DOCS.rglob("*.md"):
            (place / page.relative_to(ROOT)).write_text(_lead_out(page, f"{source}/blob/main"))
        (place / "docs" / "reference").mkdir()
        for module in MODULES:
            (place / "docs" / "reference" / f"{module}.md").write_text(_reference(module))
        (place / "mkdocs.yml").write_text(f"{(DOCS / 'site.yml').read_text()}nav: {json.dumps(_navigation())}\n")
        subprocess.run([Path(sys.executable).with_name("zensical"), "build", "--strict"], cwd=place, check=True)  # noqa: S603
        for page in (place / "site" / "reference").rglob("index.html"):
            text = page.read_text().replace("<p>::</p>", "").replace("::</p>", ":</p>")  # of reStructuredText
            page.write_text(text)
        for path in pages():
            (place / "site" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(place / "docs" / path, place / "site" / path)
        (place / "site" / "llms.txt").write_text(llms())
        (place / "site" / "llms-full.txt").write_text(llms_full(place / "docs"))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(place / "site", folder)


def llms() -> str:
    """The list of pages, as llmstxt.org describes it: what it is about, then the sections of `index.md`."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    _, *sections = re.split(r"^## ", (DOCS / "index.md").read_text(), flags=re.MULTILINE)
    listed = [re.sub(r"\n  +", " ", section).strip() for section in sections if list(_pages(section))]
    lists = ["\n".join(line for line in each.splitlines() if not line.startswith("[`examples")) for each in listed]
    lists = [re.sub(r"\[([^]]+)\]\((?:\.\./[^)]*|llms\.txt)\)", r"\1", each).strip() for each in lists]
    first = "Read [how to write affinity code](learn/writing-code.md) first. All pages in one file: llms-full.txt."
    return "\n\n".join(["# affinity", f"> {about}", first, *(f"## {each}" for each in lists)]) + "\n"


def llms_full(folder: Path) -> str:
    """All pages in one text, in the order of `index.md`, each behind its path."""
    return "\n".join(f"<!-- {path} -->\n\n{(folder / path).read_text()}" for path in pages())


def pages() -> list[str]:
    """The pages, in the order in which `index.md` first names each."""
    return ["index.md", *dict.fromkeys(_pages((DOCS / "index.md").read_text()))]


def _lead_out(page: Path, repository: str) -> str:
    """The page, with links to the repository for files outside of `docs`."""

    def lead(link: re.Match[str]) -> str:
        target = (page.parent / link[0]).resolve()
        return link[0] if target.is_relative_to(DOCS) else f"{repository}/{target.relative_to(ROOT)}"

    return LINK.sub(lead, page.read_text())


def _reference(module: str) -> str:
    """The page of a module. Of a suite it has no tests: each is named in the suite's own modules."""
    options = "    options:\n      inherited_members: false\n" if module.startswith("affinity_conformance") else ""
    return f"# {module}\n\n{INTRODUCTIONS.get(module, '')}::: {module}\n{options}"


def _navigation() -> list[dict[str, Any] | str]:
    """The sections of `index.md`, each with the pages that it links to; then the pages that its first lines link to."""
    intro, *sections = re.split(r"^## ", (DOCS / "index.md").read_text(), flags=re.MULTILINE)
    nav: list[dict[str, Any] | str] = ["index.md"]
    nav += [{section.partition("\n")[0]: pages} for section in sections if (pages := list(_pages(section)))]
    nav += _pages(intro)
    decisions = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "understand" / "decisions").glob("0*.md"))
    reference = [f"reference/{module}.md" for module in MODULES]
    return [*nav, {"Decisions": ["understand/decisions/README.md", *decisions]}, {"API reference": reference}]


def _pages(text: str) -> Iterator[str]:
    yield from (page for page in re.findall(r"\]\(([\w/-]+\.md)", text) if "decisions" not in page)


if __name__ == "__main__":
    if sys.argv[1] == "--llms":
        (DOCS / "llms.txt").write_text(llms())
    else:
        build(Path(sys.argv[1]))
