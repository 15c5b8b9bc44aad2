"""The reports that a run of the tests left in its sandbox, as one."""

from dataclasses import replace

from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.junit import parse_junit
from gagar_mcore.verify.logs import parse_log
from gagar_mcore.verify.report import MAX_REPORT_BYTES, Report, ReportError, joined, parse_ctrf
from gagar_mcore.verify.reward import MAX_REWARD_BYTES, REWARD_JSON, REWARD_TEXT, parse_reward_json, parse_reward_text
from gagar_sandbox.types import Sandbox


async def read_report(sandbox: Sandbox, task: Task, output: str) -> Report:
    """output: what the tests printed. No process may be left in the sandbox. Raises ReportError where a report is missing or
    none, SandboxLost."""
    grading = task.grading
    reward = await _reward(sandbox)
    if grading.format == "reward":
        if reward is None:
            raise ReportError(f"the tests wrote neither {REWARD_JSON} nor {REWARD_TEXT}")
        return Report(reward=reward)
    if grading.format == "log":
        whole = await parse_log(output, grading.parser)
    else:
        parse = parse_ctrf if grading.format == "ctrf" else parse_junit
        whole = joined([parse(await _read(sandbox, path), grading.node_id) for path in grading.reports])
    return replace(whole, reward=reward)


async def _reward(sandbox: Sandbox) -> float | None:
    """Of two files the lesser: a task writes one, and the code under test could write the other."""
    rewards = []
    for path, parse in ((REWARD_JSON, parse_reward_json), (REWARD_TEXT, parse_reward_text)):
        try:
            rewards.append(parse(await sandbox.read(path, MAX_REWARD_BYTES)))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ReportError(f"{path}: {error.strerror}") from error
    return min(rewards, default=None)


async def _read(sandbox: Sandbox, path: str) -> bytes:
    try:
        return await sandbox.read(path, MAX_REPORT_BYTES)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error
