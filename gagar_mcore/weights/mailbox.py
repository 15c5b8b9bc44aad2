"""Questions and answers between processes that share a folder, each a record of its own."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from gagar_mcore.records.store import RecordError, publish_json, read_json, write_file

ASKED, ANSWERED, ATTENDED = ".asked.json", ".answered.json", "attended"
POLL_S = 0.02
Answerer = Callable[[str, Any], None]


class Unanswered(RuntimeError):
    """Nobody has answered, or nobody is there to."""


class Mailbox:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def ask(self, name: str, question: Any, deadline_s: float) -> Any:
        """The answer. Raises Unanswered at once where nobody attends to the mailbox; after the deadline where they do, or were
        killed: one that comes in their place takes up what is asked."""
        publish_json(self._path(name, ASKED), question, epoch=0)
        try:
            async with asyncio.timeout(deadline_s):
                while not self._path(name, ANSWERED).is_file():
                    if not self._path(ATTENDED).is_file():
                        raise Unanswered(f"{self._folder}: nobody is there to answer")
                    await asyncio.sleep(POLL_S)
            return read_json(self._path(name, ANSWERED))
        except TimeoutError as error:
            raise Unanswered(f"{self._folder}: no answer within {deadline_s:g} s") from error
        finally:
            for kind in (ASKED, ANSWERED):
                self._path(name, kind).unlink(missing_ok=True)

    def answer(self, name: str, record: Any) -> None:
        if self._path(name, ASKED).is_file():
            publish_json(self._path(name, ANSWERED), record, epoch=0)

    @contextmanager
    def attended(self, answerer: Answerer) -> Iterator[None]:
        """Call `answerer(name, question)` for each question while it lasts, each in a thread of its own, and wait for those under
        way."""
        over = Event()
        thread = Thread(target=self._attend, args=(answerer, over), name=f"mailbox {self._folder.name}", daemon=True)
        write_file(self._path(ATTENDED), b"")
        thread.start()
        try:
            yield
        finally:
            over.set()
            self._path(ATTENDED).unlink(missing_ok=True)
            thread.join()

    def _attend(self, answerer: Answerer, over: Event) -> None:
        threads: dict[str, Thread] = {}
        while not over.wait(POLL_S):
            threads = {name: thread for name, thread in threads.items() if thread.is_alive() or self._path(name, ASKED).is_file()}
            for path in self._folder.glob(f"[!.]*{ASKED}"):
                name = path.name.removesuffix(ASKED)
                if name not in threads and (question := _read(path)) is not None:
                    threads[name] = Thread(target=answerer, args=(name, question), name=name, daemon=True)
                    threads[name].start()
        for thread in threads.values():
            thread.join()

    def _path(self, name: str, kind: str = "") -> Path:
        return self._folder / f"{name}{kind}"


def _read(path: Path) -> Any:
    """None where it has been withdrawn meanwhile."""
    try:
        return read_json(path)
    except RecordError:
        return None
