"""The whole serving stack in one process: real models, real wire arrays, no Triton."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from specdec.config import DecoderConfig, SpeculativeConfig
from specdec.decoder.load import load
from specdec.speculation.service import Service
from specdec.wire import RemoteDecoder, serve


class RecordingClient:
    """Collects responses; `wait` returns when the one final flag has come."""

    def __init__(self) -> None:
        self.cancelled = False
        self.responses: list[dict[str, np.ndarray]] = []
        self.error: Exception | None = None
        self.num_final = 0
        self._done = threading.Event()

    def send(self, make, *, final):
        assert not self.num_final, "a response after the final flag"
        arrays = make()
        assert arrays is not None or not final, "the last chunk must carry a response"
        if arrays is not None:
            self.responses.append(arrays)
        if final:
            self._end()

    def fail(self, error):
        assert not self.num_final, "an error after the final flag"
        self.error = error
        self._end()

    def _end(self):
        self.num_final += 1
        self._done.set()

    def wait(self, seconds=60.0):
        assert self._done.wait(seconds), "no final flag"
        return self

    def rows(self, name, index=0):
        """All deltas of an output for one prompt, joined."""
        found = []
        for response in self.responses:
            for row, batch_index in enumerate(response["batch_index"][:, 0]):
                if batch_index == index and name in response:
                    found.append(response[name][row])
        return found

    def ids(self, index=0):
        return [int(t) for row in self.rows("output_ids", index) for t in row if t >= 0]

    def logprobs(self, index=0):
        return [p for row in self.rows("output_log_probs", index) for p in row.ravel().tolist()]

    def text(self, index=0):
        return b"".join(self.rows("text_output", index)).decode()

    def finish_reason(self, index=0):
        return self.rows("finish_reason", index)[-1].decode()


def arrays(text="", **inputs):
    """Request tensors with their leading batch dim, [1, n]."""
    kinds = {int: np.int32, bool: np.bool_, float: np.float32}
    tensors = {"text_input": np.array([[text.encode()]], dtype=np.object_)}
    for name, value in inputs.items():
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if name == "seed":
            tensors[name] = np.array([values], dtype=np.uint64)
        elif isinstance(values[0], str):
            tensors[name] = np.array([[v.encode() for v in values]], dtype=np.object_)
        else:
            tensors[name] = np.array([values], dtype=kinds[type(values[0])])
    return tensors


class InProcessServer:
    """A `Service` whose decoders are local; every call still crosses the wire format."""

    def __init__(
        self,
        repository: Path,
        *,
        models: dict[str, Path],
        max_sequences=16,
        max_length=512,
        **config,
    ) -> None:
        """`models`: name -> artifact directory, e.g. {"target": ..., "draft": ...}."""
        for name, artifact in models.items():
            (repository / name).mkdir(parents=True, exist_ok=True)
            (repository / name / "1").symlink_to(artifact, target_is_directory=True)
        sizes = DecoderConfig(
            max_sequences=max_sequences, max_sequence_length=max_length, num_threads=1
        )
        self.decoders = {n: load(sizes, path) for n, path in models.items()}
        for name, parameter in (("draft", "draft_model_name"), ("eagle", "head_model_name")):
            if name in models:
                config.setdefault(parameter, name)
        config.setdefault("adaptive", False)  # draft lengths are what the tests ask for
        self.service = Service(SpeculativeConfig(**config), repository, self._connect)

    def _connect(self, name):
        decoder = self.decoders[name]
        return RemoteDecoder(lambda inputs, wanted: serve(decoder, inputs))

    def submit(self, text="", parameters=None, **inputs):
        inputs = {
            "max_tokens": 24,
            "stream": True,
            "return_output_ids": True,
            "end_id": -1,
        } | inputs
        client = RecordingClient()
        self.service.handle(arrays(text, return_log_probs=True, **inputs), parameters or {}, client)
        return client

    def stop(self):
        self.service.stop()
