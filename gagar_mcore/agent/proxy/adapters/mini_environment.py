"""An environment of mini-swe-agent whose commands run in the sandbox of the task, while the agent runs in another.

`--environment-class mini_environment.SandboxEnvironment`, with this file's folder on `PYTHONPATH`.
"""

import json
import os
import platform
import shlex
import urllib.request
from typing import Any

from minisweagent.exceptions import Submitted
from pydantic import BaseModel

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
LATER_S = 60.0


class Config(BaseModel):
    """As mini-swe-agent's own environments have it: `env` is set for every command."""

    cwd: str = ""
    env: dict[str, str] = {}
    timeout: int = 30


class SandboxEnvironment:
    def __init__(self, **settings: Any) -> None:
        self.config = Config(**settings)

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """Raises Submitted where the command was the agent's last, as mini-swe-agent's own environments do."""
        exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.config.env.items())
        command = exported + action.get("command", "")
        done = self._post({"command": command, "cwd": cwd or self.config.cwd, "timeout_s": self.config.timeout})
        problem = "" if done["outcome"] == "exited" else f"the command was stopped: {done['outcome']}"
        output = {"output": done["output"], "returncode": -1 if problem else done["exit_code"], "exception_info": problem}
        _check_finished(output)
        return output

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        return {**self.config.model_dump(), **platform.uname()._asdict(), **more}

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}}}

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {os.environ['WORKSPACE_KEY']}"}
        request = urllib.request.Request(os.environ["WORKSPACE_URL"], json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=self.config.timeout + LATER_S) as reply:
            done: dict[str, Any] = json.load(reply)
        return done


def _check_finished(output: dict[str, Any]) -> None:
    first, _, rest = output["output"].lstrip().partition("\n")
    if first.strip() == SUBMIT and output["returncode"] == 0:
        ended = {"role": "exit", "content": rest, "extra": {"exit_status": "Submitted", "submission": rest}}
        raise Submitted(ended)
