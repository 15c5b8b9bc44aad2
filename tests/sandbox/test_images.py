"""Small images made by hand, in both layouts; and archives that lie or attack."""

import asyncio
import gzip
import hashlib
import io
import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gagar_sandbox import ImageRefused, ImageStore, LocalPool, SandboxSpec, owner
from gagar_sandbox.local import LocalSandbox
from gagar_sandbox.unpack import Bounds

Entry = tuple[
    str, bytes | str | None
]  # a path; with content, "-> target" of a link, "= target" of a hard link, None for a folder
SHELL = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
    char text[4096];
    if (count > 2 && !strcmp(words[1], "write")) { FILE *file = fopen(words[2], "w"); return !file || fputs("new", file) < 0; }
    for (int at = 1; at < count; at++) {
        FILE *file = fopen(words[at], "r");
        if (!file) { printf("no %s\n", words[at]); continue; }
        while (fgets(text, sizeof text, file)) fputs(text, stdout);
    }
    return getuid();
}
"""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Static: all that an image of ours needs to run."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "cat.c").write_text(SHELL)
    words = ["cc", "-static", "-o", "cat", "cat.c"]
    if subprocess.run(words, cwd=folder, capture_output=True, check=False).returncode:
        pytest.skip("no C compiler that links statically")
    return (folder / "cat").read_bytes()


def layer(entries: Sequence[Entry | tarfile.TarInfo]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
                continue
            path, content = entry
            member = tarfile.TarInfo(path)
            member.mode = 0o755
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                member.type = tarfile.SYMTYPE if content.startswith("-> ") else tarfile.LNKTYPE
                member.linkname = content.split(" ", 1)[1]
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return file.getvalue()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pack(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def docker(path: Path, *layers: bytes) -> Path:
    settings = {"Env": ["PATH=/bin", "COLOUR=red=blue"], "WorkingDir": "/work"}
    config = json.dumps({"config": settings, "rootfs": {"diff_ids": [f"sha256:{sha(one)}" for one in layers]}}).encode()
    names = [f"{sha(one)}/layer.tar" for one in layers]
    manifest = json.dumps([{"Config": f"{sha(config)}.json", "RepoTags": ["small:1"], "Layers": names}]).encode()
    return pack(path, {"manifest.json": manifest, f"{sha(config)}.json": config, **dict(zip(names, layers, strict=True))})


def oci(path: Path, *layers: bytes, spoil: Callable[[bytes], bytes] = lambda data: data) -> Path:
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, **more: object) -> dict[str, object]:
        blobs[f"blobs/sha256/{sha(data)}"] = data
        return {"digest": f"sha256:{sha(data)}", "size": len(data), **more}

    packed = [blob(gzip.compress(one)) for one in layers]
    config = blob(json.dumps({"rootfs": {"diff_ids": [f"sha256:{sha(one)}" for one in layers]}}).encode())
    manifest = blob(
        json.dumps({"config": config, "layers": packed}).encode(), annotations={"org.opencontainers.image.ref.name": "small:2"}
    )
    blobs = {name: spoil(data) for name, data in blobs.items()}
    return pack(path, {"index.json": json.dumps({"manifests": [manifest]}).encode(), **blobs})


def run(store: Path, spec: SandboxSpec, body: Callable[[LocalSandbox], object]) -> None:
    async def main() -> None:
        pool = LocalPool(1, images=store)
        try:
            await body(await pool.acquire(spec))  # type: ignore[misc]
        finally:
            await pool.close()

    asyncio.run(main())


@pytest.mark.parametrize("form", [docker, oci])
def test_an_image_runs_with_its_own_files_alone(program: bytes, tmp_path: Path, form: Callable[..., Path]):
    archive = form(tmp_path / "image.tar", layer([("bin/", None), ("bin/cat", program), ("work/a", b"a\n"), ("etc/x", b"x\n")]))
    image = ImageStore(tmp_path / "store").add(archive, "mine")

    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["/bin/cat", "a", "/etc/x", "/usr/bin/env", "/etc/shadow", "/run/gagar/base/a"], timeout_s=30)
        assert result.stdout == b"a\nx\nno /usr/bin/env\nno /etc/shadow\nno /run/gagar/base/a\n"
        assert result.exit_code == 0  # its user is root, who may do nothing more than another
        assert (await sandbox.exec(["/bin/cat", "write", "/etc/x"], timeout_s=30)).exit_code == 0
        assert await sandbox.read("/etc/x") == b"new"
        await sandbox.reset()
        assert await sandbox.read("/etc/x") == b"x\n"
        status = (await sandbox.exec(["/bin/cat", "/proc/self/status"], timeout_s=30)).stdout
        assert b"CapEff:\t0000000000000000" in status and b"NoNewPrivs:\t1" in status

    run(tmp_path / "store", SandboxSpec(None, "/work", image=f"mine@{image.digest}"), body)
    assert (image.root / "etc" / "x").read_bytes() == b"x\n"


def test_a_base_and_read_only_folders_above_an_image(program: bytes, tmp_path: Path, base: Path):
    ImageStore(tmp_path / "store").add(docker(tmp_path / "image.tar", layer([("bin/cat", program)])))

    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["cat", "hello.txt", "/usr/tests/hello.txt", "write", "/usr/tests/new"], timeout_s=30)
        assert result.stdout == b"hellohellono write\nno /usr/tests/new\n"
        assert (await sandbox.exec(["cat", "write", "/usr/tests/new"], timeout_s=30)).exit_code == 1
        assert (await sandbox.exec(["cat", "write", "hello.txt"], timeout_s=30)).exit_code == 0

    run(tmp_path / "store", SandboxSpec(base, "/usr/src/app", {"/usr/tests": base}, image="small:1"), body)
    assert (base / "hello.txt").read_text() == "hello"


def test_layers_lie_over_each_other(tmp_path: Path):
    lower = [("d/one", b"1"), ("d/two", b"2"), ("gone/x", b"x"), ("file", b"f"), ("lib", "-> usr/lib"), ("usr/lib/", None)]
    upper = [
        ("d/three", b"3"),
        ("d/.wh..wh..opq", b""),
        (".wh.gone", b""),
        ("file/", None),
        ("lib/so", b"so"),
        ("also", "= usr/lib/so"),
        (".wh..wh.plnk", b""),
    ]
    image = ImageStore(tmp_path / "store").add(docker(tmp_path / "image.tar", layer(lower), layer(upper)))
    found = sorted(str(path.relative_to(image.root)) for path in image.root.rglob("*"))
    assert found == ["also", "d", "d/three", "file", "lib", "usr", "usr/lib", "usr/lib/so"]
    assert (image.root / "also").samefile(image.root / "usr/lib/so")


def device(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo("dev/thing")
    member.type = kind
    return member


def test_devices_are_left_out_and_special_bits_dropped(tmp_path: Path):
    special = tarfile.TarInfo("su")
    special.mode = 0o6755
    entries = [device(tarfile.CHRTYPE), device(tarfile.BLKTYPE), device(tarfile.FIFOTYPE), special]
    image = ImageStore(tmp_path / "store").add(docker(tmp_path / "image.tar", layer(entries)))
    assert image.left_out == 3
    assert stat.S_IMODE((image.root / "su").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "entries",
    [
        [("out", "-> OUTSIDE"), ("out/secret", b"stolen")],
        [("out", "-> ../../../../../../../../OUTSIDE"), ("out/secret", b"stolen")],
        [("a", "-> /"), ("a/b", "-> OUTSIDE"), ("a/b/secret", b"stolen")],
        [("out", "-> OUTSIDE/secret"), ("out", b"stolen")],
        [("out", "-> OUTSIDE"), ("out/.wh.secret", b"")],
        [("out", "-> OUTSIDE"), ("out/.wh..wh..opq", b"")],
        [("OUTSIDE/secret", b"stolen")],
    ],
)
def test_links_do_not_lead_out_of_the_root(tmp_path: Path, entries: list[Entry]):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("mine")
    here = [(path.replace("OUTSIDE", str(outside)), content) for path, content in entries]
    here = [(path, content.replace("OUTSIDE", str(outside)) if isinstance(content, str) else content) for path, content in here]
    ImageStore(tmp_path / "store").add(docker(tmp_path / "image.tar", layer(here)))
    assert (outside / "secret").read_text() == "mine"
    assert list(outside.iterdir()) == [outside / "secret"]


def long_header() -> tarfile.TarInfo:
    return tarfile.TarInfo("x" * (2 << 20))


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([("../../escape", b"x")], "leads out"),
        ([("a/../../escape", b"x")], "leads out"),
        ([("d/" * 200, None)], "deeper"),
        ([(".wh...", b"")], "hides no file"),
        ([(".wh.", b"")], "hides no file"),
        ([("a", "= OUTSIDE")], "hard link"),
        ([("l", "-> l"), ("l/x", b"")], "too many links"),
        ([("big", b"x" * 3000)] * 4, "bytes"),
        ([(f"{number}", b"") for number in range(60)], "entries"),
        ([long_header()], "header of"),
    ],
)
def test_hostile_archives_are_refused_and_leave_nothing(tmp_path: Path, entries: list[Entry], complaint: str):
    (tmp_path / "escape").mkdir()
    archive = docker(tmp_path / "image.tar", layer([("etc/x", b"x"), *entries]))
    bounds = Bounds(bytes=10_000 if complaint == "bytes" else 1 << 30, entries=50)
    with pytest.raises(ImageRefused, match=complaint):
        ImageStore(tmp_path / "store").add(archive, bounds=bounds)
    assert list((tmp_path / "store").iterdir()) == []


def test_a_bomb_is_stopped_at_the_bound(tmp_path: Path):
    bomb = layer([("etc/x", b"\0" * (8 << 20))])
    with pytest.raises(ImageRefused, match="of more than 1048576 bytes"):
        ImageStore(tmp_path / "store").add(oci(tmp_path / "image.tar", bomb), bounds=Bounds(bytes=1 << 20))
    assert list((tmp_path / "store").iterdir()) == []


def test_what_is_not_what_it_says_is_refused(tmp_path: Path):
    content = layer([("etc/x", b"x")])
    store = ImageStore(tmp_path / "store")
    changed = oci(tmp_path / "changed.tar", content, spoil=lambda data: data.replace(b"diff_ids", b"diff_idz"))
    cut = oci(tmp_path / "cut.tar", content, spoil=lambda data: data[:-9] if data[:2] == b"\x1f\x8b" else data)
    other = gzip.compress(layer([("etc/x", b"y")]))
    swapped = oci(tmp_path / "swapped.tar", content, spoil=lambda data: other if data[:2] == b"\x1f\x8b" else data)
    for archive, complaint in [(changed, "digest"), (cut, "broken"), (swapped, "has the digest")]:
        with pytest.raises(ImageRefused, match=complaint):
            store.add(archive)
    for junk, complaint in [
        ({}, "manifest.json is missing"),
        ({"manifest.json": b"[1]"}, "one image"),
        ({"index.json": b"{"}, "JSON"),
    ]:
        with pytest.raises(ImageRefused, match=complaint):
            store.add(pack(tmp_path / "junk.tar", junk))
    (tmp_path / "junk.tar").write_bytes(os.urandom(2000))
    with pytest.raises(ImageRefused, match="no tar archive"):
        store.add(tmp_path / "junk.tar")


def test_layers_packed_with_zstd_are_refused_with_the_mend(tmp_path: Path):
    zstd = b"\x28\xb5\x2f\xfd" + bytes(9)
    archive = oci(tmp_path / "image.tar", layer([("etc/x", b"x")]), spoil=lambda data: zstd if data[:2] == b"\x1f\x8b" else data)
    with pytest.raises(ImageRefused, match="packed with zstd; save the image with gzip or without"):
        ImageStore(tmp_path / "store").add(archive)


def test_what_a_killed_import_left_is_removed_by_the_next(tmp_path: Path):
    store = tmp_path / "store"
    left = store / owner.prefix().replace(f"-{os.getpid()}-", "-99999999-")
    (left / "root").mkdir(parents=True)
    ImageStore(store).add(docker(tmp_path / "image.tar", layer([("etc/x", b"x")])))
    assert not left.exists()


def test_names_and_digests(tmp_path: Path):
    archive = docker(tmp_path / "image.tar", layer([("etc/x", b"x")]))
    store = ImageStore(tmp_path / "store")
    image = store.add(archive)
    assert (image.name, image.workdir, image.environment["COLOUR"]) == ("small:1", "/work", "red=blue")
    assert store.add(archive, "other/name:2").root == image.root
    assert store.find(f"other/name:2@{image.digest}").digest == image.digest
    with pytest.raises(ValueError, match="its digest is"):
        store.find("small:1@sha256:" + "0" * 64)
    with pytest.raises(ValueError, match="gagar sandbox import"):
        store.find("../../etc")
    with pytest.raises(ImageRefused, match="no name"):
        store.add(archive, "../x")
