"""What a training leaves: a folder that `specdec export head` or `draft` turns into a graph.

    model.safetensors   the head's tensors in float16, and d2t and t2d as EAGLE-3 stores them:
                        names are those of vllm-project/speculators where it has the same tensor
    config.json         config and shape of the head, and how it was made
    evaluation.json     acceptance by position and source
    training.png        loss and acceptance over time

The embedding and the LM head are the target's own and not in here.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from specdec.errors import InvalidArtifact
from specdec.export.training.block import BlockShape
from specdec.export.training.evaluation import Acceptance, Evaluation
from specdec.export.training.head import Head, HeadConfig, describe
from specdec.export.training.vocabulary import DraftVocabulary

WEIGHTS, CONFIG, EVALUATION, PLOT = (
    "model.safetensors",
    "config.json",
    "evaluation.json",
    "training.png",
)


def write_head(
    directory: Path, head: Head, vocabulary: DraftVocabulary, made: dict[str, Any]
) -> None:
    """Weights and config; `made`: plain data about the training."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.cpu().to(torch.float16).contiguous() for k, v in head.state_dict().items()}
    tensors["d2t"] = torch.from_numpy(vocabulary.d2t)
    tensors["t2d"] = torch.from_numpy(vocabulary.t2d)
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    config = {**describe(head.config, head.shape), "draft_vocab_size": len(vocabulary), **made}
    (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def read_trained(directory: Path) -> tuple[Head, DraftVocabulary]:
    """A trained head as it was left. Raises `InvalidArtifact`: there is none."""
    from safetensors import SafetensorError, safe_open

    try:
        found = json.loads((directory / CONFIG).read_bytes())
        config, shape = found["config"], found["shape"]
        layers = tuple(config["feature_layers"])
        head = Head(HeadConfig(**{**config, "feature_layers": layers}), BlockShape(**shape))
        with safe_open(directory / WEIGHTS, "pt") as file:
            maps = (file.get_tensor(name).numpy() for name in ("d2t", "t2d"))
            vocabulary = DraftVocabulary.of_maps(*maps)
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise InvalidArtifact(f"{directory} holds nothing trained: {error}") from None
    read_head(directory, head)
    return head, vocabulary


def read_head(directory: Path, head: Head) -> None:
    """Load weights into a head of the same config and shape.

    Raises `InvalidArtifact`: there are none, or they are of another head.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(directory / WEIGHTS)
        # No weight belongs to an id, but maps that contradict each other are no head's.
        DraftVocabulary.of_maps(tensors.pop("d2t").numpy(), tensors.pop("t2d").numpy())
        head.load_state_dict(tensors)
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidArtifact(f"{directory} holds no head like this one: {reason}") from None


def write_evaluation(directory: Path, evaluation: Evaluation) -> None:
    """See `plain`."""
    (directory / EVALUATION).write_text(json.dumps(plain(evaluation), indent=2) + "\n")


def plain(evaluation: Evaluation) -> dict[str, Any]:
    """As numbers, by source."""
    return {
        name: {
            "overall": _plain(evaluation.total(with_request=flag)),
            **{source: _plain(part) for source, part in sorted(parts.items())},
        }
        for name, flag, parts in (
            ("with_request_vocabulary", True, evaluation.with_request),
            ("static_vocabulary", False, evaluation.static_only),
        )
    }


def _plain(part: Acceptance) -> dict[str, Any]:
    """None where nothing was offered: JSON has no NaN."""
    rates = [None if math.isnan(rate) else round(rate, 4) for rate in part.rates]
    length = round(part.acceptance_length, 3) if part.num_passes else None
    return {"acceptance": rates, "offered": part.offered.tolist(), "tokens_per_pass": length}


def plot(path: Path, history: list[dict[str, float]], evaluation: Evaluation | None) -> bool:
    """Loss, agreement and, by position, acceptance; False where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="tight")
    minutes = [line["seconds"] / 60 for line in history]
    left.plot(minutes, [line["loss"] for line in history])
    left.set(title="Loss (sum over the steps unrolled)", xlabel="minutes", ylabel="nats")
    for step in range(max((_num_unrolled(line) for line in history), default=0)):
        name = f"agreement_{step}"
        known = [(m, line[name]) for m, line in zip(minutes, history, strict=True) if name in line]
        middle.plot(*zip(*known, strict=True), label=f"step {step}")
    middle.set(title="Agreement with the target, training texts", xlabel="minutes", ylim=(0, 1))
    middle.legend()
    if evaluation is not None:
        for source, part in sorted(evaluation.with_request.items()):
            right.plot(range(len(part.rates)), part.rates, marker=".", label=source, alpha=0.6)
        right.plot(evaluation.total().rates, marker="o", color="black", label="overall")
        right.legend(fontsize="small")
    right.set(title="Acceptance by position, held-out prompts", xlabel="position", ylim=(0, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _num_unrolled(line: dict[str, float]) -> int:
    return sum(name.startswith("agreement_") for name in line)
