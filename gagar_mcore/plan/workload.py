"""The tokens that a step brings to each rank."""

from dataclasses import dataclass
from math import ceil

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Workload:
    """One step: `sequences` of `context` tokens each, the most that a recipe can collect."""

    sequences: int
    context: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.context

    def tokens_at_once(self, layout: TrainerSection) -> int:
        """Tokens of a micro-batch on one rank: its budget, as far as the step has so many, or a whole sequence's part where that
        is longer."""
        a_sequence = ceil(self.context / layout.cp)
        return max(min(layout.tokens_per_microbatch, a_sequence * ceil(self.sequences / layout.dp)), a_sequence)

    def microbatches(self, layout: TrainerSection) -> int:
        """Of one data-parallel rank in a step."""
        sequences_at_once = max(1, layout.tokens_per_microbatch * layout.cp // self.context)
        return ceil(ceil(self.sequences / layout.dp) / sequences_at_once)


def recipe_workload(recipe: Recipe, context: int | None = None) -> Workload:
    """Every sequence as long as the recipe lets it be, or `context` tokens."""
    longest = min(recipe.rollout.max_context, recipe.trainer.max_tokens_per_sequence or recipe.rollout.max_context)
    return Workload(recipe.rollout.groups_per_step * recipe.rollout.group_size, context or longest)
