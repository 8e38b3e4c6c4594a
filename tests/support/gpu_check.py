"""What only a card can prove, as one script: `make test-gpu`. Without a card it says so and ends.

For a tiny random model and for SmolLM2-135M-Instruct, at every precision: compile a plan for the
present card, then check

    logits     against ONNX Runtime in float32, through the same passes
    text       the same for every draft length, chunking and batch mate, else how many differ
    replay     CUDA graphs give the bits of the passes they recorded, others between them
    tree       its trunk is a chain to the bit, its branches are near to chains along their paths
    draws      of every kind of sampling the host sampler's, and the candidates the host's
    features   near to ONNX Runtime's

and time a step, and draws from a large vocabulary. Prints two tables, and JSON where asked; ends
with 1 if a check failed. A plan that cannot be made or run is a row of the table too.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from specdec.artifact import Artifact
from specdec.config import DecoderConfig
from specdec.decoder.batch import Share, build
from specdec.decoder.cuda import Cuda
from specdec.decoder.decoder import CachedDecoder, load_decoder
from specdec.decoder.runtimes import Place
from specdec.export.check import compare
from specdec.export.exporter import export
from specdec.export.sources import HuggingFaceSource, Source, resolve
from specdec.export.tensorrt import Compiler, Device, Shapes, present_device
from specdec.export.tensorrt_graph import TensorRTPrecision
from specdec.plan import MODULES, import_tensorrt
from specdec.types import SamplingParams
from support import gpu_checks
from support.decoding import drafts_from, generate, run_together, steps
from support.gpu_report import Fault, Row, as_json, table
from support.tiny import write_tiny_llama

SHAPES = Shapes(max_sequences=16, max_sequence_length=1024, max_rows=256)
NUM_TOKENS = 64
DRAFT_LENGTHS = (1, 2, 4, 8)
STEPS = ((1, 1), (1, 5), (4, 5), (16, 1), (16, 5))  # (sequences, rows each)


def prompts(num_ids: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, num_ids, size).tolist() for size in (40, 23, 7, 90)]


def logits(decoder: CachedDecoder, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """[rows, V] of every prompt: first halves together, then second halves."""
    runtime, min_rows = decoder._runtime, decoder.describe().min_rows
    halves = [len(text) // 2 for text in texts]
    parts: list[list[np.ndarray]] = [[] for _ in texts]
    for second in (False, True):
        shares = [
            Share(i, n if second else 0, part, len(part))
            for i, (text, n) in enumerate(zip(texts, halves, strict=True))
            for part in [text[n:] if second else text[:n]]
        ]
        lengths = [0] * runtime.num_slots
        built = build(shares, lengths, length=runtime.length, min_rows=min_rows, max_position=4096)
        rows = runtime.forward(built)[0 : sum(s.num_outputs for s in shares)]
        for part, share in zip(
            parts, np.split(rows, np.cumsum([s.num_outputs for s in shares])[:-1]), strict=True
        ):
            part.append(share.copy())
    return np.concatenate([np.concatenate(part) for part in parts])


def other_texts(decoder: CachedDecoder, prompt: list[int]) -> list[bool]:
    """Whether each text is another one than plain decoding's: greedy and sampled, whatever is
    drafted, chunked or batched beside it."""
    found = []
    for sampling in (SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9, seed=1)):
        plain = generate(decoder, prompt, sampling, NUM_TOKENS)
        known = prompt + plain[0]
        for count in DRAFT_LENGTHS:
            drafter = drafts_from(known, count, wrong_at=count - 1)
            text = generate(decoder, prompt, sampling, NUM_TOKENS, drafter=drafter)
            found.append(text != plain)
        batch = [
            steps(decoder, 1, prompt, sampling, NUM_TOKENS, drafter=drafts_from(known, 4)),
            steps(decoder, 2, prompt[:9], sampling, NUM_TOKENS),
            steps(decoder, 3, prompt, sampling, NUM_TOKENS, chunk=7),
        ]
        together = run_together(decoder, batch)
        found += [together[i] != plain for i in (0, 2)]
    return found


def passes(decoder: CachedDecoder, num_sequences: int, num_rows: int) -> Callable[[], Any]:
    runtime = decoder._runtime
    shares = [Share(i, 100, list(range(3, 3 + num_rows)), num_rows) for i in range(num_sequences)]
    built = build(
        shares,
        [100] * runtime.num_slots,
        length=runtime.length,
        min_rows=decoder.describe().min_rows,
        max_position=4096,
    )
    return lambda: runtime.forward(built)


def same_replay(decoder: CachedDecoder) -> bool:
    """The first pass of a shape is queued, the second recorded, the third replayed; passes of
    other shapes, recorded too, come in between."""
    decoder._runtime.resize(256, [0] * decoder._runtime.num_slots)
    shapes = ((2, 3), (1, 1), (4, 2), (1, 5))
    runs = [passes(decoder, *shape) for shape in shapes]
    rounds = [
        [run()[0 : n * m].copy() for run, (n, m) in zip(runs, shapes, strict=True)]
        for _ in range(4)
    ]
    first, _, *replayed = rounds
    return all(
        np.array_equal(a, b) for later in replayed for a, b in zip(first, later, strict=True)
    )


def step_times(decoder: CachedDecoder) -> dict[tuple[int, int], float]:
    """Milliseconds of a step, greedy draws included: the fastest of 20."""
    runtime, times = decoder._runtime, {}
    for num_sequences, num_rows in STEPS:
        run = passes(decoder, num_sequences, num_rows)
        places = [Place(row, SamplingParams(), 100) for row in range(num_sequences * num_rows)]
        fastest = float("inf")
        for _ in range(20):
            began = time.perf_counter()
            found = run()
            runtime.draw(found, places, 300)
            fastest = min(fastest, time.perf_counter() - began)
        times[num_sequences, num_rows] = 1000 * fastest
    return times


def check(name: str, source: Source, compiler: Any, folder: Path, progress: Any) -> Row:
    """Export both ways, load both, compare."""
    reference = export(source, folder / "onnx", progress=progress)
    made = export(source, folder / "plan", progress=progress, compiler=compiler, force=True)
    config = DecoderConfig(max_sequences=SHAPES.max_sequences)
    expected, decoder = (load_decoder(config, x.directory) for x in (reference, made))
    texts = prompts(Artifact.read(made.directory).num_tokens)
    difference = compare(logits(expected, texts), logits(decoder, texts))
    others = other_texts(decoder, texts[0])
    return Row(
        model=name,
        runtime=compiler.runtime,
        precision=made.artifact.precision,
        divergence=difference.mean_divergence,
        agreement=difference.agreement,
        exactness=f"{decoder.describe().exactness}",
        num_texts=len(others),
        num_other_texts=sum(others),
        same_replay=same_replay(decoder),
        tree=gpu_checks.check_tree(decoder, texts[0]),
        same_candidates=gpu_checks.check_candidates(decoder, texts[0]),
        num_wrong_draws=gpu_checks.check_draws(decoder, texts[0]),
        feature_error=gpu_checks.check_features(expected, decoder, texts),
        milliseconds=step_times(decoder),
    )


def compilers(device: Device) -> list[Compiler]:
    """Every precision of every TensorRT that is installed and can compile for this card."""
    from specdec.errors import InvalidRequest

    found = []
    for runtime, (module, _) in MODULES.items():
        if find_spec(module) is None:
            continue
        import_tensorrt(runtime)
        for precision in TensorRTPrecision:
            try:
                found.append(Compiler(runtime, precision, shapes=SHAPES, device=device))
            except InvalidRequest as error:
                print(f"left out: {runtime} {precision.value}: {error}")
    return found


def check_all(
    models: dict[str, Source], every: Sequence[Any], keep: Callable[[list[Row | Fault]], None]
) -> list[Row | Fault]:
    """Every model by every compiler; what fails for one ends none of the others.

    `keep` gets the rows after each: a fault of the card may end the process.
    """
    from rich.progress import Progress

    rows: list[Row | Fault] = []
    with tempfile.TemporaryDirectory() as name, Progress(disable=True) as progress:
        for model, source in models.items():
            for compiler in every:
                runtime, precision = compiler.runtime, str(compiler.form.precision)
                try:
                    rows.append(check(model, source, compiler, Path(name) / model, progress))
                except Exception as error:  # also an assertion: it is one row of a report
                    reason = f"{type(error).__name__}: {error}"
                    rows.append(Fault(model, runtime, precision, reason))
                found = "; ".join(rows[-1].failures) or "good"
                print(f"done: {model} {runtime} {precision}: {found}", flush=True)
                keep(rows)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    from rich.console import Console
    from rich.progress import Progress

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there too")
    options = parser.parse_args(arguments)
    device = present_device()
    if device is None and shutil.which("nvidia-smi"):
        print(
            "test-gpu: torch sees no card here, but nvidia-smi is installed: see to the driver, "
            "or install a CUDA build of torch",
            file=sys.stderr,
        )
        return 1
    if device is None:
        print("test-gpu: this machine has no NVIDIA card, nothing was run")
        return 0
    print(f"test-gpu: {device.name}, {device.capability}, {device.memory_gib:.0f} GiB")
    every = compilers(device)
    if not every:
        print(
            "test-gpu: no TensorRT is installed that compiles for this card: for one of a data "
            "center, pip install tensorrt-cu13",
            file=sys.stderr,
        )
        return 1
    with tempfile.TemporaryDirectory() as name, Progress(disable=True) as progress:
        tiny = write_tiny_llama(Path(name) / "tiny", hidden_size=256, spread=0.1)
        models = {"tiny": HuggingFaceSource(tiny), "SmolLM2-135M": resolve("smollm2", progress)}

        def keep(rows: list[Row | Fault]) -> None:
            if options.json:
                options.json.write_text(as_json(f"{device.name}, {device.capability}", rows))

        rows = check_all(models, every, keep)
    console = Console(width=240)
    console.print(table(rows))
    cuda = Cuda()
    wrong = gpu_checks.check_large_draws(cuda)
    console.print(gpu_checks.draw_table(gpu_checks.time_draws(cuda), wrong))
    return 1 if wrong or any(row.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
