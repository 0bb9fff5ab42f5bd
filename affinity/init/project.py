"""The files of a new project, and the commands that come next."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, TypeAlias

from affinity.errors import InvalidInput
from affinity.limits import MAX_PROJECT_NAME
from affinity_workflows import VERSION

Template: TypeAlias = Literal["chat", "workflow", "agent"]

COMMON: Final = ("requirements.txt", "Dockerfile", "compose.yaml")
"""Files that all projects have."""

TRY: Final[Mapping[Template, str]] = {
    "chat": "affinity conversation ask ann 'hello' --kind {{name}}",
    "workflow": """affinity start refund --input '{"order": "7", "cents": 500}' --wait""",
    "agent": "affinity conversation ask ann 'Please pay 500 back' --kind {{name}}",
}
"""What a user does first with the running project."""


@dataclass(frozen=True, slots=True)
class Project:
    """A project that is not written yet.

    Raises:
        InvalidInput: the name cannot be the name of a module, or would hide another one.
    """

    name: str  # of the folder, of the module, and of the app in it
    template: Template

    def __post_init__(self) -> None:
        check_name(self.name)

    @property
    def commands(self) -> Sequence[str]:
        """What comes next: three commands, the last one in a second terminal."""
        return f"cd {self.name}", f"affinity dev {self.name}:app", self._fill(TRY[self.template])

    def texts(self) -> Mapping[str, str]:
        """The files by their names."""
        own = files(__package__) / "templates" / self.template
        found = {
            f"{self.name}.py": own / "project.py.txt",
            f"test_{self.name}.py": own / "test_project.py.txt",
            **{name: files(__package__) / "templates" / f"{name}.txt" for name in COMMON},
        }
        return {name: self._fill(source.read_text(encoding="utf-8")) for name, source in found.items()}

    def _fill(self, text: str) -> str:
        text = text.replace("{{try}}", TRY[self.template]).replace("{{version}}", VERSION)
        # Names of Compose's projects begin with a letter or a digit, and have no capitals.
        return text.replace("{{name}}", self.name).replace("{{project}}", self.name.lower().strip("_"))

    def write(self, parent: Path) -> Path:
        """Write the files into a new folder, and return it.

        Raises:
            InvalidInput: there is something of this name, or the folder cannot be made.
        """
        folder, texts = parent / self.name, self.texts()
        try:
            folder.mkdir()
        except FileExistsError:
            raise InvalidInput(f"{folder} is there already: give another NAME, or move it away") from None
        except OSError as error:
            raise InvalidInput(f"{folder} cannot be made: {error.strerror}") from error
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        return folder


def check_name(name: str) -> None:
    """Raise unless a module may have this name.

    Raises:
        InvalidInput: it may not; the message says why.
    """
    if not (name.isascii() and name.isidentifier() and name.strip("_")) or keyword.iskeyword(name):
        raise InvalidInput(f"NAME {name!r:.80}: a module cannot have it: use letters, digits and _, as in my_chat")
    if len(name) > MAX_PROJECT_NAME:
        raise InvalidInput(f"NAME has {len(name)} characters: give {MAX_PROJECT_NAME} at most")
    if name in sys.stdlib_module_names or name in _installed():
        raise InvalidInput(f"NAME {name!r} would hide the module {name!r} that is installed: give another one")


def _installed() -> frozenset[str]:
    """The names of modules and packages that distributions have installed."""
    from importlib.metadata import packages_distributions  # takes longer than the rest of an import

    return frozenset(packages_distributions()) | {"affinity"}
