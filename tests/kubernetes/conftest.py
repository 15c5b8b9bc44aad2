import asyncio
import functools
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeCluster
from kubernetes_asyncio.client import Configuration
from pooled import PATIENT, PODS, SOURCES, Body

from gagar_sandbox.kubernetes import PodSettings, PoolSettings, open_pool


@pytest.fixture(scope="session")
def image_init(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one program of the pod image, built from its sources."""
    target = tmp_path_factory.mktemp("image") / "gagar-init"
    build = subprocess.run(
        ["make", "-s", "-C", str(SOURCES), "CFLAGS=-O0", f"TARGET={target}"],
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    if build.returncode:
        pytest.skip(f"no compiler, or no static libc, to build gagar-init: {build.stderr[-200:]}")
    return target


@pytest.fixture(autouse=True, scope="package")
def certificates_read_once() -> Iterator[None]:
    """Every client reads the authorities that this machine trusts, which takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "a base"
    (folder / "deep").mkdir(parents=True)
    (folder / "hello.txt").write_text("hello")
    (folder / "deep" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "deep" / "run.sh").chmod(0o555)
    (folder / "link").symlink_to("deep/run.sh")
    return folder


@pytest.fixture
def use(tmp_path: Path, image_init: Path) -> Callable[..., None]:
    """Runs a coroutine function on a pool and a fake cluster, and sees that nothing is left there."""

    def run(body: Body, pods: PodSettings = PODS, settings: PoolSettings = PATIENT, **cluster: Any) -> None:
        async def main() -> None:
            fake = FakeCluster(tmp_path / "pods", image_init, **cluster)
            async with fake.serve() as address:
                pool = await open_pool(pods, settings, Configuration(host=address))
                try:
                    await body(pool, fake)
                finally:
                    fake.faults.clear()
                    await pool.close()
                assert fake.pods() == {}

        asyncio.run(main())

    return run
