"""One Megatron rank that runs the models of `model_cases`: `model_rank.py OUT`. Writes outputs and gradients."""

import sys
from typing import Any

import torch
from model_cases import CASES, Case

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.trainer.rank import start_rank


def main() -> None:
    start_rank(TrainerSection(tp=1, ep=1))
    torch.save({name: run(case) for name, case in CASES.items()}, sys.argv[1])


def run(case: Case) -> dict[str, Any]:
    """Packed sequences through the Megatron model: logits `[T, vocab]`, and gradients of their weighted sum."""
    from gagar_mcore.models.packed import packed_sequences
    from gagar_mcore.trainer.setup import build_policy
    from gagar_mcore.trainer.shards import gather_tensors, load_tensors, local_tensors

    policy = build_policy(case.model, TrainerSection(tp=1, ep=1, freeze_router=False, mtp="train", routing=case.routing))
    tensors = case.tensors()
    load_tensors(policy.chunks, case.model, lambda name: tensors[name])
    tokens = torch.cat(case.sequences)
    packed = packed_sequences(torch.tensor([0, *(len(s) for s in case.sequences)]).cumsum(0))
    if (experts := case.experts()) is not None:
        packed.experts = torch.cat(experts)
    (gpt,) = policy.chunks
    hidden = gpt(tokens[None], packed.positions[None], None, packed_seq_params=packed)
    logits = gpt.output_layer(hidden)[0][:, 0]
    outputs = {"logits": logits, **mtp_outputs(case, gpt, hidden.detach(), packed)}
    sum((case.probe(name, output) * output).sum() for name, output in outputs.items()).backward()
    local = {name: grad(tensor) for name, tensor in local_tensors(policy.chunks).items()}
    gradients = {name: tensor.clone() for name, tensor in gather_tensors(local, policy.model)}
    return {"outputs": {name: output.detach() for name, output in outputs.items()}, "gradients": gradients}


def mtp_outputs(case: Case, gpt: Any, hidden: torch.Tensor, packed: Any) -> dict[str, torch.Tensor]:
    from gagar_mcore.models.mtp import embed

    if not case.model.mtp_layers:
        return {}
    weight = gpt.embedding.word_embeddings.weight
    embedded = [embed(weight, case.following(k), False) for k in range(1, case.model.mtp_layers + 1)]
    return {f"mtp {k}": output[:, 0] for k, output in enumerate(gpt.mtp(hidden, embedded, packed))}


def grad(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "main_grad", torch.zeros_like(tensor))


if __name__ == "__main__":
    main()
