"""`specdec evaluate`: how many draft tokens of what was trained hold, on prompts of your choice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from specdec.export.model_command import prepared
from specdec.export.training.options import Writing
from specdec.export.training.shown import bars, counted, ended_in_a_line, print_table


def evaluate(
    trained: Annotated[Path, typer.Argument(help="The folder that `specdec train` wrote.")],
    *,
    prompts: Annotated[
        list[Path],
        typer.Option(
            "--prompts",
            help='JSON lines, {"prompt": text} or {"messages": [...]}, and a "source"; repeatable.',
        ),
    ],
    model: Annotated[
        str, typer.Option(help="The target: a Hugging Face directory, a .gguf file, or smollm2.")
    ] = "smollm2",
    target: Annotated[Path, typer.Option(help="The same, exported with features.")] = Path(
        "model_repository/target/1"
    ),
    output: Annotated[
        Path, typer.Option(help="The target's answers, kept for the next time, and the figures.")
    ] = Path("evaluation"),
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Of one answer.")] = 128,
    max_prompt_tokens: Annotated[int, typer.Option(min=8, help="Longer ones are left out.")] = 1000,
    batch: Annotated[int, typer.Option(min=1, help="Answers written at once.")] = 32,
    threads: Annotated[int, typer.Option(min=0, help="0: one per processor.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure a trained head or draft: acceptance by position, as a server would see it.

    The target answers the prompts greedily; along its answers it is counted which draft tokens
    it would have kept, in chains of six. Nothing is trained.
    """
    writing = Writing(
        rounds=1,
        max_prompt_tokens=max_prompt_tokens,
        max_new_tokens=max_new_tokens,
        batch=batch,
        threads=threads or len(os.sched_getaffinity(0)),
    )
    with ended_in_a_line():
        from specdec.export.training import result
        from specdec.export.training.pipeline import Pipeline, name_of
        from specdec.export.training.prompts import Prompts

        output.mkdir(parents=True, exist_ok=True)
        with bars() as progress:
            head, vocabulary = result.read_trained(trained)
            source = prepared(model, progress)
            read = Prompts.read(prompts, source.tokenizer, max_tokens=max_prompt_tokens)
            # Answers belong to what they answer: others lie in another folder.
            folder = output / name_of(target, read, max_new_tokens)
            pipeline = Pipeline(source, target, read, folder)
            pipeline.refuse_misfit(head, vocabulary)
            if left := pipeline.jobs_left(writing):
                with counted(progress, "write answers", len(left)) as count:
                    pipeline.write(left, writing, count)
            task = progress.add_task("evaluate", total=None)
            found = pipeline.evaluation(head, vocabulary)
            progress.update(task, total=1, completed=1)
            result.write_evaluation(output, found)
    if as_json:
        typer.echo(json.dumps(result.plain(found)))
    else:
        print_table(
            found, "acceptance by position, greedy", with_request=not head.config.is_standalone
        )
