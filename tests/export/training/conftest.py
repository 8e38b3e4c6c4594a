"""A toy target, and texts it wrote greedily, features beside them as transformers gives them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from specdec.export.sources import HuggingFaceSource
from specdec.export.training.corpus import Corpus, Text
from specdec.export.training.head import Head, HeadConfig, shape_of
from specdec.export.training.initialise import initialise
from specdec.export.training.options import Start
from specdec.export.training.target import Target
from specdec.export.training.vocabulary import DraftVocabulary
from support.tiny import write_tiny_llama

LAYERS = (0, 1, 2)  # of a target of two; the last: what enters its final norm
NUM_TEXTS, NUM_NEW = 32, 16


class Toy(NamedTuple):
    source: HuggingFaceSource
    target: Target
    corpus: Corpus

    @property
    def vocabulary(self) -> DraftVocabulary:
        """Every id the corpus holds."""
        counts = self.corpus.counts(self.target.head.shape[0])
        return DraftVocabulary.choose(counts, size=320, always=(0, 1, 2))

    def head(self, *, seed: int = 0, start: Start = Start.random, **config: Any) -> Head:
        head = Head(HeadConfig(**{"feature_layers": LAYERS, **config}), shape_of(self.target))
        initialise(
            head,
            self.target,
            self.source.weights,
            sample_of(self.corpus, head.config.feature_layers),
            start,
            seed=seed,
        )
        return head


def sample_of(corpus: Corpus, layers: Sequence[int]) -> Tensor:
    features = torch.from_numpy(np.concatenate([t.features for t in corpus.texts]))
    parts = features.view(len(features), len(corpus.feature_layers), -1)
    return parts[:, [corpus.feature_layers.index(n) for n in layers]].flatten(1)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    directory = tmp_path_factory.mktemp("toy")
    # Widely spread weights: a target that is sure of its tokens can be learnt in seconds.
    source = HuggingFaceSource(write_tiny_llama(directory / "model", spread=1.0))
    generator = np.random.default_rng(0)
    texts = [
        write_text(source.reference, generator.integers(3, 320, int(generator.integers(4, 12))))
        for _ in range(NUM_TEXTS)
    ]
    target = Target.read(source.config, source.weights)
    return Toy(source, target, Corpus(texts, LAYERS, target.hidden_size))


def write_text(model: Any, prompt: np.ndarray, *, num_new: int = NUM_NEW) -> Text:
    """A greedy answer, cut at no end token."""
    token_ids = [int(i) for i in prompt]
    with torch.inference_mode():
        for _ in range(num_new):
            token_ids.append(int(model(torch.tensor([token_ids])).logits[0, -1].argmax()))
    return Text(
        number=0,
        token_ids=np.array(token_ids, np.int64),
        num_prompt_tokens=len(prompt),
        likeliest=np.array(token_ids[len(prompt) :], np.int64),
        temperature=0.0,
        source="toy",
        features=streams(model, token_ids[:-1], LAYERS).half().numpy(),
    )


def streams(model: Any, token_ids: Sequence[int], layers: Sequence[int]) -> Tensor:
    """What enters these layers (the last number: the final norm), side by side: [n, layers * H]."""
    caught: dict[int, Tensor] = {}
    modules = [*model.model.layers, model.model.norm]

    def catch(layer: int, args: Any, kwargs: Any) -> None:
        caught[layer] = args[0] if args else kwargs["hidden_states"]

    hooks = [
        modules[n].register_forward_pre_hook(
            lambda module, args, kwargs, n=n: catch(n, args, kwargs), with_kwargs=True
        )
        for n in layers
    ]
    with torch.inference_mode():
        model(torch.tensor([list(token_ids)]))
    for hook in hooks:
        hook.remove()
    return torch.cat([caught[n][0] for n in layers], dim=-1)


@pytest.fixture
def checkpoint_dir(tmp_path: Path) -> Path:
    return tmp_path / "training"
