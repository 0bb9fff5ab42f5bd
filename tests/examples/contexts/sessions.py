"""What the page takes for granted: the models of an application, and what reads and starts a kernel."""

from dataclasses import dataclass, field

from pydantic import BaseModel

import affinity


class Chat(BaseModel):
    """What was said."""

    title: str = ""
    messages: list[str] = []


@dataclass
class Game:
    """What is in memory."""

    score: int = 0
    moves: list[str] = field(default_factory=list)


@dataclass
class SavedGame:
    """What is kept of it."""

    score: int = 0


@dataclass
class SavedBoard:
    """What is kept of a board."""

    squares: str = ""


@dataclass
class Board:
    """What is in memory, in another form."""

    squares: list[str] = field(default_factory=list)

    def saved(self) -> SavedBoard:
        """Its record."""
        return SavedBoard("".join(self.squares))

    @staticmethod
    def restored(record: SavedBoard) -> "Board":
        """From its record."""
        return Board(list(record.squares))


@dataclass
class Ticket:
    """In its third version."""

    title: str = ""
    messages: list[str] = field(default_factory=list)


@dataclass
class Book:
    """How far it has been read."""

    pages_read: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass
class Kernel:
    """A child process."""


async def read_page(number: int) -> str:
    """Of a book."""
    return f"page {number}"


async def start_sandbox(resource_id: str, session_id: str) -> str:
    """Start a container."""
    return f"{resource_id} of {session_id}"


async def connect(handle: str) -> str:
    """Connect to it."""
    return handle


async def disconnect(resource_id: str, connection: str) -> None:
    """End the connection."""


async def remove_sandbox(resource_id: str, handle: str | None) -> None:
    """Remove it."""


async def start_kernel(session_id: str) -> Kernel:
    """Start a child process."""
    return Kernel()


async def stop_kernel(session_id: str, kernel: Kernel) -> None:
    """End it."""


app = affinity.App("support")
chats, books = affinity.Sessions(Chat), affinity.Sessions(Book)
app.include(chats)
