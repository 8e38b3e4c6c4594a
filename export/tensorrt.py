"""Compiles a decoder graph with TensorRT or TensorRT-RTX: model.onnx in, model.plan out.

TensorRT-RTX compiles for any capability it knows, on a machine without a card. TensorRT compiles
for the card it runs on. One profile covers decoding, verifying and prefill: see `Shapes`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import Progress

from specdec.artifact import GRAPH
from specdec.decoder.batch import MAX_SHARED_ROWS
from specdec.errors import InvalidRequest, SpecdecError, UnsupportedModel
from specdec.export import tensorrt_memory as memory
from specdec.export.graph import INPUTS
from specdec.export.tensorrt_graph import TensorRTForm, TensorRTPrecision
from specdec.export.tensorrt_progress import Interrupt, make_logger, make_monitor, shorten
from specdec.export.tensorrt_timing import TimingCache
from specdec.plan import FILE as PLAN_FILE
from specdec.plan import PLAN, Plan, import_tensorrt

_STRIDE = 64  # cache positions: rows of every slot start aligned
_LEAST_LENGTH, _LEAST_ROWS = 512, 128  # what the load-time probe uses
_MIN_CAPABILITY = {"fp8": 89, "bf16": 80, "int4": 80}


class CompileFailed(SpecdecError):
    """TensorRT refused the graph, with its own reason."""


class Shapes(NamedTuple):
    """The largest of everything a plan is made for; the smallest is 1."""

    max_sequences: int = 16  # B
    max_sequence_length: int = 2048
    max_rows: int = 512  # N, R and T of one pass: also the longest prefill chunk

    @property
    def cache_length(self) -> int:
        """S. Every sequence of a pass is padded to the longest, behind its last position."""
        needed = max(self.max_sequence_length + MAX_SHARED_ROWS, _LEAST_LENGTH)
        return -(-needed // _STRIDE) * _STRIDE

    def check(self) -> None:
        """Raises `InvalidRequest`."""
        ranges = {
            "max-sequences": (self.max_sequences, 1, 256),
            "max-sequence-length": (self.max_sequence_length, 16, 1 << 20),
            "max-rows": (self.max_rows, _LEAST_ROWS, 1 << 14),
        }
        for name, (value, low, high) in ranges.items():
            if not low <= value <= high:
                raise InvalidRequest(f"--{name} is {value}: allowed are {low} to {high}")

    def axes(self) -> dict[str, tuple[int, int, int]]:
        """Smallest, usual (a verify pass of half the sequences) and largest of every axis."""
        usual = max(1, self.max_sequences // 2)
        rows = min(4 * usual, self.max_rows)
        return {
            "B": (1, usual, self.max_sequences),
            "T": (1, 4, self.max_rows),
            "N": (1, rows, self.max_rows),
            "R": (1, rows, self.max_rows),
        }


class Device(NamedTuple):
    """The card a plan is for."""

    capability: str  # e.g. SM89
    name: str = ""  # for people
    memory_gib: float | None = None  # None: not known, nothing is refused


class Compiler:
    """Makes plans; one per export. See `Compiler` in exporter.py."""

    files = (PLAN, PLAN_FILE)

    def __init__(
        self,
        runtime: str,
        precision: TensorRTPrecision,
        *,
        shapes: Shapes,
        device: Device,
        timing_cache: Path | None = None,
        beside: Seq[memory.Neighbour] = (),
        announce: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`announce` is told the memory estimate before anything is compiled.

        `beside`: other models that the card is to hold as well.

        Raises:
            InvalidArtifact: this TensorRT is not installed.
            InvalidRequest: it cannot compile for that card, or the card not for that precision.
        """
        shapes.check()
        if timing_cache is not None and runtime == "tensorrt-rtx":
            raise InvalidRequest(
                "--timing-cache is for --runtime tensorrt: TensorRT-RTX measures no kernels while "
                "it compiles"
            )
        self.runtime, self.shapes, self.device = runtime, shapes, device
        self._trt = import_tensorrt(runtime)
        self._precision, self._announce = precision, announce
        self._timing, self._beside = TimingCache(timing_cache), beside
        self._needed = memory.Estimate(0, 0, 0)
        self._capability = _capability(self._trt, device.capability, precision)
        half = "float16" if _number(device.capability) < _MIN_CAPABILITY["bf16"] else None
        self.form = TensorRTForm(precision, cache_length=shapes.cache_length, dtype=half)

    @property
    def provenance(self) -> dict[str, str]:
        """What makes a plan another plan, beside its source."""
        return {
            "specdec.runtime": f"{self.runtime} {self._trt.__version__}",
            "specdec.capability": self.device.capability,
            **{f"specdec.{name}": str(value) for name, value in self.shapes._asdict().items()},
        }

    def provenance_of(self, directory: Path) -> dict[str, str] | None:
        """What the plan in `directory` was made from, None where there is none."""
        try:
            plan = Plan.read(directory)
        except SpecdecError:
            return None
        path = directory / PLAN
        whole = path.is_file() and path.stat().st_size == plan.num_bytes
        return plan.provenance if whole else None

    def accept(self, architecture: Any) -> memory.Estimate:
        """Announce the memory it needs.

        Raises `UnsupportedModel`: the card has less, or TensorRT cannot express the model.
        """
        if "softcap" in architecture.attention_attributes():
            raise UnsupportedModel(
                "this model caps attention scores, which TensorRT's attention does not: "
                "use --runtime onnxruntime"
            )
        self._needed = memory.estimate(
            architecture,
            self._precision,
            max_sequences=self.shapes.max_sequences,
            max_rows=self.shapes.max_rows,
            cache_length=self.shapes.cache_length,
        )
        self._announce_memory(self._needed)
        return self._needed

    def reuse(self, directory: Path) -> None:
        """Announce the memory of the plan in `directory`. Raises as `accept` does."""
        self._announce_memory(memory.Estimate(**Plan.read(directory).memory))

    def _announce_memory(self, needed: memory.Estimate) -> None:
        self._announce(f"memory: {memory.together(needed, self._beside)}")
        if self.device.memory_gib is not None:
            memory.refuse_too_large(
                needed,
                card=self.device.name or self.device.capability,
                memory_gib=self.device.memory_gib,
                beside=self._beside,
            )

    def compile(
        self,
        directory: Path,
        *,
        weights_sha256: str,
        provenance: dict[str, str],
        progress: Progress,
    ) -> None:
        """Replace the graph in `directory` by its plan. Raises `CompileFailed`."""
        with Interrupt() as interrupt:
            data = self._build(directory / GRAPH, weights_sha256, progress, interrupt)
        with (directory / PLAN).open("wb") as file:
            file.write(data)
        Plan(
            runtime=self.runtime,
            runtime_version=self._trt.__version__,
            compute_capability=self.device.capability,
            dtype=self.form.dtype.name,
            max_sequences=self.shapes.max_sequences,
            max_rows=self.shapes.max_rows,
            cache_length=self.shapes.cache_length,
            weights_sha256=weights_sha256,
            num_bytes=data.nbytes,
            memory=self._needed._asdict(),
            provenance=provenance,
        ).write(directory)
        for name in (GRAPH, f"{GRAPH}.data"):
            (directory / name).unlink(missing_ok=True)

    def _build(self, graph: Path, name: str, progress: Progress, interrupt: Interrupt) -> Any:
        """`name`: what the plan calls itself when it is loaded."""
        trt = self._trt
        log = make_logger(trt)
        builder = trt.Builder(log)
        strongly_typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        network = builder.create_network(strongly_typed)
        parser = trt.OnnxParser(network, log)
        if not parser.parse_from_file(str(graph)):
            errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
            raise CompileFailed(f"{self.runtime} cannot read the graph: {shorten(errors)}")
        network.name = name
        config = builder.create_builder_config()
        config.add_optimization_profile(self._profile(builder, network))
        if self._capability is not None:
            config.num_compute_capabilities = 1
            config.set_compute_capability(self._capability, 0)
        self._timing.load(config)
        title = f"compile for {self.device.capability}"
        config.progress_monitor = make_monitor(trt, progress, title, interrupt)
        data = None
        if not interrupt.requested:
            data = builder.build_serialized_network(network, config)
        if interrupt.requested:
            raise KeyboardInterrupt
        if data is None:
            raise CompileFailed(f"{self.runtime} cannot compile the graph: {shorten(log.errors)}")
        if unsaved := self._timing.save():
            self._announce(unsaved)
        return memoryview(data)

    def _profile(self, builder: Any, network: Any) -> Any:
        axes = self.shapes.axes()
        profile = builder.create_optimization_profile()
        for i in range(network.num_inputs):
            tensor = network.get_input(i)
            # The cache's only free axis is the first.
            names = INPUTS[tensor.name].axes if tensor.name in INPUTS else ("B", "H", "S", "D")
            sizes = list(zip(names, tensor.shape, strict=True))
            for name, size in sizes:
                assert (size == -1) == (name in axes), (tensor.name, name, size)
            shapes = [
                tuple(axes[str(name)][k] if size == -1 else size for name, size in sizes)
                for k in range(3)
            ]
            profile.set_shape(tensor.name, *shapes)
        return profile


def _capability(trt: Any, capability: str, precision: TensorRTPrecision) -> Any:
    """TensorRT's own constant, or None where it compiles for the present card only."""
    least = _MIN_CAPABILITY.get(precision.value, 0)
    if _number(capability) < least:
        raise InvalidRequest(
            f"--precision {precision.value} needs SM{least} or newer: the card is {capability}"
        )
    known = getattr(trt, "ComputeCapability", None)
    if known is None:
        present = present_device()
        if present is None or present.capability != capability:
            found = present.capability if present else "none"
            raise InvalidRequest(
                f"tensorrt compiles for the card it runs on, which is {found}, not {capability}: "
                f"run on such a card, or use --runtime tensorrt-rtx"
            )
        return None
    names = [name for name in known.__members__ if name.startswith("SM")]
    if capability not in names:
        raise InvalidRequest(
            f"this TensorRT cannot compile for {capability}: allowed are {', '.join(names)}"
        )
    return getattr(known, capability)


def _number(capability: str) -> int:
    digits = capability.removeprefix("SM")
    if not capability.startswith("SM") or not digits.isdigit():
        raise InvalidRequest(f"--capability {capability!r}: expected the form SM89")
    return int(digits)


def present_device() -> Device | None:
    """The card of this machine, if there is one."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return Device(
        f"SM{properties.major}{properties.minor}",
        properties.name,
        properties.total_memory / (1 << 30),
    )
