"""A tiny random checkpoint, loud enough that a wrong window, sink or router shows in the log-probs."""

from pathlib import Path

import pytest
import torch
from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM

WINDOW = 32


@pytest.fixture(autouse=True)
def single_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def make_checkpoint():
    def make(directory: Path, seed: int = 0) -> Path:
        torch.manual_seed(seed)
        layers = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
        config = MiMoV2FlashConfig(
            vocab_size=512,
            hidden_size=128,
            intermediate_size=256,
            moe_intermediate_size=64,
            num_hidden_layers=len(layers),
            layer_types=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            v_head_dim=24,
            n_routed_experts=8,
            num_experts_per_tok=2,
            sliding_window=WINDOW,
            max_position_embeddings=1024,
            initializer_range=0.1,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=3,
        )
        model = MiMoV2FlashForCausalLM(config)
        for name, tensor in model.state_dict().items():
            if "sinks" in name or "e_score_correction_bias" in name:
                torch.nn.init.normal_(tensor, std=0.5)
        model.save_pretrained(directory)
        return directory

    return make


@pytest.fixture(scope="session")
def checkpoint(make_checkpoint, tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))
