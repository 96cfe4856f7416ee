"""Tensors as files: equal tensors give equal bytes, and a file says what it is."""

import pytest
import torch
from safetensors.torch import load, save_file

from hardmine.errors import InputError, MissingError
from hardmine.store.tensor_files import about_tensors, read_tensors, tensor_bytes


def test_what_is_written_is_read(tmp_path):
    tensors = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor([True, False])}
    file = tmp_path / "some.safetensors"
    file.write_bytes(tensor_bytes(tensors, {"kind": "a test", "numbers": [1, 2]}))
    found, about = read_tensors(file)
    assert about == about_tensors(file) == {"kind": "a test", "numbers": [1, 2]}
    assert set(found) == {"a", "b"}
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert torch.equal(load(file.read_bytes())["a"], tensors["a"])


def test_equal_tensors_and_facts_give_equal_bytes():
    first = tensor_bytes({"a": torch.ones(2), "b": torch.zeros(1)}, {"x": 1, "y": 2})
    assert first == tensor_bytes({"b": torch.zeros(1), "a": torch.ones(2)}, {"y": 2, "x": 1})
    assert first != tensor_bytes({"a": torch.ones(2), "b": torch.zeros(1)}, {"x": 1, "y": 3})


def test_what_is_no_such_file_is_said(tmp_path):
    with pytest.raises(MissingError, match=r"no file .*: expected a safetensors file"):
        read_tensors(tmp_path / "nothing.safetensors")
    (tmp_path / "text").write_text("no tensors in here")
    with pytest.raises(InputError, match=r"cannot be read .*: expected a policy"):
        read_tensors(tmp_path / "text", "a policy")
    save_file({"a": torch.ones(1)}, tmp_path / "foreign")
    assert about_tensors(tmp_path / "foreign") == {}
