"""Attacks on tasks whose reports are written by their own script: each earns nothing, and honest work is paid."""

import asyncio

import pytest
from plain_attacks import PLAIN_ATTACKS, judged_by, write_plain_task

from gagar_mcore.records.types import Verification
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool

pytestmark = pytest.mark.hostile

READS = ("junit", "log", "reward")


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verification]:
    """Every attack, and the honest repair under each way of being read."""
    task = write_plain_task(tmp_path_factory.mktemp("plain") / "task")
    honest = (task.directory / "solution" / "fix.patch").read_text()
    asked = {name: (judged_by(task, attack.reads), attack.patch) for name, attack in PLAIN_ATTACKS.items()}
    asked |= {reads: (judged_by(task, reads), honest) for reads in READS}

    async def verify_all() -> list[Verification]:
        pool = LocalPool(2)
        try:
            verifier = Verifier(pool, Limits(memory_mb=512, processes=64), 120.0)
            return await asyncio.gather(*(verifier.verify(*one) for one in asked.values()))
        finally:
            await pool.close()

    return dict(zip(asked, asyncio.run(verify_all()), strict=True))


@pytest.mark.parametrize("attack", PLAIN_ATTACKS)
def test_an_attack_on_a_plain_runner_earns_nothing_and_is_told(attack: str, verified: dict[str, Verification]) -> None:
    result = verified[attack]
    assert (result.reward, result.infrastructure_error) == (0.0, None), result
    assert PLAIN_ATTACKS[attack].says in result.output, result


@pytest.mark.parametrize("reads", READS)
def test_honest_work_is_paid_however_it_is_read(reads: str, verified: dict[str, Verification]) -> None:
    assert (verified[reads].reward, verified[reads].suspicion) == (1.0, []), verified[reads]
