"""`gagar convert`: everything is looked at before a process starts; then the ranks do the work."""

import asyncio
import sys
from pathlib import Path

from gagar_mcore.config.conversion import Conversion
from gagar_mcore.config.load import RecipeError
from gagar_mcore.launcher.local import ManagedProcess, ProcessFailed, log_tail, rank_environment
from gagar_mcore.models.huggingface import read_config
from gagar_mcore.records.store import MANIFEST, read_manifest
from gagar_mcore.trainer.layout import check_layout
from gagar_mcore.weights.published import PublishedCheckpoint
from gagar_mcore.weights.storage import Storage

POLL_SECONDS = 0.1


def convert(job: Conversion) -> str:
    """Do it, and say so in a line or two. Raises RecipeError for what the user can mend, RecordError for a checkpoint that is
    damaged, ProcessFailed for ranks that fail."""
    try:
        notes = _check(job)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    asyncio.run(_run_ranks(job))
    return "\n".join([f"checkpoint in {job.target}", *notes])


def _check(job: Conversion) -> list[str]:
    if job.target.exists():
        raise ValueError(f"{job.target}: exists already; name a directory that does not")
    if job.direction == "hf-to-megatron":
        source = PublishedCheckpoint(job.source)
        others = sorted(source.check())
        check_layout(job.trainer, source.model)
        return [f"left out {len(others)} tensors that are no part of the language model, like {others[0]}"] if others else []
    if not (job.companions / "config.json").is_file():
        raise ValueError(f"{job.companions}: holds no config.json; name a directory that does by --companions")
    model = read_config(job.companions)
    Storage(model, job.format, job.naming)
    check_layout(job.trainer, model)
    read_manifest(job.source, "checkpoint", verify=True)
    return []


async def _run_ranks(job: Conversion) -> None:
    trainer, log = job.trainer, job.target.with_name(f"{job.target.name}.log")
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={trainer.world_size}"),
        *("--max-restarts=0", "-m", "gagar_mcore.trainer.convert_main", job.model_dump_json()),
    ]
    process = await ManagedProcess.start("conversion", command, log, rank_environment(trainer.threads))
    try:
        async with asyncio.timeout(job.timeout_s):
            while process.exit_code is None:
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise ProcessFailed(f"the conversion is not done after {job.timeout_s:.0f} s; {log} ends:\n{log_tail(log)}") from error
    finally:
        await process.stop()
    process.check()
    if not (job.target / MANIFEST).is_file():
        raise ProcessFailed(f"the conversion ended without a checkpoint; see {log}")
    Path(log).unlink()
