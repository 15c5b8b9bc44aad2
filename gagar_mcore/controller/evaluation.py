"""`gagar eval`: a recipe's tasks, by any model with OpenAI's chat API."""

import os
from collections.abc import Sequence
from pathlib import Path

import httpx

from gagar_mcore.agent.bash import BashTools
from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.controller.pools import open_pools
from gagar_mcore.controller.services import sandbox_limits
from gagar_mcore.engine.chat import ChatModel
from gagar_mcore.evals.solve import Solved, Solver, append, summary
from gagar_mcore.tasks.source import every_task
from gagar_mcore.tasks.task import Task
from gagar_mcore.verify.verifier import Verifier

KEY = "OPENAI_API_KEY"


async def evaluate(
    name: str, overrides: Sequence[str], url: str, model: str, samples: int, count: int | None, concurrent: int, out: Path
) -> str:
    """Run `samples` sessions on each of the recipe's loaded tasks (the first `count` by id) and write them to `out` as JSON
    lines; what to say of it. Raises RecipeError, TaskError, EngineError, SandboxUnavailable."""
    recipe = load_recipe(name, overrides)
    images = recipe.sandbox.backend != "local"
    tasks = [task for source in recipe.tasks.sources.values() if source.path for task in every_task(source, images)]
    chosen = [task for task in tasks if isinstance(task, Task)][:count]
    if not chosen:
        raise RecipeError("tasks.path: names no task directories; set tasks.source=harbor and where they are")
    if out.exists():
        raise RecipeError(f"--out: {out} exists; name another file")
    section, rollout = recipe.sandbox, recipe.rollout
    limits = sandbox_limits(recipe)

    def done(solved: Solved) -> None:
        append(out, solved)
        reward = solved.verification.reward if solved.verification else "unknown"
        print(f"{solved.task_id} {solved.member}: {solved.end}, reward {reward}")

    async with httpx.AsyncClient(timeout=None) as http, open_pools(recipe) as pools:
        key, deadline_s = os.environ.get(KEY, ""), recipe.engine.deadline_s
        chat = ChatModel(http, url, model, key, rollout.temperature, rollout.max_new_tokens, deadline_s)
        verifier = Verifier(pools.tests, limits, recipe.verify.timeout_s)
        tools = BashTools(section.command_timeout_s)
        turns, session_s = rollout.max_turns, rollout.session_deadline_s
        solver = Solver(chat, pools.sessions, tools, limits, verifier, turns, rollout.max_context, session_s, concurrent)
        return summary(await solver.solve_all(chosen, samples, done), samples)
