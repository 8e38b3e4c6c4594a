"""Triton glue of the decoder backend: tensors in, one decoder call, tensors out.

A model whose configuration says `backend: "specdec"` is served by this file. Target, draft and
head differ only in their artifact and parameters. One instance, not decoupled: a decoupled callee's
error would hang its caller.
"""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from specdec import frame, wire
from specdec.config import DecoderConfig, from_parameters
from specdec.decoder.load import load
from specdec.errors import SpecdecError


class TritonPythonModel:
    """One decoder or head: `target`, `draft` or `eagle`."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Declare the one tensor each way, so that no config.pbtxt does."""
        config.set_max_batch_size(0)
        config.add_input({"name": frame.INPUT, "data_type": "TYPE_UINT8", "dims": [-1]})
        config.add_output({"name": frame.OUTPUT, "data_type": "TYPE_UINT8", "dims": [-1]})
        return config

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and probe its exactness; a clear line in the log either way."""
        name = args["model_name"]
        parameters = json.loads(args["model_config"]).get("parameters", {})
        values = {key: entry["string_value"] for key, entry in parameters.items()}
        try:
            config = from_parameters(DecoderConfig, values)
            self._decoder = load(config, Path(pb_utils.get_model_dir()))
        except SpecdecError as error:
            raise pb_utils.TritonModelException(f"{name}: {error}") from None
        info = self._decoder.info
        pb_utils.Logger.log_info(
            f"{name}: {info.precision}, exactness: {info.exactness}, min_rows {info.min_rows}, "
            f"{info.max_sequences} sequences of {info.max_sequence_length} tokens, "
            f"{config.threads} threads"
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request. Calls follow one another: the decoder has one cache."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            (call,) = request.inputs()
            results = wire.serve(self._decoder, frame.unpack(call.as_numpy(), wire.INPUTS))
            tensor = pb_utils.Tensor(frame.OUTPUT, frame.pack(results, wire.OUTPUTS))
            return pb_utils.InferenceResponse(output_tensors=[tensor])
        except SpecdecError as error:
            message = str(error)
        except Exception:  # the caller gets no traceback, the operator does
            pb_utils.Logger.log_error(traceback.format_exc())
            message = "internal error, see the server's log"
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(message))
