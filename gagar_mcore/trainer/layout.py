"""Whether a model fits a parallel layout, decided before any process starts."""

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig


def check_layout(trainer: TrainerSection, model: ModelConfig) -> None:
    """Raises ValueError, one line that names the field, for a layout that Megatron cannot cut the model into."""
    tp, ep = trainer.tp, trainer.ep
    for what, size in {
        "attention heads": model.num_heads,
        "key-value heads of global layers": model.kv_heads,
        "key-value heads of sliding layers": model.sliding_kv_heads,
        "dense feed-forward rows": model.ffn_size,
        "vocabulary entries": model.vocab_size,
    }.items():
        if size % tp:
            raise ValueError(f"trainer.tp: {tp} does not divide the {size} {what} of the model; choose a divisor")
    if model.num_experts % ep:
        raise ValueError(f"trainer.ep: {ep} does not divide the {model.num_experts} experts of the model; choose a divisor")
    if trainer.world_size % ep:
        raise ValueError(
            f"trainer.ep: {ep} does not divide the {trainer.world_size} ranks of tp * pp * cp * dp; choose a divisor"
        )
