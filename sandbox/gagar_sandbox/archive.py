"""What an image's archive says it holds: docker-save and OCI layouts. Nothing in it is trusted."""

import gzip
import hashlib
import json
import platform
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

DOCUMENT_BYTES = 4 << 20
LAYERS = 256
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
NESTING = 4
CHUNK = 1 << 20
HEADER_BYTES = 1 << 20
LONG = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


class ImageRefused(ValueError):
    """The archive is no image that can be unpacked; the message says why."""


class Archive:
    """`digest` is that of the configuration. `layers` yields the tar of each layer and checks its digest once it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tar = tarfile.open(path, "r:", tarinfo=Member)  # noqa: SIM115
            self._members = {_plain(member.name): member for member in self._tar if member.isfile()}
        except tarfile.TarError as error:
            raise ImageRefused(f"{path}: no tar archive, or a packed one, which `gunzip` unpacks: {error}") from error
        config, self._blobs, self.name = self._oci() if "index.json" in self._members else self._docker()
        document = self._bytes(config)
        self.digest = f"sha256:{hashlib.sha256(document).hexdigest()}"
        if self.digest.removeprefix("sha256:") not in config:
            raise self._refused(f"the configuration {config} has the digest {self.digest}")
        self._read_config(self._parse(document, config))

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def layers(self) -> Iterator["Hashed"]:
        for blob, expected in zip(self._blobs, self._layer_digests, strict=True):
            layer = self._layer(blob)
            yield layer
            while layer.read(CHUNK):
                pass
            if layer.digest != expected:
                raise self._refused(f"layer {blob} has the digest {layer.digest}, and not {expected}")

    def _layer(self, name: str) -> "Hashed":
        raw = self._open(name)
        start = raw.read(4)
        raw.seek(0)
        if start == b"\x28\xb5\x2f\xfd":
            raise self._refused(f"layer {name} is packed with zstd; save the image with gzip or without")
        return Hashed(cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if start[:2] == b"\x1f\x8b" else raw)

    def _oci(self) -> tuple[str, list[str], str | None]:
        """The names of the configuration and of the layers, and the image's own name."""
        descriptor: Any = {"digest": None}
        document, name = self._document("index.json"), None
        for _ in range(NESTING):
            if "manifests" not in document:
                break
            descriptor = self._of_this_machine(document["manifests"])
            name = name or (descriptor.get("annotations") or {}).get("org.opencontainers.image.ref.name")
            blob = _blob(descriptor)
            content = self._bytes(blob)
            if hashlib.sha256(content).hexdigest() not in blob:
                raise self._refused(f"manifest {blob} has another digest than its name")
            document = self._parse(content, blob)
        try:
            return _blob(document["config"]), [_blob(layer) for layer in document["layers"]], name
        except (KeyError, TypeError, AttributeError) as error:
            raise self._refused(f"the manifest has no {error}") from error

    def _docker(self) -> tuple[str, list[str], str | None]:
        match self._document("manifest.json"):
            case [{"Config": str(config), "Layers": list(layers)} as image]:
                tags = image.get("RepoTags") or [None]
                return _plain(config), [_plain(str(layer)) for layer in layers], tags[0]
        raise self._refused("manifest.json does not name exactly one image; save one by one")

    def _of_this_machine(self, descriptors: Any) -> dict[str, Any]:
        wanted = MACHINES.get(platform.machine(), platform.machine())
        try:
            usable = [one for one in descriptors if (one.get("platform") or {}).get("architecture", wanted) == wanted]
        except (TypeError, AttributeError) as error:
            raise self._refused(f"an index is none: {error}") from error
        if len(usable) != 1:
            raise self._refused(f"{len(usable)} images for {wanted}; one is needed")
        return dict(usable[0])

    def _read_config(self, config: Any) -> None:
        try:
            self._layer_digests = [str(digest) for digest in config["rootfs"]["diff_ids"]]
            settings = config.get("config") or {}
            self.environment = dict(str(item).split("=", 1) for item in settings.get("Env") or [])
            self.workdir = str(settings.get("WorkingDir") or "/")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._refused(f"the configuration lacks or garbles {error}") from error
        if not 0 < len(self._layer_digests) == len(self._blobs) <= LAYERS:
            raise self._refused(f"{len(self._blobs)} layers where 1 to {LAYERS} can be, and {len(self._layer_digests)} are named")

    def _document(self, name: str) -> Any:
        return self._parse(self._bytes(name), name)

    def _parse(self, content: bytes, name: str) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self._refused(f"{name} is no JSON: {error}") from error

    def _bytes(self, name: str) -> bytes:
        with self._open(name) as file:
            content = file.read(DOCUMENT_BYTES + 1)
        if len(content) > DOCUMENT_BYTES:
            raise self._refused(f"{name} is longer than {DOCUMENT_BYTES} bytes")
        return content

    def _open(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        file = self._tar.extractfile(member) if member else None
        if file is None:
            raise self._refused(f"{name} is missing")
        return file

    def _refused(self, reason: str) -> ImageRefused:
        return ImageRefused(f"{self.path}: {reason}")


class Hashed:
    """Reads on, and knows the digest of all that was read."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        return data


def _plain(name: str) -> str:
    return name.removeprefix("./")


def _blob(descriptor: Any) -> str:
    digest = str(descriptor["digest"])
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise KeyError("digest of kind sha256")
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


class Member(tarfile.TarInfo):
    """Refuses headers that would be read into memory whole, however long they are."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in LONG and self.size > HEADER_BYTES:
            raise ImageRefused(f"a header of {self.size} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]
