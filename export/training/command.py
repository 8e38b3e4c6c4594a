"""`specdec train`: the command line around `pipeline.Pipeline`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec.errors import InvalidRequest
from specdec.export.model_command import prepared
from specdec.export.training.kinds import Kind
from specdec.export.training.options import Draft, Precision, Settings, Start, Writing
from specdec.export.training.schedule import Schedule
from specdec.export.training.shown import bars, counted, ended_in_a_line, print_table

if TYPE_CHECKING:
    from rich.progress import Progress

    from specdec.export.training.pipeline import Pipeline
    from specdec.export.training.trainer import Step, Trainer


def train(
    kind: Annotated[Kind, typer.Argument(help="What to train.")] = Kind.eagle,
    *,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            "--prompts",
            help='JSON lines, {"prompt": text} or {"messages": [...]}, and a "source"; repeatable.',
            show_default=False,
        ),
    ] = None,
    self_prompts: Annotated[
        int, typer.Option(min=0, help="Prompts that the target writes itself: needs no files.")
    ] = 0,
    starts: Annotated[
        Path | None,
        typer.Option(help='JSON lines, {"start": text}: first words of those, used in turn.'),
    ] = None,
    model: Annotated[
        str, typer.Option(help="The target: a Hugging Face directory, a .gguf file, or smollm2.")
    ] = "smollm2",
    target: Annotated[
        Path, typer.Option(help="The same, exported with features.", show_default=True)
    ] = Path("model_repository/target/1"),
    output: Annotated[
        Path | None,
        typer.Option(help="Everything is written and resumed here.", show_default="trained/KIND"),
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(help="Go on from the answers of an earlier training.")
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            help="Train on the texts of this earlier --output too; repeatable.", show_default=False
        ),
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option(help="Go on from the weights of an earlier training.")
    ] = None,
    start: Annotated[
        Start,
        typer.Option(help="Else: at random, or as layers of the target: of a head its last."),
    ] = Start.random,
    rounds: Annotated[
        int, typer.Option(min=0, help="Answers to each prompt: one greedy, the others sampled.")
    ] = 2,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the sampled answers.")] = 0.8,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Of one answer.")] = 192,
    max_prompt_tokens: Annotated[int, typer.Option(min=8, help="Longer ones are left out.")] = 256,
    batch: Annotated[int, typer.Option(min=1, help="Answers written at once.")] = 32,
    minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Train by the clock.", show_default="60")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Train so many batches instead: repeats to the bit.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(min=1, help="exit: so many of the target's layers come first.")
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(min=1, help="Layers that are trained.", show_default="draft: 4, others: 1"),
    ] = None,
    unroll: Annotated[
        int,
        typer.Option(
            min=1, max=8, help="Steps of a draft in the second part; of --start-from, in all."
        ),
    ] = 3,
    vocabulary: Annotated[int, typer.Option(min=16, help="Ids a draft can always propose.")] = 4096,
    learning_rate: Annotated[float, typer.Option(min=0.0)] = 5e-4,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    precision: Annotated[
        Precision, typer.Option(help="auto: bf16 where the processor multiplies it.")
    ] = Precision.auto,
    threads: Annotated[int, typer.Option(min=0, help="0: one per processor.")] = 0,
) -> None:
    """Train a draft for a target, on what the target itself writes.

    eagle: a head on the target's features; draft: a small decoder; exit: behind its first layers.
    Answers, training, evaluation and a plot; Ctrl-C saves, the same command goes on.
    """
    threads = threads or len(os.sched_getaffinity(0))
    writing = Writing(
        rounds=rounds,
        temperature=temperature,
        num_self_prompts=self_prompts,
        max_prompt_tokens=max_prompt_tokens,
        max_new_tokens=max_new_tokens,
        batch=batch,
        seed=seed,
        threads=threads,
    )
    draft = Draft(kind, layer, blocks, vocabulary, start, start_from)
    schedule = Schedule(
        num_steps=steps,
        minutes=None if steps else minutes if minutes is not None else 60.0,
        learning_rate=learning_rate,
        unrolled=_unrolled(kind, unroll, is_trained=start_from is not None),
    )
    output = output or Path("trained") / kind.value
    with ended_in_a_line():
        if not (prompts or self_prompts):
            raise InvalidRequest("no prompts: pass --prompts FILE, --self-prompts N, or both")
        if starts and not self_prompts:
            raise InvalidRequest("--starts begins prompts of --self-prompts N: pass that too")
        from specdec.export.training.pipeline import Pipeline
        from specdec.export.training.prompts import Prompts
        from specdec.export.training.result import PLOT

        settings = Settings(seed=seed, num_threads=threads, half=_half(precision))
        with bars() as progress:
            source = prepared(model, progress)
            read = Prompts.read(
                prompts or [], source.tokenizer, max_tokens=max_prompt_tokens, starts=starts
            )
            pipeline = Pipeline(source, target, read, output, also or ())
            _write(progress, pipeline, writing, answers)
            trainer = pipeline.trainer(draft, schedule, settings)
            _train(progress, trainer)
            task = progress.add_task("evaluate", total=None)
            evaluation = pipeline.finish(trainer, draft)
            progress.update(task, total=1, completed=1)
    title = "acceptance by position, held-out prompts, greedy"
    print_table(evaluation, title, with_request=kind is not Kind.draft)
    typer.echo(f"trained: {output}")
    if not (output / PLOT).is_file():
        typer.echo("no plot: pip install 'specdec[plot]' and run the same command", err=True)


def _unrolled(kind: Kind, unroll: int, *, is_trained: bool) -> tuple[tuple[float, int], ...]:
    """See `Schedule`. By single steps trained weights would first forget to go on from their own
    states."""
    if kind is not Kind.eagle:
        return ((0.0, 1),)
    return ((0.0, unroll),) if is_trained else ((0.0, 1), (0.45, unroll))


def _write(progress: Progress, pipeline: Pipeline, writing: Writing, answers: Path | None) -> None:
    """Old answers are read again, the others written."""
    if answers is not None:
        with counted(progress, "read the answers again", None) as count:
            pipeline.recall(answers, writing, count)
    while left := pipeline.jobs_left(writing):  # its own prompts first, then all answers
        name = "write prompts" if left[0].is_opening else "write answers"
        with counted(progress, name, len(left)) as count:
            pipeline.write(left, writing, count)


def _train(progress: Progress, trainer: Trainer) -> None:
    """With a bar of the schedule's progress."""
    from specdec.export.training.trainer import Interrupted

    task = progress.add_task("train", total=1.0)
    tokens, seconds = 0, trainer.position.seconds

    def show(step: Step) -> None:
        nonlocal tokens
        tokens += step.num_tokens
        speed = tokens / max(step.position.seconds - seconds, 1e-9)
        agreement = " ".join(f"{share:.2f}" for share in step.agreement)
        note = f"loss {step.loss:.2f}, agreement {agreement}, {speed:,.0f} tok/s"
        progress.update(task, completed=step.progress, note=note)

    try:
        trainer.run(show)
    except Interrupted:
        raise KeyboardInterrupt from None
    progress.update(task, completed=1.0)


def _half(precision: Precision) -> bool:
    """Whether bfloat16 products pay: a processor without them is slower with them."""
    import torch

    if precision is not Precision.auto:
        return precision is Precision.bf16
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported()
