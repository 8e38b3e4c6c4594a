"""The tensors of the public models `speculative` and `ensemble`, written once.

Names, types and dims are those of the `tensorrt_llm_bls` and `ensemble` models that NVIDIA removed
from TensorRT-LLM in 2026, with the spellings older clients still send (random_seed, min_length,
streaming) and what this server adds (messages, input_ids, drafter, min_p, ...). Over gRPC an
undeclared input is an error, so every name fleets send is declared; `request_parser` honours each
one or refuses it by name. The original's `reshape: []` only changed what its Python code saw, not
the wire, and is left out.

`python -m specdec.speculation.contract MODEL_REPOSITORY` writes both config.pbtxt files.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec.config import SpeculativeConfig

MAX_BATCH_SIZE = 64  # prompts in one request
MODEL, ALIAS = "speculative", "ensemble"

# Triton datatype -> numpy type of the array that carries it.
NUMPY_TYPES: dict[str, Any] = {
    "STRING": np.object_,
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
}


class Field(NamedTuple):
    name: str
    datatype: str
    dims: tuple[int, ...]  # without the leading batch dim; -1: any
    optional: bool = True


_ONE, _ANY = (1,), (-1,)

INPUTS: tuple[Field, ...] = (
    # The prompt: exactly one of text_input, messages, input_ids; text_input may be "".
    Field("text_input", "STRING", _ONE, optional=False),
    Field("messages", "STRING", _ONE),  # JSON [{"role": ..., "content": ...}, ...]
    Field("input_ids", "INT32", _ANY),
    Field("decoder_text_input", "STRING", _ONE),
    Field("image_input", "FP16", (-1, 3, -1, -1)),
    Field("image_bytes_input", "UINT8", (-1, -1, -1, -1)),
    Field("image_url_input", "STRING", _ONE),
    Field("video_bytes_input", "UINT8", (-1, -1, -1, -1)),
    # Where it ends.
    Field("max_tokens", "INT32", _ONE, optional=False),
    Field("min_tokens", "INT32", _ONE),
    Field("min_length", "INT32", _ONE),  # older spelling of min_tokens
    Field("stop_words", "STRING", _ANY),
    Field("bad_words", "STRING", _ANY),
    Field("end_id", "INT32", _ONE),
    Field("pad_id", "INT32", _ONE),
    # Sampling.
    Field("temperature", "FP32", _ONE),
    Field("top_k", "INT32", _ONE),
    Field("top_p", "FP32", _ONE),
    Field("min_p", "FP32", _ONE),
    Field("repetition_penalty", "FP32", _ONE),
    Field("presence_penalty", "FP32", _ONE),
    Field("frequency_penalty", "FP32", _ONE),
    Field("length_penalty", "FP32", _ONE),
    Field("seed", "UINT64", _ONE),
    Field("random_seed", "UINT64", _ONE),  # older spelling of seed
    Field("beam_width", "INT32", _ONE),
    Field("num_return_sequences", "INT32", _ONE),
    Field("embedding_bias_words", "STRING", _ANY),
    Field("embedding_bias_weights", "FP32", _ANY),
    Field("guided_decoding_guide_type", "STRING", _ONE),
    Field("guided_decoding_guide", "STRING", _ONE),
    # Speculation.
    Field("num_draft_tokens", "INT32", _ONE),
    Field("adaptive", "BOOL", _ONE),
    Field("drafter", "STRING", _ONE),
    Field("use_draft_logits", "BOOL", _ONE),
    Field("cache_salt", "STRING", _ONE),  # what it leaves behind serves the same salt alone
    # What comes back, and how.
    Field("stream", "BOOL", _ONE),
    Field("streaming", "BOOL", _ONE),  # older spelling of stream
    Field("exclude_input_in_output", "BOOL", _ONE),
    Field("return_log_probs", "BOOL", _ONE),
    Field("return_context_logits", "BOOL", _ONE),
    Field("return_generation_logits", "BOOL", _ONE),
    Field("return_perf_metrics", "BOOL", _ONE),
    Field("return_num_input_tokens", "BOOL", _ONE),
    Field("return_num_output_tokens", "BOOL", _ONE),
    Field("return_output_ids", "BOOL", _ONE),
    Field("return_finish_reason", "BOOL", _ONE),  # it is always returned
    # Adapters.
    Field("prompt_embedding_table", "FP16", (-1, -1)),
    Field("prompt_vocab_size", "INT32", _ONE),
    Field("prompt_table_extra_id", "UINT64", _ONE),
    Field("lora_task_id", "UINT64", _ONE),
    Field("lora_weights", "FP16", (-1, -1)),
    Field("lora_config", "INT32", (-1, 3)),
)

OUTPUTS: tuple[Field, ...] = (
    Field("text_output", "STRING", _ANY),
    Field("finish_reason", "STRING", _ANY),
    Field("cum_log_probs", "FP32", _ANY),
    Field("output_log_probs", "FP32", (-1, -1)),
    Field("output_ids", "INT32", _ANY),
    Field("from_draft", "BOOL", _ANY),
    Field("text_lengths", "INT32", _ANY),
    Field("context_logits", "FP32", (-1, -1)),  # never sent: asking for it is refused
    Field("generation_logits", "FP32", (-1, -1, -1)),  # never sent: asking for it is refused
    Field("batch_index", "INT32", _ONE),
    Field("sequence_index", "INT32", _ONE),
    Field("num_input_tokens", "INT32", _ONE),
    Field("num_output_tokens", "INT32", _ONE),
    Field("kv_cache_alloc_new_blocks", "INT32", _ONE),
    Field("kv_cache_reused_blocks", "INT32", _ONE),
    Field("kv_cache_alloc_total_blocks", "INT32", _ONE),
    Field("arrival_time_ns", "INT64", _ONE),
    Field("first_scheduled_time_ns", "INT64", _ONE),
    Field("first_token_time_ns", "INT64", _ONE),
    Field("last_token_time_ns", "INT64", _ONE),
    Field("acceptance_rate", "FP32", _ONE),
    Field("total_accepted_draft_tokens", "INT32", _ONE),
    Field("total_draft_tokens", "INT32", _ONE),
    # Ours: what was decided for the request, and what it was worth.
    Field("num_target_passes", "INT32", _ONE),
    Field("draft_reasons", "STRING", _ANY),
    Field("predicted_gain", "FP32", _ONE),
    Field("measured_gain", "FP32", _ONE),
)


def _block(kind: str, table: tuple[Field, ...]) -> str:
    items = []
    for field in table:
        lines = [
            f'    name: "{field.name}"',
            f"    data_type: TYPE_{field.datatype}",
            f"    dims: [ {', '.join(map(str, field.dims))} ]",
        ]
        if field.optional and kind == "input":
            lines.append("    optional: true")
        items.append("  {\n" + "\n".join(lines) + "\n  }")
    return f"{kind} [\n" + ",\n".join(items) + "\n]\n"


def config_pbtxt_io() -> str:
    """The `input` and `output` blocks, the same in both models."""
    return _block("input", INPUTS) + _block("output", OUTPUTS)


_HEADER = """\
# Written by `python -m specdec.speculation.contract`: the tensors are defined there.
"""


def speculative_pbtxt() -> str:
    """config.pbtxt of the model that does the work."""
    defaults = "".join(
        f'# parameters {{ key: "{f.name}" value {{ string_value: "{f.default}" }} }}\n'
        for f in fields(SpeculativeConfig)
    )
    return f"""{_HEADER}name: "{MODEL}"
backend: "python"
max_batch_size: {MAX_BATCH_SIZE}
model_transaction_policy {{ decoupled: true }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]

# The defaults; uncomment a line to change it. Unknown names stop the model from loading.
{defaults}
{config_pbtxt_io()}"""


def ensemble_pbtxt() -> str:
    """config.pbtxt of the one-step ensemble: the model name that old clients call."""
    maps = "".join(
        f'      {kind}_map {{ key: "{field.name}" value: "{field.name}" }}\n'
        for kind, table in (("input", INPUTS), ("output", OUTPUTS))
        for field in table
    )
    return f"""{_HEADER}name: "{ALIAS}"
platform: "ensemble"
max_batch_size: {MAX_BATCH_SIZE}

{config_pbtxt_io()}
ensemble_scheduling {{
  step [
    {{
      model_name: "{MODEL}"
      model_version: -1
{maps}    }}
  ]
}}
"""


def write_configs(repository: Path) -> None:
    """Write both config.pbtxt files into a model repository."""
    for name, text in ((MODEL, speculative_pbtxt()), (ALIAS, ensemble_pbtxt())):
        (repository / name / "1").mkdir(parents=True, exist_ok=True)
        (repository / name / "config.pbtxt").write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m specdec.speculation.contract MODEL_REPOSITORY")
    write_configs(Path(sys.argv[1]))
