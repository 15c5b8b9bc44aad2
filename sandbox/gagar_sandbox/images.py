"""The root file systems of container images, unpacked on this machine."""

import gzip
import json
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gagar_sandbox import owner
from gagar_sandbox.archive import Archive, ImageRefused
from gagar_sandbox.unpack import Bounds, Unpacker

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,200}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Image:
    """`digest` is that of the image's configuration, which names the content of every layer. `left_out` counts devices and the
    like, which nobody but root can make."""

    name: str
    digest: str
    environment: dict[str, str]
    workdir: str
    left_out: int
    root: Path


def default_store() -> Path:
    """Raises RuntimeError where there is no home folder and no XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gagar" / "images"


class ImageStore:
    """`folder` holds one folder for each image, by its digest, and in `names` what each name means."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, archive: Path, name: str | None = None, bounds: Bounds | None = None) -> Image:
        """Unpack what `docker save` or an OCI layout in a tar holds, under the name that it gives itself or `name`.
        Raises ImageRefused where the archive is not what it says, is hostile or passes `bounds`; then nothing is left of it."""
        with Archive(archive) as opened:
            name = name or opened.name
            if name is None or not NAME.fullmatch(name):
                raise ImageRefused(f"{archive}: {name!r} is no name for an image; give one with --name")
            place = self.folder / opened.digest.removeprefix("sha256:")
            if not place.exists():
                self._unpack(opened, place, bounds or Bounds())
        names = self.folder / "names"
        names.mkdir(exist_ok=True)
        _replace(names / quote(name, safe=""), opened.digest)
        return self.find(name)

    def find(self, name: str) -> Image:
        """`name` may end in `@sha256:...`, which is then compared. Raises ValueError where there is no such image."""
        plain, _, digest = name.partition("@")
        pointer = self.folder / "names" / quote(plain, safe="")
        if not pointer.is_file():
            mend = f"gagar sandbox import IMAGE.tar --name {plain}"
            raise ValueError(f"image {plain} is not among those of {self.folder}: `{mend}` unpacks it")
        found = pointer.read_text()
        if not DIGEST.fullmatch(found) or (digest and digest != found):
            raise ValueError(f"image {plain}: its digest is {found}, and not {digest or 'that of an image'}")
        place = self.folder / found.removeprefix("sha256:")
        return Image(name=plain, digest=found, root=place / "root", **json.loads((place / "image.json").read_text()))

    def _unpack(self, archive: Archive, place: Path, bounds: Bounds) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for stale in owner.left_behind(self.folder):
            shutil.rmtree(stale, ignore_errors=True)
        unfinished = Path(tempfile.mkdtemp(prefix=owner.prefix(), dir=self.folder))
        try:
            root = unfinished / "root"
            root.mkdir()
            unpacker = Unpacker(root, bounds)
            try:
                for layer in archive.layers():
                    unpacker.apply(layer)
            except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ImageRefused(f"{archive.path}: a layer is broken: {error}") from error
            facts = {"environment": archive.environment, "workdir": archive.workdir, "left_out": unpacker.left_out}
            (unfinished / "image.json").write_text(json.dumps(facts))
            unfinished.rename(place)
        except BaseException:
            shutil.rmtree(unfinished)
            raise


def _replace(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)
