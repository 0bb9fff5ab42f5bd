"""The result of each replay: for people, for scripts, and as JUnit's XML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from xml.etree import ElementTree

from affinity.cli.output import counted, printable
from affinity.errors import Nondeterminism
from affinity.limits import truncate
from affinity.testing import ReplayedExecution
from affinity.user_code import describe_error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayProblem:
    """A history that cannot be replayed to its end."""

    subject: ReplayedExecution
    error: Exception

    @property
    def is_known(self) -> bool:
        """Whether its instance is suspended for the same error already: for one of this class, and for the same event
        and the same code. The line in the code may be another one, since only a replay here traces all lines.
        """
        if self.subject.suspended_for != type(self.error).__name__:
            return False
        if not isinstance(self.error, Nondeterminism):
            return True
        found, same = self.subject.suspension_message or "", truncate(self.error.difference)
        return found == same or found.startswith(f"{same} (")

    @property
    def document(self) -> dict[str, Any]:
        """As a JSON value. Fields that an error does not have are None."""
        error, message = describe_error(self.error)
        different = self.error if isinstance(self.error, Nondeterminism) else None
        return {
            "instance_id": self.subject.instance_id,
            "orchestration": self.subject.name,
            "execution_id": self.subject.execution_id,
            "file": self.subject.file,
            "error": error,
            "message": message,
            "event_id": different and different.event_id,
            "history": different and _recorded(different),
            "code": different and different.actual,
            "source": different and different.source,
        }

    @property
    def lines(self) -> list[str]:
        """For people: what it is about, and what was found."""
        of = self.subject
        where = f"{of.instance_id} ({of.name}), execution {of.execution_id}"
        if of.file is not None:
            where = f"{of.file}: {where}"
        if not isinstance(self.error, Nondeterminism):
            return [where, "  {}: {}".format(*describe_error(self.error))]
        return [
            f"{where}, event {self.error.event_id}",
            f"  history  {_recorded(self.error)}",
            f"  code     {self.error.actual}",
            f"  at       {self.error.source or 'not known'}",
        ]


@dataclass(slots=True)
class ReplayReport:
    """The results of all histories."""

    progress: Callable[[int], None]
    """Called with the number of histories so far."""
    matched: list[ReplayedExecution] = field(default_factory=list)
    problems: list[ReplayProblem] = field(default_factory=list)
    events: int = 0
    """Events of the histories that match."""
    seconds: float = 0.0

    def add(self, subject: ReplayedExecution, events: int, error: Exception | None) -> None:
        """Note what became of a history."""
        if error is None:
            self.matched.append(subject)
            self.events += events
        else:
            error.__traceback__ = None  # which keeps the coroutines in memory
            self.problems.append(ReplayProblem(subject=subject, error=error))
        self.progress(self.count)

    @property
    def count(self) -> int:
        """Number of histories."""
        return len(self.matched) + len(self.problems)

    @property
    def findings(self) -> Sequence[ReplayProblem]:
        """The problems that are not known yet."""
        return [problem for problem in self.problems if not problem.is_known]

    @property
    def known(self) -> Sequence[ReplayProblem]:
        """Instances that are suspended for the same error already."""
        return [problem for problem in self.problems if problem.is_known]

    @property
    def document(self) -> dict[str, Any]:
        """As a JSON value."""
        return {
            "histories": self.count,
            "matched": len(self.matched),
            "events": self.events,
            "seconds": round(self.seconds, 3),
            "findings": [problem.document for problem in self.findings],
            "known": [problem.document for problem in self.known],
        }

    @property
    def text(self) -> str:
        """For people."""
        blocks = ["\n".join(problem.lines) for problem in self.findings]
        blocks += ["\n".join([*problem.lines, _KNOWN]) for problem in self.known]
        known = f"; {len(self.known)} suspended for it already" if self.known else ""
        different = f"; {len(self.findings)} not" if self.findings else ""
        of = f"{len(self.matched)} of {counted(self.count, 'history matches', 'histories match')}{different}{known}"
        blocks.append(f"{of} ({counted(self.events, 'event')}, {self.seconds:.1f} s)")
        return printable("\n\n".join(blocks))


_KNOWN: Final = "  known    the instance is suspended for this already"


def junit(report: ReplayReport) -> str:
    """The results as XML, a test case for each history: as CI systems show tests."""
    numbers = {"tests": report.count, "failures": len(report.findings), "skipped": len(report.known)}
    counts = {name: str(number) for name, number in numbers.items()}
    suite = ElementTree.Element("testsuite", {"name": "affinity replay", "time": f"{report.seconds:.3f}", **counts})
    for subject in report.matched:
        _case(suite, subject)
    for problem in report.problems:
        kind = "skipped" if problem.is_known else "failure"
        error, message = describe_error(problem.error)
        attributes = {"message": message} if problem.is_known else {"type": error, "message": message}
        child = ElementTree.SubElement(_case(suite, problem.subject), kind, _printable(attributes))
        child.text = printable("\n".join(problem.lines))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, subject: ReplayedExecution) -> ElementTree.Element:
    name = f"{subject.instance_id} execution {subject.execution_id}"
    return ElementTree.SubElement(suite, "testcase", _printable({"classname": subject.name, "name": name}))


def _printable(attributes: dict[str, str]) -> dict[str, str]:
    return {name: printable(value) for name, value in attributes.items()}


def _recorded(error: Nondeterminism) -> str:
    """The recorded event without its number, which is beside it."""
    return error.expected.removesuffix(f" as event {error.event_id}")
