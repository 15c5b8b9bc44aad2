"""How senders of weights and servers that want some find each other: by records in `transfers/` of the run directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gagar_mcore.records.store import RecordError, publish_json, read_json, write_file
from gagar_mcore.weights.group import Group

ASKED, OFFERED, SENDER = ".asked.json", ".offered.json", "sender"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Published weights by their folder's name, and the group to send them in; asker: the host that asks, see `hosts.host_id`."""

    weights: str
    bucket_bytes: int
    group: Group
    asker: str


@dataclass(frozen=True, slots=True)
class Offer:
    """Where the group's store listens; error: why nothing will be sent."""

    address: str = ""
    port: int = 0
    error: str = ""


class Transfers:
    """The transfers of the run that `weights`, a published directory, belongs to."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / "transfers"

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Let askers know that there is a sender while it lasts."""
        write_file(self.folder / SENDER, b"")
        try:
            yield
        finally:
            (self.folder / SENDER).unlink(missing_ok=True)

    @property
    def is_attended(self) -> bool:
        """Also where the sender was killed; one that is started anew takes up what is asked."""
        return (self.folder / SENDER).is_file()

    def ask(self, transfer: Transfer) -> None:
        publish_json(self._path(transfer, ASKED), asdict(transfer), epoch=0)

    def asked(self) -> Iterator[Transfer]:
        for path in sorted(self.folder.glob(f"[!.]*{ASKED}")):
            try:
                record: dict[str, Any] = read_json(path)
            except RecordError:  # withdrawn meanwhile
                continue
            yield Transfer(**{**record, "group": Group(**record["group"])})

    def offer(self, transfer: Transfer, offer: Offer) -> None:
        publish_json(self._path(transfer, OFFERED), asdict(offer), epoch=0)

    def offered(self, transfer: Transfer) -> Offer | None:
        path = self._path(transfer, OFFERED)
        return Offer(**read_json(path)) if path.is_file() else None

    def withdraw(self, transfer: Transfer) -> None:
        for kind in (ASKED, OFFERED):
            self._path(transfer, kind).unlink(missing_ok=True)

    def _path(self, transfer: Transfer, kind: str) -> Path:
        return self.folder / f"{transfer.group.name}{kind}"
