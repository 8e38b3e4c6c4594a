"""An engine over scripted decoders, stepped by the test itself."""

from __future__ import annotations

import itertools

from specdec.config import SpeculativeConfig
from specdec.drafters.auto import AutoDrafter
from specdec.drafters.draft_model import DraftModelDrafter
from specdec.drafters.eagle import EagleDrafter
from specdec.drafters.ngram import NgramDrafter
from specdec.drafters.recycle import RecycleDrafter
from specdec.speculation.controller import Controller
from specdec.speculation.costs import CostModel
from specdec.speculation.engine import Engine
from specdec.speculation.metrics import Metrics
from specdec.speculation.sequence import Sequence
from specdec.speculation.stream import TextStream
from specdec.types import Request, SamplingParams
from support.fakes import (
    NumberTokenizer,
    RecordingSink,
    ScriptedDecoder,
    ScriptedDrafter,
    ScriptedTreeDrafter,
    hash_text,
)
from support.scripted_head import ScriptedHead

DRAFTERS = (
    "none", "ngram", "recycle", "auto", "scripted", "scripted_tree", "draft_model", "eagle",
    "auto+head",
)  # fmt: skip


def make_drafter(name, draft=None, is_wrong=lambda position: False, **sizes):
    """Every drafter kind the engine knows, over scripted models of these sizes."""
    if name == "draft_model":
        return DraftModelDrafter(draft or ScriptedDecoder(wrong_at(is_wrong), **sizes))
    if name in {"eagle", "auto+head"}:
        kind = EagleDrafter if name == "eagle" else AutoDrafter
        return kind(draft or ScriptedHead(wrong_at(is_wrong), **sizes))
    return {
        "none": lambda: None,
        "ngram": NgramDrafter,
        "recycle": RecycleDrafter,
        "auto": AutoDrafter,
        "scripted": lambda: ScriptedDrafter(hash_text, is_wrong),
        "scripted_tree": lambda: ScriptedTreeDrafter(hash_text, is_wrong),
    }[name]()


def wrong_at(is_wrong):
    """A draft model that errs where `is_wrong(position)` says."""
    return lambda token_ids: 0 if is_wrong(len(token_ids)) else hash_text(token_ids)


class Harness:
    """Submit prompts, step until done, look at what was called."""

    def __init__(self, *, target=None, **config):
        self.target = target or ScriptedDecoder()
        self.metrics = Metrics()
        self.engine = Engine(
            SpeculativeConfig(**config),
            self.target,
            max_sequences=self.target.info.max_sequences,
            metrics=self.metrics,
            controller=Controller(CostModel.fit(()), {}, DRAFTERS),
        )
        self.sinks: list[RecordingSink] = []
        self._ids = itertools.count(1)

    def submit(
        self,
        prompt_ids,
        max_tokens=20,
        *,
        drafter=None,
        num_draft_tokens=0,
        stop_words=(),
        cache_salt=0,
        **sampling,
    ):
        request = Request(
            tuple(prompt_ids),
            max_tokens,
            SamplingParams(**sampling),
            tuple(stop_words),
            cache_salt=cache_salt,
        )
        sink = RecordingSink()
        text = TextStream(NumberTokenizer(), request, request.sampling.end_ids)
        sequence = Sequence(next(self._ids), request, text, sink, drafter, num_draft_tokens)
        self.engine.submit([sequence])
        self.sinks.append(sink)
        return sink

    def step(self, count=1):
        for _ in range(count):
            self.engine.step()

    def run(self, max_steps=2000):
        scheduler = self.engine.scheduler
        for _ in range(max_steps):
            if not (scheduler.waiting or scheduler.running):
                break
            self.engine.step()
        self.check_idle()

    def check_idle(self):
        """Nothing is left behind: no slot, no queue entry, and every client was ended once."""
        assert not self.engine.scheduler.running
        assert not self.engine.scheduler.waiting
        assert not self.target.caches
        assert [sink.num_endings for sink in self.sinks] == [1] * len(self.sinks)
