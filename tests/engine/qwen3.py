"""A tiny Qwen3-MoE with tokenizer and chat template: with random weights, and after it has learned a conversation by heart."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from chat_models import chat_tokenizer
from proxied import BASH, BOTH, bash
from stored import read_stored
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from gagar_mcore.agent.calls import Answer, Tool
from gagar_mcore.agent.context import Context
from gagar_mcore.agent.template_qwen3 import Qwen3Renderer
from gagar_mcore.agent.vocabulary import Vocabulary
from gagar_mcore.models.presets import preset

TOKENIZER = chat_tokenizer()
RENDERER = Qwen3Renderer(Vocabulary(TOKENIZER))
MODEL = replace(
    preset("qwen3-30b-a3b"),
    vocab_size=RENDERER.vocab_size,
    hidden_size=64,
    num_heads=4,
    kv_heads=2,
    sliding_kv_heads=2,
    head_dim=16,
    v_head_dim=16,
    layer_types=("full_attention",) * 3,
    moe_layers=(True,) * 3,
    ffn_size=128,
    moe_ffn_size=32,
    num_experts=8,
    top_k=2,
    max_positions=1024,
)
# As Qwen3's published template writes a conversation, but for the words about tools, which are those of our renderer.
WRITTEN = r"""
{%- set opened = messages[0].content if messages[0].role == 'system' else '' %}
{% if tools %}
    <|im_start|>system{{ '\n' + (opened + '\n\n' if opened else '') }}
    # Tools{{ '\n\n' }}These functions can be called:{{ '\n<tools>\n' }}
    {% for tool in tools %}
        {% set told = {'name': tool.function.name, 'description': tool.function.description} %}
        {{ {'type': 'function', 'function': dict(told, parameters=tool.function.parameters)} | tojson + '\n' }}
    {% endfor %}
    </tools>{{ '\n\n' }}Write a call in this form:
    {{ '\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{% elif opened %}
    <|im_start|>system{{ '\n' + opened }}<|im_end|>{{ '\n' }}
{% endif %}
{% for message in messages %}
    {% if message.role == 'tool' %}
        {% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}
        {{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>{{ '\n' }}{% endif %}
    {% elif message.role == 'assistant' %}
        <|im_start|>assistant{{ '\n' }}
        {% if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}
        {{ message.content }}
        {% for call in message.tool_calls or [] %}
            {% if message.content or not loop.first %}{{ '\n' }}{% endif %}
            {{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{ call.function.arguments | tojson + '}\n</tool_call>' }}
        {% endfor %}
        <|im_end|>{{ '\n' }}
    {% elif message.role == 'user' %}
        <|im_start|>user{{ '\n' + message.content }}<|im_end|>{{ '\n' }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}
"""
TEMPLATE = "".join(line.strip() for line in WRITTEN.splitlines())
COMPANIONS: Mapping[str, bytes] = {
    "tokenizer.json": TOKENIZER.to_str().encode(),
    "tokenizer_config.json": json.dumps(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": TEMPLATE,
        }
    ).encode(),
}
TOOLS = (Tool("bash", "Runs it.", declared=BASH),)
OPENING = (Context("system", "be brief"), Context("user", "fix it"))
RAN = Context("tool", "ran")
COMMANDS = ("ls", "cat a.py", "git diff", "pwd")  # the policy begins with each of them as often
AFTERWARDS = (Answer("", "", BOTH), Answer("done"))
CONTEXTS = (RENDERER.opening(OPENING, TOOLS), RENDERER.following([RAN]), RENDERER.following([RAN, RAN]))


def learn(directory: Path, scratch: Path, steps: int = 250) -> dict[str, Tensor]:
    """The tensors of the model in `directory` once it has learned what to say to `CONTEXTS`."""
    told = [_conversation(command) for command in COMMANDS]
    ids, mask = (torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), True) for rows in zip(*told, strict=True))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        logits = model(ids[:, :-1]).logits
        losses = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (losses * mask[:, 1:]).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(scratch)
    return read_stored(scratch)


def _conversation(command: str) -> tuple[list[int], list[int]]:
    """Ids and loss mask."""
    ids: list[int] = []
    mask: list[int] = []
    for context, answer in zip(CONTEXTS, (bash(command, "look", "hm"), *AFTERWARDS), strict=True):
        said = RENDERER.answer(answer)
        ids += context + said
        mask += [0] * len(context) + [1] * len(said)
    return ids, mask
