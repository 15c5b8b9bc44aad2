"""Attacks on verification: each earns nothing, is no infrastructure error, and leaves the pool as it was."""

import asyncio
import ctypes
from pathlib import Path

import pytest
from attacks import ATTACKS, NEED_LANDLOCK
from small_task import write_small_task

from gagar_mcore.records.types import Verification
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool, SandboxSpec

pytestmark = pytest.mark.hostile

LIMITS = Limits(memory_mb=512, processes=64)


def has_landlock() -> bool:
    return bool(ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1)


async def verify_all(task: Task) -> dict[str, Verification]:
    """Every attack and then the honest repair, on one pool; whether it still works is the last entry."""
    pool = LocalPool(4)
    try:
        verifier = Verifier(pool, LIMITS, 120.0)
        planted = "".join(attack.patch for attack in ATTACKS.values() if attack.planted)
        patches = dict.fromkeys(planted if attack.planted else attack.patch for attack in ATTACKS.values())
        verified = await asyncio.gather(*(verifier.verify(task, patch) for patch in patches))
        by_patch = dict(zip(patches, verified, strict=True))
        verified = [by_patch[planted if attack.planted else attack.patch] for attack in ATTACKS.values()]
        honest = await verifier.verify(task, (task.directory / "solution" / "fix.patch").read_text())
        sandbox = await pool.acquire(SandboxSpec(task.repository, limits=LIMITS))
        processes = await sandbox.exec(["sh", "-c", "ls -d /proc/[0-9]* | wc -l"], timeout_s=60)
        healthy = Verification(float(int(processes.stdout) <= 5), {}, processes.stdout.decode(), 0.0)
        return dict(zip([*ATTACKS, "honest", "healthy"], [*verified, honest, healthy], strict=True))
    finally:
        await pool.close()


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return write_small_task(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def verified(task: Task) -> dict[str, Verification]:
    return asyncio.run(verify_all(task))


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_earns_nothing_and_is_told(attack: str, verified: dict[str, Verification]) -> None:
    if attack in NEED_LANDLOCK and not has_landlock():
        pytest.skip("this kernel has no Landlock, without which the runner does not defend against this")
    result = verified[attack]
    assert (result.reward, result.infrastructure_error) == (0.0, None), result
    assert ATTACKS[attack].says in result.output + "\n".join(result.suspicion), result


def test_the_pool_is_healthy_and_honest_work_is_paid_afterwards(verified: dict[str, Verification]) -> None:
    honest = verified["honest"]
    assert (honest.reward, honest.suspicion) == (1.0, []), honest
    assert verified["healthy"].reward == 1.0, verified["healthy"]


def test_the_repository_and_the_tests_of_the_task_are_untouched(task: Task, verified: dict[str, Verification]) -> None:
    from small_task import FILES

    for name, text in FILES.items():
        assert (task.repository / name).read_text() == text
    assert sorted(path.name for path in Path(task.tests).iterdir()) == [
        *("child", "config.json", "confine.py", "run_pytest.py", "suite", "test.sh")
    ]
