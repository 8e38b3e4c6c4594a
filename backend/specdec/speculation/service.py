"""Everything behind `speculative`'s three Triton callbacks, without Triton.

A request becomes sequences here; their chunks become response tensors here.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from specdec.artifact import Artifact
from specdec.config import SpeculativeConfig
from specdec.drafters import NONE, drafter_class
from specdec.drafters.base import Drafter
from specdec.errors import DecoderFailed, Overloaded, SpecdecError
from specdec.speculation.controller import Controller
from specdec.speculation.costs import CostModel
from specdec.speculation.draft_models import (
    check_models,
    model_of,
    offered_drafters,
    target_dir,
)
from specdec.speculation.engine import Engine
from specdec.speculation.metrics import Metrics
from specdec.speculation.planner import DraftModel
from specdec.speculation.request_parser import Limits, ParsedRequest, parse
from specdec.speculation.responses import Responder, Response
from specdec.speculation.sequence import Sequence
from specdec.speculation.stream import TextStream
from specdec.speculation.tokenization import TextTokenizer
from specdec.types import Chunk, Decoder, DecoderInfo, Request
from specdec.wire import Arrays

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 60.0  # how long a request waits for the target to be loaded
RETRY_SECONDS = 0.1


class Client(Protocol):
    """One request's way back; neither method blocks."""

    cancelled: bool

    def send(self, make: Response, *, final: bool) -> None:
        """Call `make` later, in the order of sends, and send what it returns, if anything."""
        ...

    def fail(self, error: SpecdecError) -> None: ...


class RequestSinks:
    """The sinks of one request's prompts: one client, exactly one final flag."""

    def __init__(self, client: Client, responder: Responder, num_prompts: int) -> None:
        self._client = client
        self._responder = responder
        self._num_open = num_prompts
        self._failed = False

    @property
    def cancelled(self) -> bool:
        return self._client.cancelled

    @property
    def closed(self) -> bool:
        return self._failed

    def chunk(self, index: int, sequence: Sequence, chunk: Chunk) -> None:
        if self._failed:
            return
        self._num_open -= chunk.finish_reason is not None
        # Made by whoever sends it: the engine's thread goes on with the next step.
        make = partial(self._responder.add, index, sequence, chunk)
        self._client.send(make, final=self._num_open == 0)

    def fail(self, error: SpecdecError) -> None:
        """The first failure ends the request; its other prompts are dropped at the next step."""
        if not self._failed and self._num_open:
            self._failed = True
            self._client.fail(error)


class PromptSink:
    """The `Sink` of one prompt."""

    def __init__(self, sinks: RequestSinks, index: int) -> None:
        self._sinks = sinks
        self._index = index

    @property
    def cancelled(self) -> bool:
        return self._sinks.cancelled

    @property
    def closed(self) -> bool:
        return self._sinks.closed

    def chunk(self, sequence: Sequence, chunk: Chunk) -> None:
        self._sinks.chunk(self._index, sequence, chunk)

    def fail(self, error: SpecdecError) -> None:
        self._sinks.fail(error)


class Service:
    """Owns the tokenizer, the drafters and the engine's thread."""

    def __init__(
        self,
        config: SpeculativeConfig,
        repository: Path,
        connect: Callable[[str], Decoder],
    ) -> None:
        """Read and check everything that needs no decoder.

        Args:
            repository: the folder that holds the target's and the draft's model folders.
            connect: a decoder by model name; it is first called once models are loaded.

        Raises:
            InvalidArtifact, InvalidConfig: the server must not start.
        """
        self._config = config
        self._connect = connect
        directory = target_dir(config, repository)
        self._artifact = Artifact.read(directory)
        self._tokenizer = TextTokenizer.from_directory(directory)
        check_models(config, directory, repository)
        self.drafters = offered_drafters(config)
        self._instances: dict[str, Drafter] = {}
        self.metrics = Metrics()
        self._ids = itertools.count(secrets.randbits(48))
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def handle(self, arrays: Arrays, parameters: Mapping[str, object], client: Client) -> None:
        """Take one request; every outcome, errors included, goes to `client`."""
        try:
            if not self._ready.wait(CONNECT_SECONDS):
                raise Overloaded("the target model is not loaded yet; try again later")
            self._engine.submit(self._sequences(self._parse(arrays, parameters), client))
        except SpecdecError as error:
            client.fail(error)
        except Exception:
            logger.exception("a request could not be taken")
            client.fail(SpecdecError("internal error"))

    def stop(self) -> None:
        """End open requests with an error and return once their final flags are queued."""
        self._stopping.set()
        if self._ready.is_set():
            self._engine.stop()
        self._thread.join()

    def _parse(self, arrays: Arrays, parameters: Mapping[str, object]) -> ParsedRequest:
        return parse(arrays, dict(parameters), self._tokenizer, self._config, self._limits)

    def _sequences(self, parsed: ParsedRequest, client: Client) -> list[Sequence]:
        sinks = RequestSinks(client, Responder(parsed), len(parsed.prompts))
        sequences = []
        for index, request in enumerate(parsed.prompts):
            num_draft_tokens = request.num_draft_tokens
            if num_draft_tokens is None:
                num_draft_tokens = self._config.num_draft_tokens
            sequences.append(
                Sequence(
                    next(self._ids),
                    request,
                    TextStream(self._tokenizer, request, request.sampling.end_ids),
                    PromptSink(sinks, index),
                    self._instances.get(request.drafter or self._config.drafter),
                    num_draft_tokens,
                    not self._is_adaptive(request),
                )
            )
        return sequences

    def _is_adaptive(self, request: Request) -> bool:
        return self._config.adaptive if request.adaptive is None else request.adaptive

    # ---- the engine's thread -------------------------------------------------------------

    def _run(self) -> None:
        connected = self._wait_for(self._config.target_model_name)
        if connected is None:
            return
        target, info = connected
        models: dict[str, DraftModel] = {}  # by drafter
        shared: dict[str, tuple[Decoder, CostModel]] = {}  # by model: drafters may share one
        for name in self.drafters:
            if name == NONE:
                continue
            kind, draft = drafter_class(name), None
            if model_name := model_of(kind, self._config):
                if model_name not in shared:
                    found = self._wait_for(model_name)
                    if found is None:
                        return
                    shared[model_name] = found[0], CostModel.fit(found[1].costs)
                draft, cost = shared[model_name]
                models[name] = DraftModel(cost, kind.grows_trees, is_optional=not kind.needs_model)
            self._instances[name] = kind(draft)
        self._limits = Limits(
            max_sequence_length=info.max_sequence_length,
            vocab_size=info.vocab_size,
            end_ids=self._artifact.end_ids,
            drafters=self.drafters,
        )
        self._engine = Engine(
            self._config,
            target,
            max_sequences=info.max_sequences,
            metrics=self.metrics,
            controller=Controller(
                CostModel.fit(info.costs),
                models,
                self.drafters,
                {name: drafter.first_odds for name, drafter in self._instances.items()},
            ),
        )
        logger.info(
            "target ready: %s, %s, min_rows %d, %d sequences of %d tokens; drafters: %s",
            info.precision,
            info.exactness,
            info.min_rows,
            info.max_sequences,
            info.max_sequence_length,
            ", ".join(self.drafters),
        )
        self._ready.set()
        if self._stopping.is_set():  # `stop` may have looked before there was an engine
            self._engine.stop()
        self._engine.run()

    def _wait_for(self, model_name: str) -> tuple[Decoder, DecoderInfo] | None:
        """Models load side by side and BLS is refused until the server is up: ask again."""
        decoder = self._connect(model_name)
        while not self._stopping.is_set():
            try:
                decoder.reset()
                return decoder, decoder.describe()
            except DecoderFailed as error:
                logger.debug("waiting for %s: %s", model_name, error)
                time.sleep(RETRY_SECONDS)
        return None
