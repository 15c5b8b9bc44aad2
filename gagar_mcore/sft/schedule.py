"""Learning rate of supervised fine-tuning."""

import math

from gagar_mcore.config.sft import SftSection

FINAL_SHARE = 0.02


def learning_rate(section: SftSection, step: int, steps: int) -> float:
    """Rate of optimizer step `step` (from 1) of `steps`: linear warm-up, flat up to `flat_share`, then cosine to 2 %."""
    warm_up = min(1.0, step / max(section.warmup_steps, 1))
    flat = section.flat_share * steps
    if step <= flat:
        return section.lr * warm_up
    cosine = (1 + math.cos(math.pi * (step - flat) / (steps - flat))) / 2
    return section.lr * warm_up * (FINAL_SHARE + (1 - FINAL_SHARE) * cosine)
