"""From the words of the command line to a compiler: which card, which precision."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import NamedTuple

from specdec.errors import InvalidRequest
from specdec.export.tensorrt import Compiler, Device, Shapes, present_device
from specdec.export.tensorrt_graph import TensorRTPrecision
from specdec.export.tensorrt_memory import Neighbour, find_card


class Options(NamedTuple):
    """None and defaults where the command line is silent."""

    card: str | None = None
    capability: str | None = None
    memory_gib: float | None = None
    max_sequences: int = Shapes().max_sequences
    max_sequence_length: int = Shapes().max_sequence_length
    max_rows: int = Shapes().max_rows
    timing_cache: Path | None = None
    beside: Seq[Path] = ()


def make_compiler(
    runtime: str, precision: str | None, options: Options, announce: Callable[[str], None]
) -> Compiler:
    """Raises `InvalidRequest` and what `Compiler` raises."""
    return Compiler(
        runtime,
        find_precision(precision),
        shapes=Shapes(options.max_sequences, options.max_sequence_length, options.max_rows),
        device=find_device(options),
        timing_cache=options.timing_cache,
        beside=[Neighbour.read(directory) for directory in options.beside],
        announce=announce,
    )


def find_precision(name: str | None) -> TensorRTPrecision:
    allowed = [p.value for p in TensorRTPrecision]
    if name is None:
        return TensorRTPrecision.bf16
    if name not in allowed:
        raise InvalidRequest(f"--precision {name}: TensorRT allows {', '.join(allowed)}")
    return TensorRTPrecision(name)


def find_device(options: Options) -> Device:
    """--card, else --capability, else the card of this machine."""
    if options.card is not None:
        card = find_card(options.card)
        device = Device(card.capability, options.card, card.memory_gib)
    elif options.capability is not None:
        device = Device(options.capability)
    else:
        present = present_device()
        if present is None:
            raise InvalidRequest(
                "this machine has no NVIDIA card: name the one to compile for, with --card or "
                "--capability"
            )
        device = present
    if options.capability is not None:
        device = device._replace(capability=options.capability)
    if options.memory_gib is not None:
        device = device._replace(memory_gib=options.memory_gib)
    return device
