"""What can be refused before anything starts: one line for each mistake."""

import json

from gagar_mcore.agent.renderer import TOKENIZER_FILE, load_renderer
from gagar_mcore.config.load import RecipeError
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.controller.agents import check_agent
from gagar_mcore.controller.run import initial_checkpoint
from gagar_mcore.controller.serving import policy_serving
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.engine.sglang_flags import check_serving
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.plan.fit import check_fit
from gagar_mcore.tasks.source import check_sources
from gagar_mcore.trainer.layout import check_layout
from gagar_mcore.weights.published import PublishedCheckpoint
from gagar_mcore.weights.storage import CONFIG, QUANTIZED, Storage, quantised_format


def preflight(recipe: Recipe) -> ModelConfig:
    """The model's configuration, once recipe, checkpoint, layout, machine and tasks agree. Raises RecipeError, TaskError."""
    model = initial_model(recipe)
    _check_publishing(recipe, model)
    _check_rollout(recipe, model)
    check_agent(recipe.agent)
    check_sources(recipe.tasks, images=recipe.sandbox.backend != "local")
    return model


def initial_model(recipe: Recipe) -> ModelConfig:
    """That of the checkpoint that `model.init` names, once tokenizer, layout, machine, and name, shape and type of every tensor
    fit it; no weights are read. Raises RecipeError."""
    directory = initial_checkpoint(recipe)
    try:
        checkpoint = PublishedCheckpoint(directory)
        tokens = load_renderer(directory).vocab_size
    except ValueError as error:
        raise RecipeError(f"model.init: {error}") from error
    if tokens > checkpoint.model.vocab_size:
        raise RecipeError(
            f"model.init: {directory / TOKENIZER_FILE} holds {tokens} tokens, but the model has {checkpoint.model.vocab_size}; "
            "put the tokenizer there that the model was trained with"
        )
    model = fitting(recipe, checkpoint.model)
    try:
        checkpoint.check()
    except ValueError as error:
        raise RecipeError(f"model.init: {error}") from error
    return model


def fitting(recipe: Recipe, model: ModelConfig) -> ModelConfig:
    """`model` as the recipe reads it, where layout and machine fit it. Raises RecipeError."""
    try:
        model = recipe.model.of(model)
        check_layout(recipe.trainer, model)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    check_fit(recipe, model)
    return model


def _check_publishing(recipe: Recipe, model: ModelConfig) -> None:
    try:
        Storage(model, recipe.publish.format or recipe.trainer.precision)
    except ValueError as error:
        raise RecipeError(f"publish.{error}") from error
    if recipe.engine.kind != "sglang":
        return
    held = quantised_format(json.loads((initial_checkpoint(recipe) / CONFIG).read_text()))
    published = recipe.publish.format if recipe.publish.format in QUANTIZED else None
    if held != published:
        raise RecipeError(
            f"publish.format: {recipe.publish.format}, but model.init is stored in {held or 'plain weights'}, and SGLang "
            f"keeps the format that it starts with; set publish.format={held or 'bf16'}, or use gagar convert"
        )


def _check_rollout(recipe: Recipe, model: ModelConfig) -> None:
    rollout = recipe.rollout
    if recipe.engine.kind == "embedded" and not model.window_includes_self:
        raise RecipeError("model.window: before_self, but the embedded engine counts the query's own key; set including_self")
    if recipe.engine.kind == "sglang":
        _check_server(recipe)
    if rollout.max_context > model.max_positions:
        raise RecipeError(f"rollout.max_context: {rollout.max_context} exceeds the model's {model.max_positions} positions")
    if rollout.max_new_tokens >= rollout.max_context:
        raise RecipeError(f"rollout.max_new_tokens: {rollout.max_new_tokens} leaves no room in max_context {rollout.max_context}")
    if recipe.method.min_valid > rollout.group_size:
        raise RecipeError(f"method.min_valid: {recipe.method.min_valid} exceeds rollout.group_size {rollout.group_size}")
    if recipe.engine.deadline_s >= rollout.session_deadline_s:
        raise RecipeError(
            f"engine.deadline_s: {recipe.engine.deadline_s:g} must be below rollout.session_deadline_s "
            f"{rollout.session_deadline_s:g}, or a hung engine counts as the policy's failure"
        )
    for name in ("engine", "trainer"):
        if recipe.deterministic and getattr(recipe, name).device == "cuda":
            raise RecipeError(f"{name}.device: cuda does not give equal bits; set it to cpu, or deterministic to false")
    members = max(rollout.group_size, recipe.train.eval_samples)
    if recipe.deterministic and recipe.sandbox.concurrency is not None and recipe.sandbox.concurrency < members:
        raise RecipeError(
            f"sandbox.concurrency: {recipe.sandbox.concurrency} leaves no room for the {members} sessions of one group at once"
        )


def _check_server(recipe: Recipe) -> None:
    try:
        check_serving(policy_serving(recipe, initial_checkpoint(recipe), 0), recipe.engine)
    except EngineError as error:
        raise RecipeError(str(error)) from error
