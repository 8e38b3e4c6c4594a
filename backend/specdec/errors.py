"""What can go wrong, by whose fault it is. Messages say what was found and what is allowed.

Knows nothing of Triton: the glue maps each class to a status code and never sends a traceback.
"""


class SpecdecError(Exception):
    """Base of every error this project raises on purpose; `str()` is fit for a client to read."""


class InvalidRequest(SpecdecError):
    """The caller's fault: a value is missing, of the wrong type, out of range or not supported."""


class Overloaded(SpecdecError):
    """The waiting line is full; the caller may try again later (UNAVAILABLE)."""


class Cancelled(SpecdecError):
    """The client went away or asked to stop."""


class InvalidConfig(SpecdecError):
    """The operator's fault: a setting is unknown or out of range. Stops loading."""


class InvalidArtifact(SpecdecError):
    """A model directory is missing, damaged, or does not fit its partner. Stops loading."""


class UnsupportedModel(SpecdecError):
    """The exporter cannot express this model, or its cache cannot be rewound."""


class DecoderFailed(SpecdecError):
    """A draft or target call failed; the engine decides who is affected."""
