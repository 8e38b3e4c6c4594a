"""Loads whatever an artifact holds: a decoder or a head."""

from __future__ import annotations

from pathlib import Path

from specdec.artifact import HEAD, Artifact
from specdec.config import DecoderConfig
from specdec.decoder.decoder import CachedDecoder, load_decoder
from specdec.decoder.head import HeadDecoder, load_head


def load(config: DecoderConfig, directory: Path) -> CachedDecoder | HeadDecoder:
    """See `load_decoder` and `load_head`.

    Args:
        directory: the artifact's; `config.artifact_dir` goes before it.
    """
    directory = Path(config.artifact_dir or directory)
    artifact = Artifact.read(directory)
    if artifact.architecture == HEAD:
        return load_head(config, artifact, directory)
    return load_decoder(config, directory)
