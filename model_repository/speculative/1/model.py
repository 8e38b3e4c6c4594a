"""Triton's view of `speculative`: a decoupled BLS model with one scheduler thread.

All decisions live in specdec.speculation; this file only forwards callbacks.
"""

import json
import logging
import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

from specdec.config import DecoderConfig, SpeculativeConfig, from_parameters
from specdec.errors import InvalidRequest
from specdec.speculation.draft_models import head_dir, target_dir, with_models_inside
from specdec.speculation.publisher import MetricsPublisher
from specdec.speculation.service import Service
from specdec.speculation.triton_io import BlsTransport, EndingWatch, Outbox, read_request
from specdec.wire import RemoteDecoder

SWITCH_SECONDS = 0.0005  # a busy thread may delay a BLS hop by two of these; the default is 5 ms


def load_here(config, repository, before_pass):
    """By name, the models that are to run in this process."""
    here = {}
    if config.target_in_process:
        from specdec.decoder.local import load_local_decoder

        sizes = DecoderConfig(
            max_sequences=config.max_running,
            max_sequence_length=config.target_max_sequence_length,
            num_threads=config.target_num_threads,
            device=config.target_device,
        )
        directory = target_dir(config, repository)
        here[config.target_model_name] = load_local_decoder(directory, sizes, before_pass)
    if config.head_model_name and config.head_in_process:
        from specdec.decoder.local import load_local_head

        here[config.head_model_name] = load_local_head(
            head_dir(config, repository),
            max_sequences=config.max_running,
            num_threads=config.head_num_threads,
        )
    return here


class TritonPythonModel:
    def initialize(self, args):
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="specdec: %(message)s")
        sys.setswitchinterval(SWITCH_SECONDS)
        parameters = json.loads(args["model_config"]).get("parameters", {})
        values = {name: value["string_value"] for name, value in parameters.items()}
        folder = Path(args["model_repository"])
        repository = folder.parent
        config = from_parameters(SpeculativeConfig, values)
        config = with_models_inside(config, folder / args["model_version"])
        self._outbox = Outbox()
        ending = EndingWatch()

        def before_pass():
            ending()
            self._outbox.poll()

        here = load_here(config, repository, before_pass)

        def connect(model_name):
            if model_name in here:
                return here[model_name]
            return RemoteDecoder(BlsTransport(model_name, self._outbox.poll))

        self._service = Service(config, repository, connect)
        self._publisher = MetricsPublisher(
            pb_utils.MetricFamily,
            self._service.metrics,
            args["model_name"],
            config.max_draft_tokens,
        )

    def execute(self, requests):
        for request in requests:
            client = self._outbox.open(request)
            try:
                arrays, parameters = read_request(request)
            except InvalidRequest as error:
                client.fail(error)
            else:
                self._service.handle(arrays, parameters, client)

    def finalize(self):
        self._service.stop()
        self._publisher.stop()
        self._outbox.stop()
        del self._publisher  # a metric that outlives this call takes the process down at its end
