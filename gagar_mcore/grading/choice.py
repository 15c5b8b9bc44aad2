"""The grader that a recipe names."""

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import httpx

from gagar_mcore.config.learning import AgenticSection, GradingSection
from gagar_mcore.credit import CreditParams
from gagar_mcore.engine.attach import read_address
from gagar_mcore.engine.chat import ChatModel
from gagar_mcore.grading.agentic import AgenticGrader
from gagar_mcore.grading.checks import Checks
from gagar_mcore.grading.protocol import Grader
from gagar_mcore.grading.session import Budget
from gagar_mcore.grading.static import StaticGrader
from gagar_mcore.grading.tally import Tally
from gagar_sandbox.types import Limits, SandboxPool

ADDRESS_FILE = ".json"
ATTEMPTS = 3  # of one request; the session's own deadline comes on top


def grader_of(
    section: GradingSection, params: CreditParams, pool: SandboxPool | None, limits: Limits, tally: Tally
) -> Grader | None:
    """None where nothing is to be graded. Without a pool no checks can be run. tally: counts what sessions of a model take."""
    match section.grader:
        case "static":
            return StaticGrader(params)
        case "agentic":
            return replace(agentic_grader(section.agentic, params, pool, limits), tally=tally)
    return None


def agentic_grader(section: AgenticSection, params: CreditParams, pool: SandboxPool | None, limits: Limits) -> AgenticGrader:
    checks = Checks(pool, limits, section.check_s, section.check_s) if pool is not None and section.checks else None
    return AgenticGrader(
        name=section.model or "",
        open_chat=lambda: _open_chat(section),
        budget=Budget(section.max_turns, section.max_tokens, section.max_seconds),
        params=params,
        checks=checks,
        most_checks=section.checks,
        confirm_hacks=section.confirm_hacks,
    )


@asynccontextmanager
async def _open_chat(section: AgenticSection) -> AsyncIterator[ChatModel]:
    url, key = _address(section)
    async with httpx.AsyncClient(timeout=None, verify=_certificates()) as http:
        yield ChatModel(
            http=http,
            url=url,
            name=section.model or "",
            key=key,
            temperature=section.temperature,
            max_tokens=section.answer_tokens,
            deadline_s=section.request_s,
            attempts=ATTEMPTS,
        )


def _address(section: AgenticSection) -> tuple[str, str]:
    """Where the model answers, and its key; looked up for each session, as a server that is started again may lie elsewhere.
    Raises EngineError."""
    endpoint = section.endpoint or ""
    if endpoint.endswith(ADDRESS_FILE):
        served = read_address(Path(endpoint))
        return f"{served.url.rstrip('/')}/v1", served.key
    return endpoint, os.environ.get(section.key_variable, "")


@cache
def _certificates() -> ssl.SSLContext:
    """Read once: it takes a tenth of a second."""
    return httpx.create_ssl_context()
