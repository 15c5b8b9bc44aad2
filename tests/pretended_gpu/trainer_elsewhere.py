"""Micro-batch, model, log-probs, loss and backward pass in bf16 on a pretended GPU against the CPU, where the optimizer, which
Megatron keeps in buffers of its own, is left out."""

import os
from typing import Any

import torch
from elsewhere import DEVICE, Elsewhere, PretendedGpu

from gagar_mcore.trainer.machine_checks import MODEL, ONE_RANK, one_rank
from gagar_mcore.trainer.rank import start_rank

TRAINER = one_rank("cpu", "bf16")


def main() -> None:
    os.environ.update(ONE_RANK)
    start_rank(TRAINER)
    expected = compute(torch.device("cpu"))
    torch.cuda.current_device = lambda: DEVICE  # where Megatron allocates
    with PretendedGpu():
        found = compute(DEVICE)
    assert all(isinstance(tensor, Elsewhere) for tensor in found.values())
    for name, tensor in found.items():  # the loss is compiled on the CPU, in plain PyTorch elsewhere
        torch.testing.assert_close(
            tensor.held, expected[name], rtol=2e-2, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


def compute(device: torch.device) -> dict[str, Any]:
    from gagar_mcore.config.learning import LossSection
    from gagar_mcore.trainer import microbatch, parity, parts, policy_loss, policy_part, update

    for module in (microbatch, policy_part, policy_loss):
        module.device = lambda: device
    gpt = model(device)
    batch = parity.parity_batch(MODEL)
    (part,) = policy_part.policy_parts(batch, parts.plan_step(batch.cu_seqlens, TRAINER, MODEL), TRAINER)
    hidden = update.run_model(gpt, part.packed_tokens)
    scored = update.scored_logprobs(gpt, hidden, part.packed_tokens, temperature=1.0, entropies=True)
    scores = update.Scores(*scored, torch.zeros([], device=device))
    loss, stats = policy_loss.part_loss(LossSection(), None, part, scores)
    loss.backward()
    total = policy_loss.PartStats.of_nothing().combine(stats)
    weight = gpt.decoder.layers[1].self_attention.linear_qkv.weight
    return {"logprobs": scored[0].detach(), "loss": loss.detach(), "sums": total.loss.sums, "gradient": weight.grad}


def model(device: torch.device) -> Any:
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    from gagar_mcore.models.backends import local_backend
    from gagar_mcore.models.megatron import Execution, transformer_config
    from gagar_mcore.trainer.parity import parity_tensors
    from gagar_mcore.trainer.setup import build_chunk, parallelism
    from gagar_mcore.trainer.shards import load_tensors

    model_parallel_cuda_manual_seed(0)
    config = transformer_config(MODEL, parallelism(TRAINER, MODEL), Execution("bf16"), local_backend())
    gpt = build_chunk(MODEL, config, local_backend(), 0, TRAINER)
    load_tensors([gpt], MODEL, parity_tensors(MODEL))
    return gpt.to(device)


if __name__ == "__main__":
    main()
