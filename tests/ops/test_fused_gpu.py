"""What only a GPU can show: no wait for the host, launches, capture into a graph. Skipped, saying so, where there is none."""

import pytest
import torch
from loss_cases import random_case

from gagar_mcore.ops import fused
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.library import library
from gagar_mcore.ops.spec import LOSSES, LossSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]


@pytest.fixture
def arguments():
    if library("cuda") is None:
        pytest.skip("no nvcc is here")
    case = random_case((40000, 7, 9000)).to(torch.float32)
    layout = TokenLayout.build(case.cu_seqlens)
    columns = (case.local(case.logprobs, layout), case.rollout, case.flags, case.advantages, case.weights)
    return *(column.cuda() for column in columns), layout.to("cuda")


@pytest.mark.parametrize("name", LOSSES)
def test_the_host_is_never_waited_for(arguments, name):
    arguments[0].requires_grad_()
    fused.policy_loss(*arguments, LossSpec(name))
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss, _ = fused.policy_loss(*arguments, LossSpec(name))
        loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("name", "kernels"), [("mimo", 2), ("ppo", 2), ("cispo", 2), ("gspo", 4)])
def test_launches(arguments, name, kernels):
    fused.policy_loss(*arguments, LossSpec(name))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        fused.policy_loss(*arguments, LossSpec(name))
        torch.cuda.synchronize()
    launched = [event.name for event in profile.events() if "_kernel" in event.name and "gagar" in event.name]
    assert len(launched) == kernels, launched


@pytest.mark.parametrize("name", LOSSES)
def test_a_captured_graph_replays_on_new_values(arguments, name):
    logprobs, *rest = arguments
    fused.policy_loss(logprobs, *rest, LossSpec(name))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, stats = fused.policy_loss(logprobs, *rest, LossSpec(name))
    logprobs.sub_(0.1)
    graph.replay()
    torch.cuda.synchronize()
    expected, expected_stats = fused.policy_loss(logprobs, *rest, LossSpec(name))

    assert loss == expected and torch.equal(stats.sums, expected_stats.sums)
