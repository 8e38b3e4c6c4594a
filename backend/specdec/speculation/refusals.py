"""What the contract declares but this server cannot do, and request parameters nobody reads.

Nothing a client asks for is dropped in silence: a value that changes nothing is accepted, any
other is refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from specdec.errors import InvalidRequest
from specdec.speculation.contract import INPUTS
from specdec.speculation.input_reader import InputReader, shown

# Scalar inputs and the values at which they ask for nothing.
_NO_OPS: Mapping[str, tuple[object, ...]] = {
    "decoder_text_input": ("",),
    "image_url_input": ("",),
    "guided_decoding_guide_type": ("",),
    "guided_decoding_guide": ("",),
    "beam_width": (1,),
    "num_return_sequences": (1,),
    "length_penalty": (0.0, 1.0),  # it only ranks beams
    "use_draft_logits": (False,),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "prompt_vocab_size": (0,),
    "prompt_table_extra_id": (0,),
    "lora_task_id": (0,),
}
# Inputs that ask for something whenever they have elements.
_NEVER = (
    "image_input",
    "image_bytes_input",
    "video_bytes_input",
    "prompt_embedding_table",
    "lora_weights",
    "lora_config",
)

# Other systems' names for our inputs; dropping one would change the answer unseen.
_ALIASES: Mapping[str, str] = {
    "best_of": "num_return_sequences",
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "n": "num_return_sequences",
    "num_beams": "beam_width",
    "logprobs": "return_log_probs",
    "prompt": "text_input",
    "request_output_len": "max_tokens",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "sampling_parameters": "temperature, top_k, top_p, ...",
    "stop": "stop_words",
}
# Sent by fleets, and without meaning here: responses are always deltas, and Triton itself reads
# the rest.
_IGNORED = frozenset(
    {
        "accumulate_tokens",
        "id",
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "timeout",
    }
)
_INPUT_NAMES = tuple(field.name for field in INPUTS)


def refuse_unsupported(reader: InputReader) -> None:
    """Raises `InvalidRequest` for the first input that cannot be honoured."""
    for name in _NEVER:
        if name in reader:
            raise InvalidRequest(f"{name} is not supported: leave it out")
    for name, allowed in _NO_OPS.items():
        for row in range(reader.num_prompts):
            part = reader.row(name, row)
            value = None if part is None else _plain(part[0])
            if value is not None and value not in allowed:
                choices = " or ".join(repr(choice) for choice in allowed)
                raise InvalidRequest(
                    f"{name} {shown(value)} is not supported: allowed is {choices}"
                )


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if hasattr(value, "item") else value


def check_parameters(parameters: Mapping[str, object]) -> bool:
    """Check request parameters (over HTTP: body keys that are no input); return `ignore_eos`.

    Other names are let pass unless they look like an input that was misspelt.
    """
    for name in parameters:
        if name == "ignore_eos" or name in _IGNORED or name.startswith("triton_"):
            continue
        if name in _INPUT_NAMES:
            raise InvalidRequest(f"parameter {name} is an input: send it as an input tensor")
        meant = _ALIASES.get(name)
        if meant is None:
            close = difflib.get_close_matches(name.lower(), _INPUT_NAMES, n=1, cutoff=0.8)
            meant = close[0] if close else None
        if meant is not None:
            raise InvalidRequest(f"unknown parameter {shown(name)}: the input is {meant}")
    ignore_eos = parameters.get("ignore_eos", False)
    if not isinstance(ignore_eos, bool):
        raise InvalidRequest(f"ignore_eos is {shown(ignore_eos)}: allowed are true and false")
    return ignore_eos
