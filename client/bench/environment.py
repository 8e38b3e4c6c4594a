"""Where a benchmark ran: without this its numbers mean nothing later."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from specdec import __version__
from specdec.client.channel import channel_options
from specdec.config import DecoderConfig, SpeculativeConfig

_PACKAGES = ("numpy", "onnxruntime", "tritonclient", "grpcio", "nvidia-pytriton")
_BUSY = 0.3  # processes per core that already want to run


def describe_machine() -> dict[str, Any]:
    """Of this process; the server may be elsewhere."""
    return {
        "processor": _processor(),
        "cores": _cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "specdec": __version__,
        **{name: _version(name) for name in _PACKAGES},
        "load_average": os.getloadavg()[0],
    }


def is_busy(machine: dict[str, Any]) -> bool:
    """Something else was computing when the run began."""
    return bool(machine["load_average"] > _BUSY * machine["cores"])


def describe_server(url: str, model: str) -> dict[str, Any]:
    """What the running server says of itself; empty where it says nothing.

    Parameters that its configs leave out are this version's defaults.
    """
    client = InferenceServerClient(url, channel_args=channel_options(url))
    try:
        metadata = client.get_server_metadata(as_json=True)
        speculative = _parameters(client, model)
        target = speculative.get("target_model_name", SpeculativeConfig().target_model_name)
        decoder = _parameters(client, target)
    except InferenceServerException:
        return {}
    finally:
        client.close()
    default, slots = SpeculativeConfig(), DecoderConfig()
    num_slots = int(decoder.get("max_sequences", slots.max_sequences))
    max_running = int(speculative.get("max_running", default.max_running))
    return {
        "url": url,
        "model": model,
        "name": f"{metadata.get('name', '')} {metadata.get('version', '')}".strip(),
        "drafter": speculative.get("drafter", default.drafter),
        "num_draft_tokens": int(speculative.get("num_draft_tokens", default.num_draft_tokens)),
        "max_running": min(max_running, num_slots),
        "idle_prefill_chunk_tokens": int(
            speculative.get("idle_prefill_chunk_tokens", default.idle_prefill_chunk_tokens)
        ),
        "num_slots": num_slots,
        "parameters": {model: speculative, target: decoder},
    }


def _parameters(client: InferenceServerClient, model: str) -> dict[str, str]:
    config = client.get_model_config(model, as_json=True).get("config", {})
    return {
        name: str(value.get("string_value", ""))
        for name, value in config.get("parameters", {}).items()
    }


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.is_file() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
