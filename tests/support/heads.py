"""A real EAGLE head of toy size: random weights, trained folder and artifact in a second."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = (0, 1, 2)  # of a target of two layers; the last: what enters its final norm
STATIC_IDS = tuple(range(3, 320, 3))
DRAFT = {"feature_layers": (0,), "reads_token": False, "num_blocks": 2}  # config of a draft


def random_head(model: Path, *, seed: int = 0, **config: Any) -> tuple[Any, Any]:
    """(torch Head, Target) for a tiny model's directory."""
    import torch

    from specdec.export.sources import HuggingFaceSource
    from specdec.export.training.head import Head, HeadConfig, shape_of
    from specdec.export.training.target import Target

    source = HuggingFaceSource(model)
    target = Target.read(source.config, source.weights)
    generator = torch.Generator().manual_seed(seed)
    head = Head(HeadConfig(**{"feature_layers": LAYERS, **config}), shape_of(target))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
            if parameter.ndim > 1:
                parameter.mul_(parameter.shape[1] ** -0.5)
            else:
                parameter.mul_(0.1).add_(1.0)
        for scale in head.buffers():  # of features, where it reads any beside a token
            scale.copy_(1 + 0.1 * torch.randn(scale.shape, generator=generator))
    return head, target


def write_head(directory: Path, head: Any, static_ids: tuple[int, ...] = STATIC_IDS) -> Path:
    """What training leaves; returns `directory`."""
    import torch
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    ids = np.asarray(static_ids, np.int64)
    d2t = torch.from_numpy(ids - np.arange(len(ids)))
    save_file({**head.state_dict(), "d2t": d2t}, directory / "model.safetensors")
    content = {"config": asdict(head.config), "shape": asdict(head.shape)}
    (directory / "config.json").write_text(json.dumps(content))
    return directory


def ship_head(weights: Path, head: Any, target: Path) -> Path:
    """Lay a head or a draft below `weights` as the project ships one; `target`: the exported one's
    version directory. Returns the trained folder."""
    from specdec.artifact import Artifact

    kind = "eagle" if head.config.reads_token else "draft"
    trained = write_head(weights / "tiny" / kind, head)
    described, path = Artifact.read(target), trained / "config.json"
    names = ("source", "weights_sha256", "vocabulary_sha256")
    record = {"target": {name: getattr(described, name) for name in names}}
    path.write_text(json.dumps(json.loads(path.read_text()) | record))
    return trained


def export_tiny_head(directory: Path, target: Path, head: Any, precision: str = "fp32") -> Path:
    """Export for the exported target; returns the artifact's directory, `directory`/head/1."""
    from rich.progress import Progress

    from specdec.export.head_exporter import export_head
    from specdec.export.quantize import Precision

    trained = write_head(directory / "trained", head)
    with Progress(disable=True) as progress:
        made = export_head(
            trained,
            target,
            directory / "head",
            precision=Precision(precision),
            progress=progress,
        )
    return made.directory
