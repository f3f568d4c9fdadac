"""Equal samples have equal fingerprints, and packed fingerprints are unpacked."""

from __future__ import annotations

import hashlib

import pytest
import torch

from secateur.certificates import fingerprints
from secateur.errors import SecateurError


def test_a_fingerprint_is_the_hash_of_type_shape_and_bytes() -> None:
    x = torch.randn(5, 3, 2)
    for sample, found in zip(x, fingerprints.of(x)):
        by_hand = hashlib.blake2b(b"torch.float32(3, 2)" + sample.numpy().tobytes(), digest_size=8)
        assert found == by_hand.hexdigest()


def test_batches_layout_and_form_do_not_matter_but_type_shape_and_values_do() -> None:
    x = torch.randn(6, 4, 5)
    found = fingerprints.of(x)
    assert len(set(found)) == 6
    assert fingerprints.of(x[:2]) + fingerprints.of(x[2:]) == found
    assert fingerprints.of(x.transpose(1, 2).contiguous().transpose(1, 2)) == found
    assert fingerprints.of(((x,), {})) == fingerprints.of({"image": x, "scale": 2.0}) == found
    for other in (x.double(), x.flatten(1), x + 1e-6):
        assert not set(fingerprints.of(other)) & set(found)
    assert fingerprints.of(torch.tensor([1, 2, 1]))[0] == fingerprints.of(torch.tensor([1]))[0]


def test_all_inputs_of_a_sample_are_hashed() -> None:
    x, y = torch.randn(3, 2), torch.randn(3, 7)
    assert not set(fingerprints.of((x, y))) & set(fingerprints.of((x, y.flip(0)))) - {fingerprints.of((x, y))[1]}
    assert fingerprints.of((x, y))[1] == fingerprints.of((x[1:2], y[1:2]))[0]


def test_packing_sorts_and_removes_repetitions() -> None:
    found = fingerprints.of(torch.randn(100, 3))
    text = fingerprints.pack(found + found)
    assert fingerprints.unpack(text) == sorted(found)
    assert len(text) == 4 * -(-800 // 3)
    assert fingerprints.pack([]) == "" and fingerprints.unpack("") == []


@pytest.mark.parametrize("text", ["???", "AAAA", "ÄÖ==", 3])
def test_invalid_fingerprints_are_refused(text: str) -> None:
    with pytest.raises(SecateurError) as caught:
        fingerprints.unpack(text)
    assert caught.value.remedy
    with pytest.raises(SecateurError, match="expected a list of fingerprints"):
        fingerprints.pack(["xyz"])


def test_data_without_a_tensor_is_refused() -> None:
    with pytest.raises(SecateurError, match="no tensor"):
        fingerprints.of(3)
