"""The tables against the contract they stand for, and the files in git against the tables."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from specdec.speculation.contract import (
    INPUTS,
    MAX_BATCH_SIZE,
    NUMPY_TYPES,
    OUTPUTS,
    config_pbtxt_io,
    ensemble_pbtxt,
    speculative_pbtxt,
    write_configs,
)

REPOSITORY = Path(__file__).parents[2] / "model_repository"
ONE, ANY = (1,), (-1,)

# As the removed tensorrt_llm_bls declared them.
LEGACY_INPUTS = {
    "STRING": {
        "text_input": ONE,
        "decoder_text_input": ONE,
        "image_url_input": ONE,
        "bad_words": ANY,
        "stop_words": ANY,
        "embedding_bias_words": ANY,
        "guided_decoding_guide_type": ONE,
        "guided_decoding_guide": ONE,
    },
    "INT32": {
        "max_tokens": ONE,
        "end_id": ONE,
        "pad_id": ONE,
        "top_k": ONE,
        "min_tokens": ONE,
        "num_return_sequences": ONE,
        "beam_width": ONE,
        "prompt_vocab_size": ONE,
        "num_draft_tokens": ONE,
        "lora_config": (-1, 3),
    },
    "FP32": {
        "top_p": ONE,
        "temperature": ONE,
        "length_penalty": ONE,
        "repetition_penalty": ONE,
        "presence_penalty": ONE,
        "frequency_penalty": ONE,
        "embedding_bias_weights": ANY,
    },
    "BOOL": {
        "exclude_input_in_output": ONE,
        "return_log_probs": ONE,
        "return_context_logits": ONE,
        "return_generation_logits": ONE,
        "stream": ONE,
        "use_draft_logits": ONE,
        "return_perf_metrics": ONE,
        "return_num_input_tokens": ONE,
        "return_num_output_tokens": ONE,
    },
    "UINT64": {"seed": ONE, "prompt_table_extra_id": ONE, "lora_task_id": ONE},
    "FP16": {
        "image_input": (-1, 3, -1, -1),
        "prompt_embedding_table": (-1, -1),
        "lora_weights": (-1, -1),
    },
    "UINT8": {
        "image_bytes_input": (-1, -1, -1, -1),
        "video_bytes_input": (-1, -1, -1, -1),
    },
}
LEGACY_OUTPUTS = {
    "STRING": {"text_output": ANY},
    "FP32": {
        "cum_log_probs": ANY,
        "output_log_probs": (-1, -1),
        "context_logits": (-1, -1),
        "generation_logits": (-1, -1, -1),
        "acceptance_rate": ONE,
    },
    "INT32": {
        "batch_index": ONE,
        "sequence_index": ONE,
        "kv_cache_alloc_new_blocks": ONE,
        "kv_cache_reused_blocks": ONE,
        "kv_cache_alloc_total_blocks": ONE,
        "total_accepted_draft_tokens": ONE,
        "total_draft_tokens": ONE,
        "num_input_tokens": ONE,
        "num_output_tokens": ONE,
    },
    "INT64": {
        "arrival_time_ns": ONE,
        "first_scheduled_time_ns": ONE,
        "first_token_time_ns": ONE,
        "last_token_time_ns": ONE,
    },
}
OLDER_SPELLINGS = {
    "random_seed": ("UINT64", ONE),
    "min_length": ("INT32", ONE),
    "streaming": ("BOOL", ONE),
}


def flat(table):
    return {
        name: (datatype, dims) for datatype, names in table.items() for name, dims in names.items()
    }


def test_every_legacy_tensor_is_declared_as_it_was():
    ours = {field.name: (field.datatype, field.dims) for field in INPUTS}
    assert (flat(LEGACY_INPUTS) | OLDER_SPELLINGS).items() <= ours.items()
    ours = {field.name: (field.datatype, field.dims) for field in OUTPUTS}
    assert flat(LEGACY_OUTPUTS).items() <= ours.items()


def test_only_text_input_and_max_tokens_are_required():
    assert [field.name for field in INPUTS if not field.optional] == ["text_input", "max_tokens"]


@pytest.mark.parametrize("table", [INPUTS, OUTPUTS])
def test_names_are_unique_and_types_have_arrays(table):
    assert len({field.name for field in table}) == len(table)
    assert {field.datatype for field in table} <= set(NUMPY_TYPES)


def parsed(text):
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_the_servers_parser_reads_the_speculative_model():
    config = parsed(speculative_pbtxt())
    assert (config.name, config.backend) == ("speculative", "python")
    assert config.max_batch_size == MAX_BATCH_SIZE
    assert config.model_transaction_policy.decoupled
    group = config.instance_group[0]
    assert (group.count, group.kind) == (1, model_config_pb2.ModelInstanceGroup.KIND_CPU)
    assert not config.parameters, "defaults are comments"
    check_tensors(config)


def test_the_servers_parser_reads_the_ensemble():
    config = parsed(ensemble_pbtxt())
    assert (config.name, config.platform) == ("ensemble", "ensemble")
    assert config.max_batch_size == MAX_BATCH_SIZE
    check_tensors(config)
    (step,) = config.ensemble_scheduling.step
    assert (step.model_name, step.model_version) == ("speculative", -1)
    assert dict(step.input_map) == {field.name: field.name for field in INPUTS}
    assert dict(step.output_map) == {field.name: field.name for field in OUTPUTS}


def check_tensors(config):
    names = model_config_pb2.DataType.Name
    found = [(t.name, names(t.data_type), tuple(t.dims), t.optional) for t in config.input]
    assert found == [(f.name, f"TYPE_{f.datatype}", f.dims, f.optional) for f in INPUTS]
    found = [(t.name, names(t.data_type), tuple(t.dims)) for t in config.output]
    assert found == [(f.name, f"TYPE_{f.datatype}", f.dims) for f in OUTPUTS]


def test_uncommented_defaults_are_the_configs_own():
    from specdec.config import SpeculativeConfig, from_parameters

    text = speculative_pbtxt().replace("# parameters", "parameters")
    parameters = {name: p.string_value for name, p in parsed(text).parameters.items()}
    assert from_parameters(SpeculativeConfig, parameters) == SpeculativeConfig()


def test_the_files_in_the_repository_are_the_generated_ones(tmp_path):
    write_configs(tmp_path)
    for model in ("speculative", "ensemble"):
        committed = (REPOSITORY / model / "config.pbtxt").read_text()
        assert committed == (tmp_path / model / "config.pbtxt").read_text(), (
            "run `python -m specdec.speculation.contract model_repository`"
        )
        assert config_pbtxt_io() in committed
    assert (REPOSITORY / "ensemble" / "1").is_dir(), "Triton wants a version folder"
