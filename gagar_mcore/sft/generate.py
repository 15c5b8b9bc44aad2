"""Greedy answers of a checkpoint, by transformers: `python -m gagar_mcore.sft.generate JOB.json OUT.json`."""

import json
import sys
from pathlib import Path

from pydantic import BaseModel

from gagar_mcore.devices import Device
from gagar_mcore.lifetime import die_with_parent
from gagar_mcore.records.store import write_file


class Job(BaseModel):
    """prompts: token ids. Each answer ends with one of `stop`, or after `max_new_tokens`."""

    checkpoint: Path
    prompts: list[list[int]]
    stop: list[int]
    max_new_tokens: int
    device: Device
    threads: int


def main() -> None:
    die_with_parent()
    job, out = Job.model_validate_json(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2])
    write_file(out, json.dumps(generate(job)).encode())


def generate(job: Job) -> list[list[int]]:
    """The ids generated for each prompt, the stop token included."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job.threads)
    model = AutoModelForCausalLM.from_pretrained(job.checkpoint, dtype="auto", local_files_only=True).to(job.device).eval()
    answers = []
    for ids in job.prompts:
        given = torch.tensor([ids], device=job.device)
        told = {"max_new_tokens": job.max_new_tokens, "eos_token_id": job.stop, "pad_token_id": job.stop[0]}
        said = model.generate(given, attention_mask=torch.ones_like(given), do_sample=False, **told)
        answers.append(said[0, len(ids) :].tolist())
    return answers


if __name__ == "__main__":
    main()
