"""Arrays through one tensor of bytes, and what cannot be a frame."""

import numpy as np
import pytest

from specdec import wire
from specdec.frame import pack, unpack

FIELDS = {"text": np.object_, "small": np.int32, "large": np.int64, "real": np.float64}
ARRAYS = {
    "real": np.array([0.1, -np.inf]),
    "small": np.array([1, -2, 3], np.int32),  # what follows is not aligned
    "large": np.array([1 << 40], np.int64),
    "text": np.array(["é\0".encode()], np.object_),
}


@pytest.mark.parametrize("names", [(), ("text",), ("small", "large"), tuple(ARRAYS)])
def test_there_and_back(names):
    sent = {name: ARRAYS[name] for name in names}
    found = unpack(pack(sent, FIELDS), FIELDS)
    assert list(found) == [name for name in FIELDS if name in sent]
    for name, array in found.items():
        assert array.dtype == FIELDS[name]
        assert array.tolist() == sent[name].tolist()


def test_empty_is_not_absent():
    found = unpack(pack({"small": np.array([], np.int32)}, FIELDS), FIELDS)
    assert list(found) == ["small"]
    assert found["small"].size == 0


def test_unknown_names_and_wrong_types_are_ours_to_fix():
    with pytest.raises(AssertionError, match="other"):
        pack({"other": np.array([1])}, FIELDS)
    with pytest.raises(AssertionError, match="int64"):
        pack({"small": np.array([1], np.int64)}, FIELDS)


def test_a_frame_of_another_size_is_refused():
    frame = pack(ARRAYS, FIELDS)
    for wrong in (frame[:-1], np.append(frame, np.uint8(0)), frame[:8]):
        with pytest.raises(ValueError, match=r"frame|zip|buffer"):
            unpack(wrong, FIELDS)


def test_every_field_of_the_wire_has_a_type_that_travels():
    for fields in (wire.INPUTS, wire.OUTPUTS):
        arrays = {n: np.array([b"x"] if k is np.object_ else [1], k) for n, k in fields.items()}
        found = unpack(pack(arrays, fields), fields)
        assert {n: a.tolist() for n, a in found.items()} == {
            n: a.tolist() for n, a in arrays.items()
        }
