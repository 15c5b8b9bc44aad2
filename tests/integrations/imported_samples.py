"""Small files of each format, as the agents write them."""

from typing import Any

ODD = "caf\u00e9 \U0001f600 \u202e\u2028 \x1b[31m \x00 \ud800"
CALL = {
    "id": "c1",
    "type": "function",
    "index": 0,
    "function": {"name": "bash", "arguments": '{"command": "ls"}', "strict": True},
}

SWE_AGENT: dict[str, Any] = {
    "environment": "main",
    "trajectory": [
        {
            "action": "ls",
            "observation": ODD,
            "thought": "look",
            "response": "look\n```\nls\n```",
            "execution_time": 0.25,
            "state": {"open_file": "n/a", "working_dir": "/testbed"},
            "query": [{"role": "system", "content": "setting", "agent": "main"}],
            "extra_info": {},
        },
        {"action": "submit", "observation": "", "thought": "", "response": "", "execution_time": 0, "state": "{}\n"},
    ],
    "history": [
        {"role": "system", "content": "setting", "agent": "main", "message_type": "system_prompt"},
        {"role": "user", "content": [{"type": "text", "text": "issue"}], "agent": "main", "is_demo": True},
        {"role": "assistant", "content": "look", "thought": "look", "action": "ls", "agent": "main", "tool_calls": [CALL]},
        {"role": "tool", "content": ODD, "agent": "main", "tool_call_ids": ["c1"], "cache_control": {"type": "ephemeral"}},
        {"role": "assistant", "content": "", "thought": "", "action": None, "agent": "main", "tool_calls": None},
    ],
    "info": {"exit_status": "submitted", "submission": "diff --git a b\r\n", "model_stats": {"api_calls": 2, "instance_cost": 0}},
    "replay_config": '{"env": {}}',
    "attempts": [{"trajectory": [], "history": []}],
}

MINI_SWE_AGENT: dict[str, Any] = {
    "info": {
        "exit_status": "Submitted",
        "submission": "patch\n",
        "mini_version": "2.2.8",
        "config": {"model": {"model_name": "m"}},
    },
    "instance_id": "django__django-1",
    "messages": [
        {"role": "system", "content": "help"},
        {"role": "user", "content": "issue"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [CALL],
            "extra": {"cost": 1e-05},
        },
        {"role": "tool", "content": ODD, "tool_call_id": "c1", "extra": {"returncode": 0, "raw_output": ODD}},
        {"role": "exit", "content": "patch\n", "extra": {"exit_status": "Submitted", "submission": "patch\n"}},
    ],
    "trajectory_format": "mini-swe-agent-1.1",
}

RESPONSES: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "issue"},
        {
            "object": "response",
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I "}, {"text": "look"}]},
                {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}", "status": "completed"},
            ],
            "usage": {"input_tokens": 3},
        },
        {"type": "function_call_output", "call_id": "c1", "output": "a.py", "extra": {"returncode": 0}},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]},
    ],
    "trajectory_format": "mini-swe-agent-1.1",
}

OPENAI: list[Any] = [
    {
        "messages": [
            {"role": "developer", "content": "help", "name": "d"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]},
            {
                "role": "assistant",
                "refusal": None,
                "tool_calls": [
                    {"id": "c2", "type": "custom", "custom": {"name": "apply", "input": "*** Begin Patch"}},
                    {"type": "function", "function": {"name": "f", "arguments": {"n": 1}}},
                ],
            },
            {"role": "tool", "content": None, "tool_call_id": "c2"},
            {"role": "assistant", "content": "", "tool_calls": []},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "task_id": "t-1",
        "patch": ODD,
        "exit_status": None,
        "reward": 1.0,
    },
    [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{"}}],
]
