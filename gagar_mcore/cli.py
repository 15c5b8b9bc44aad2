"""The command line: each command calls one function."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from gagar_mcore.choices import (
    GpuKind,
    ImportForm,
    ImportFormat,
    Method,
    Precision,
    ServerRole,
    WeightFormat,
    WeightNaming,
)

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Teach code agents to write cleaner patches."
)
tasks_app = typer.Typer(no_args_is_help=True, help="Make and check tasks.")
config_app = typer.Typer(no_args_is_help=True, help="Look at recipes.")
bench_app = typer.Typer(no_args_is_help=True, help="Measure the product beside named peers; --json gives one JSON object.")
sandbox_app = typer.Typer(no_args_is_help=True, help="Images that sandboxes of this machine run on.")
convert_app = typer.Typer(no_args_is_help=True, help="Convert checkpoints between Hugging Face format and Megatron's.")
app.add_typer(tasks_app, name="tasks")
app.add_typer(sandbox_app, name="sandbox")
app.add_typer(convert_app, name="convert")
app.add_typer(config_app, name="config")
app.add_typer(bench_app, name="bench")


Source = Annotated[Path, typer.Argument(metavar="SRC", help="A checkpoint directory.")]
Target = Annotated[Path, typer.Argument(metavar="DST", help="A directory that does not exist yet.")]
Size = Annotated[int, typer.Option(min=1, help="Of the layout that the ranks hold the model in.")]
Ranks = Annotated[int | None, typer.Option(min=1, help="Processes; else as many as the other sizes need.")]
WeightPrecision = Annotated[Precision, typer.Option(help="Of the weights in Megatron.")]
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's path, or the name of a shipped one.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Fields that differ from the recipe.")]
BenchOptions = Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS]")]
PASSED_ON = {"ignore_unknown_options": True}
NewLines = Annotated[Path, typer.Option(help="A file of JSON lines that does not exist yet.")]
Count = Annotated[int | None, typer.Option(min=1, help="How many groups or tasks, the first; else all.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run that an earlier process left.")]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What the user can mend is said on standard error, without a traceback; exit code 1."""
    from gagar_mcore.controller.errors import EXPECTED

    try:
        yield
    except EXPECTED as error:
        print(f"gagar: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        print("gagar: interrupted; continue with --resume", file=sys.stderr)
        raise typer.Exit(130) from error


@app.command()
def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    resume: Resume = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, start nothing.")] = False,
) -> None:
    """Run a recipe to its last step: roll out, grade, credit, train, repeat."""
    from gagar_mcore.controller.commands import plan, run_training

    with one_line_errors():
        if dry_run:
            print(plan(recipe, overrides or [], resume))
        else:
            run_training(recipe, overrides or [], resume)


@app.command()
def rollout(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Stage a alone: sample, verify, grade and credit the groups of one step, and write its batch."""
    from gagar_mcore.controller.commands import run_rollout

    with one_line_errors():
        run_rollout(recipe, overrides or [])


@app.command()
def serve(
    role: Annotated[ServerRole, typer.Argument(help="Which of the two models.")],
    recipe: RecipeName,
    overrides: Overrides = None,
    name: Annotated[str, typer.Option(help="Of this server among several of the run: letters, digits, dashes.")] = "",
) -> None:
    """Run SGLang's server of a recipe's policy or grader until it is told to stop."""
    from gagar_mcore.controller.serve import run_serve

    with one_line_errors():
        run_serve(role.value, recipe, overrides or [], name)


@app.command()
def sft(recipe: RecipeName, overrides: Overrides = None, resume: Resume = False) -> None:
    """Supervised fine-tuning on conversations, or on demonstrations of the task generator: the cold start of a policy."""
    from gagar_mcore.sft.run import run_sft

    with one_line_errors():
        run_sft(recipe, overrides or [], resume)


@app.command()
def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's path or name, or the name of a model preset.")],
    overrides: Overrides = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="How many GPUs; else as many as the recipe has ranks.")] = None,
    gpu: Annotated[GpuKind | None, typer.Option(help="Which GPU; else the recipe's cluster.gpu, else h200.")] = None,
    context: Annotated[int | None, typer.Option(min=1, max=10**9, help="Tokens of every sequence.")] = None,
    mean_stage: Annotated[
        bool, typer.Option("--mean-stage", help="The mean pipeline stage, full logits, equal load: as published tables count.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As data, in bytes and seconds.")] = False,
) -> None:
    """Memory, communication and layouts of a recipe, without a GPU; exit code 1 where it does not fit."""
    from gagar_mcore.plan.command import plan_recipe

    with one_line_errors():
        fits = plan_recipe(
            recipe, overrides or [], gpus=gpus, gpu=gpu and gpu.value, context=context, mean=mean_stage, as_json=as_json
        )
        raise typer.Exit(0 if fits else 1)


@app.command()
def simulate(
    recipe: RecipeName,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=1, help="How many, one after the other.")] = 1,
    run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="A run directory: times and rates are fitted to it.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Leave out what twice as many of each kind would change.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As data, in seconds.")] = False,
) -> None:
    """Step time, utilisation and bottleneck of a recipe on a simulated cluster, through the scheduler of real runs."""
    from gagar_mcore.plan.simulate_command import simulate_recipe

    with one_line_errors():
        print(simulate_recipe(recipe, overrides or [], steps=steps, run=run, once=once, as_json=as_json))


@app.command()
def credit(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", help="Other fields of a recipe's method section.")
    ] = None,
    method: Annotated[Method, typer.Option(help="How advantages come about.")] = Method.gagar,
    cap: Annotated[str, typer.Option(help="Upper bound of lambda, or none.")] = "1.5",
    min_valid: Annotated[int, typer.Option(help="A group with fewer valid trajectories is dropped.")] = 2,
    source: Annotated[str, typer.Option("--in", help="File of JSON lines, one group each; - is standard input.")] = "-",
    target: Annotated[str, typer.Option("--out", help="Where the answers go; - is standard output.")] = "-",
) -> None:
    """The credit step alone: groups in as JSON lines, advantages out."""
    from gagar_mcore.integrations.credit_files import credit_files, credit_params

    try:
        code = credit_files(source, target, credit_params(method.value, cap, min_valid, settings or []))
    except (ValueError, OSError) as error:
        print(f"gagar: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    raise typer.Exit(code)


@app.command("import")
def import_trajectories(
    sources: Annotated[list[Path], typer.Argument(metavar="SRC...", help="Files, or folders of .traj, .traj.json and .jsonl.")],
    out: Annotated[Path, typer.Option("--out", help="A file of JSON lines that does not exist yet.")],
    form: Annotated[ImportForm, typer.Option(help="Whole records, or their chat messages alone.")] = ImportForm.records,
    format: Annotated[ImportFormat | None, typer.Option(help="Of every file; else by their names.")] = None,
    max_mb: Annotated[int, typer.Option(min=1, help="Largest record that is read, in MB.")] = 256,
) -> None:
    """Trajectories of SWE-agent, mini-swe-agent and chat messages, to analyse or learn from; exit code 1 where none is read."""
    from gagar_mcore.integrations.imports.command import run_import

    try:
        code = run_import(sources, out, form.value, format and format.value, max_mb)
    except OSError as error:
        print(f"gagar: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    raise typer.Exit(code)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Write report.html of a run, finished or not."""
    from gagar_mcore.viewer.report import write_report

    with one_line_errors():
        print(write_report(run))


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    trajectory: Annotated[str, typer.Argument(help="A trajectory's id, or the beginning of it.")],
    as_json: Annotated[bool, typer.Option("--json", help="As data.")] = False,
) -> None:
    """How a trajectory came to its advantage, step by step and in a sentence."""
    from gagar_mcore.viewer.explain import explain_run

    with one_line_errors():
        print(explain_run(run, trajectory, as_json))


@app.command()
def doctor(
    gpu: Annotated[bool, typer.Option("--gpu", help="Compute on a GPU, and compare with what it should give.")] = False,
) -> None:
    """What this machine can run, with the mend for what it cannot."""
    from gagar_mcore.launcher.doctor import print_diagnosis
    from gagar_mcore.launcher.gpu_doctor import print_gpu_diagnosis

    raise typer.Exit(0 if (print_gpu_diagnosis() if gpu else print_diagnosis()) else 1)


@tasks_app.command("make")
def tasks_make(
    directory: Annotated[Path, typer.Argument(help="A folder that does not exist yet or is empty.")],
    count: Annotated[int, typer.Option(min=1, help="How many tasks.")],
    seed: Annotated[int, typer.Option(help="Decides every task.")] = 1,
    from_package: Annotated[
        str | None, typer.Option(metavar="NAME==VERSION", help="Seed bugs in the code of this package from the index.")
    ] = None,
) -> None:
    """Make bug-repair tasks in the Harbor layout, generated or from a package's code and tests, each verified in a sandbox."""
    from gagar_mcore.tasks.commands import make

    with one_line_errors():
        print(asyncio.run(make(seed, count, directory, from_package)))


@tasks_app.command("check")
def tasks_check(
    directory: Annotated[Path, typer.Argument(help="A task, a folder of tasks, or a file of SWE-bench or SWE-smith records.")],
    no_run: Annotated[bool, typer.Option("--no-run", help="Read and validate only.")] = False,
) -> None:
    """One line a task and a closing count; exit code 1 where any is unusable."""
    from gagar_mcore.tasks.commands import check

    with one_line_errors():
        raise typer.Exit(0 if asyncio.run(check(directory, run=not no_run)) else 1)


@tasks_app.command("import")
def tasks_import(
    records: Annotated[Path, typer.Argument(help="A file of SWE-bench or SWE-smith records: JSON, or JSON lines.")],
    directory: Annotated[Path, typer.Argument(help="A folder that does not exist yet or is empty.")],
) -> None:
    """Write records of SWE-bench (lite, Verified, Pro) and SWE-smith as tasks in the Harbor layout."""
    from gagar_mcore.tasks.commands import import_records

    with one_line_errors():
        print(import_records(records, directory))


@tasks_app.command("clean")
def tasks_clean(directory: Annotated[Path, typer.Argument(help="A task, or a folder of tasks.")]) -> None:
    """Take from the repositories of tasks what came after their base commit: commits, branches, tags, reflogs, stashes."""
    from gagar_mcore.tasks.commands import clean

    with one_line_errors():
        print(asyncio.run(clean(directory)))


@app.command()
def verify(
    task: Annotated[Path, typer.Argument(metavar="TASK", help="A task's directory.")],
    patch: Annotated[Path, typer.Argument(metavar="PATCH", help="A file: the patch, or the task's artifact.")],
) -> None:
    """Run a task's tests on a patch in a sandbox: tests, reward, seconds, and why; exit code 1 where the reward is not 1."""
    from gagar_mcore.tasks.commands import verify

    with one_line_errors():
        raise typer.Exit(0 if asyncio.run(verify(task, patch)) else 1)


@app.command("eval")
def evaluate(
    recipe: RecipeName,
    url: Annotated[str, typer.Option(help="Of the server, as far as /chat/completions; its key is in OPENAI_API_KEY.")],
    model: Annotated[str, typer.Option(help="Its name there.")],
    overrides: Overrides = None,
    samples: Annotated[int, typer.Option(min=1, help="Sessions of each task.")] = 1,
    count: Count = None,
    concurrent: Annotated[int, typer.Option(min=1, help="Sessions at once.")] = 4,
    out: NewLines = Path("eval.jsonl"),
) -> None:
    """Have any model with OpenAI's chat API work on a recipe's loaded tasks: avg@k, with each session and its verification."""
    from gagar_mcore.controller.evaluation import evaluate

    with one_line_errors():
        print(asyncio.run(evaluate(recipe, overrides or [], url, model, samples, count, concurrent, out)))


@app.command()
def grade(
    source: Annotated[Path, typer.Argument(metavar="RUN|DIR", help="A run directory, or a folder with groups.jsonl.")],
    overrides: Overrides = None,
    repeat: Annotated[int, typer.Option(min=1, help="Verdicts on each group.")] = 1,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Names and order of candidates anew each time.")] = False,
    count: Count = None,
    keep: Annotated[Path | None, typer.Option(help="Where workspaces and sessions stay.")] = None,
    out: NewLines = Path("grades.jsonl"),
) -> None:
    """Grade recorded groups again, or those of another stack: verdicts, advantages, and how far repeated ones agree."""
    from gagar_mcore.controller.grade import grade

    with one_line_errors():
        print(asyncio.run(grade(source, overrides or [], repeat, shuffle, count, keep, out)))


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    overrides: Overrides = None,
    against: Annotated[Path | None, typer.Option(metavar="RUN", help="Another run; else the earlier half of this one.")] = None,
    count: Count = None,
) -> None:
    """Quality of passing patches from 1 to 5, judged blind in pairs by the recipe's grader, and how often the newer one wins."""
    from gagar_mcore.controller.grade import audit

    with one_line_errors():
        print(asyncio.run(audit(run, overrides or [], against, count)))


@sandbox_app.command("import")
def sandbox_import(
    archive: Annotated[Path, typer.Argument(metavar="IMAGE.tar", help="From `docker save`, or an OCI layout in a tar.")],
    name: Annotated[str | None, typer.Option(help="Its name in tasks; else the one that it gives itself.")] = None,
    store: Annotated[Path | None, typer.Option(help="Where images lie; a recipe's sandbox.images.")] = None,
    max_gb: Annotated[int, typer.Option(min=1, help="The most that its layers, and its files, may hold.")] = 64,
) -> None:
    """Unpack a container image, for sandboxes of this machine; no container engine is needed."""
    from gagar_sandbox import ImageStore, default_store
    from gagar_sandbox.unpack import Bounds

    with one_line_errors():
        image = ImageStore(store or default_store()).add(archive, name, Bounds(bytes=max_gb << 30))
        print(f"{image.name}@{image.digest}: {image.root}" + (f", {image.left_out} devices left out" * bool(image.left_out)))


@config_app.command("show")
def config_show(recipe: RecipeName, overrides: Overrides = None) -> None:
    """The complete recipe, defaults included."""
    from gagar_mcore.config.load import dump_recipe, load_recipe

    with one_line_errors():
        print(dump_recipe(load_recipe(recipe, overrides or [])), end="")


@convert_app.command("hf-to-megatron")
def convert_hf_to_megatron(
    source: Source,
    target: Target,
    tp: Size = 1,
    pp: Size = 1,
    ep: Size = 1,
    etp: Size = 1,
    ranks: Ranks = None,
    precision: WeightPrecision = Precision.bf16,
) -> None:
    """A checkpoint in Hugging Face format, as published in bf16, FP8 or MXFP4, to one that Megatron loads in any layout."""
    from gagar_mcore.config.conversion import Conversion
    from gagar_mcore.config.load import validate
    from gagar_mcore.launcher.convert import convert

    layout = {"tp": tp, "pp": pp, "ep": ep, "etp": etp, "ranks": ranks, "precision": precision.value}
    job = {"direction": "hf-to-megatron", "source": source, "target": target, "companions": source, "layout": layout}
    with one_line_errors():
        print(convert(validate(Conversion, job, "convert")))


@convert_app.command("megatron-to-hf")
def convert_megatron_to_hf(
    source: Source,
    target: Target,
    tp: Size = 1,
    pp: Size = 1,
    ep: Size = 1,
    etp: Size = 1,
    ranks: Ranks = None,
    precision: WeightPrecision = Precision.bf16,
    format: Annotated[WeightFormat, typer.Option(help="How weights are stored.")] = WeightFormat.bf16,
    naming: Annotated[
        WeightNaming, typer.Option(help="q, k and v apart as in transformers, or in one tensor.")
    ] = WeightNaming.SPLIT,
    companions: Annotated[
        Path | None, typer.Option(help="Where config.json and tokenizer are, for a source without: a checkpoint of a run.")
    ] = None,
    max_file_gb: Annotated[float, typer.Option(min=0.001, help="Largest file, in GB.")] = 5.0,
) -> None:
    """A checkpoint of Megatron, converted or of a run, to Hugging Face format."""
    from gagar_mcore.config.conversion import Conversion
    from gagar_mcore.config.load import validate
    from gagar_mcore.launcher.convert import convert

    job = {
        "direction": "megatron-to-hf",
        "source": source,
        "target": target,
        "companions": companions or source,
        "layout": {"tp": tp, "pp": pp, "ep": ep, "etp": etp, "ranks": ranks, "precision": precision.value},
        "format": format.value,
        "naming": naming.value,
        "max_file_gb": max_file_gb,
    }
    with one_line_errors():
        print(convert(validate(Conversion, job, "convert")))


@bench_app.command("fused-step", context_settings=PASSED_ON, add_help_option=False)
def bench_fused_step(options: BenchOptions = None) -> None:
    """The fused advantage step beside eager PyTorch and a memory copy."""
    from gagar_mcore.bench.fused_step import main

    main(options or [])


@bench_app.command("logprob", context_settings=PASSED_ON, add_help_option=False)
def bench_logprob(options: BenchOptions = None) -> None:
    """Log-probs without full logits beside plain log_softmax: peak memory and time."""
    from gagar_mcore.bench.logprob import main

    main(options or [])


@bench_app.command("trainer", context_settings=PASSED_ON, add_help_option=False)
def bench_trainer(options: BenchOptions = None) -> None:
    """Training steps in every layout beside transformers and DeepSpeed: tokens a second; on a GPU also memory and costs."""
    from gagar_mcore.bench.trainer import main

    main(options or [], "gagar bench trainer")


@bench_app.command("scheduler", context_settings=PASSED_ON, add_help_option=False)
def bench_scheduler(options: BenchOptions = None) -> None:
    """Thousands of live sessions through the real scheduler: CPU a turn, memory a session, idle slots."""
    from gagar_mcore.bench.scheduler import main

    main(options or [])


@bench_app.command("batch-build", context_settings=PASSED_ON, add_help_option=False)
def bench_batch_build(options: BenchOptions = None) -> None:
    """The batch of a step, streamed to disk, beside a plain write of its bytes and verl's padded tensors."""
    from gagar_mcore.bench.batch_build import main

    main(options or [], "gagar bench batch-build")


@bench_app.command("weight-sync", context_settings=PASSED_ON, add_help_option=False)
def bench_weight_sync(options: BenchOptions = None) -> None:
    """New weights from trainer to engine, by mode, beside a plain file copy: bytes and seconds, with SGLang's real server."""
    from gagar_mcore.bench.weight_sync import main

    main(options or [], "gagar bench weight-sync")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
