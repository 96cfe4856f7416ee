"""Files of policies, distributions and histories, and the picture of a history."""

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hardmine.errors import InputError, MissingError, StoreError
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.pads.files import load_distribution, load_policy, save_distribution, save_policy
from hardmine.mining.pads.history import History
from hardmine.mining.pads.plots import draw_history, history_figure
from hardmine.mining.pads.policy import Policy
from hardmine.mining.pads.support import Support


@pytest.fixture
def distribution():
    return Distribution.starting(Support(n_support=6, oob="zero"), "random").times([0.8, 1.0, 1.25, 1.25, 1.0])


def history(calls=4):
    kept = History.starting(Support(n_support=6).edges(), np.full(5, 0.2))
    for call in range(calls):
        kept.append(31 + 30 * call, np.random.default_rng(call).dirichlet(np.ones(5)), 0.1 * call, (-1) ** call)
    return kept


def test_a_distribution_comes_back_to_the_bit(tmp_path, distribution):
    save_distribution(tmp_path / "d.safetensors", distribution)
    assert load_distribution(tmp_path / "d.safetensors") == distribution


def test_a_policy_comes_back_with_its_distribution(tmp_path, distribution):
    policy = Policy(7, 5, hidden=4, seed=1)
    save_policy(tmp_path / "p.safetensors", policy, distribution, actions=[0.8, 1.0, 1.25])
    saved = load_policy(tmp_path / "p.safetensors")
    other = Policy(7, 5, hidden=4, seed=2)
    saved.into(other, actions=[0.8, 1.0, 1.25])
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), other.parameters()))
    assert load_distribution(tmp_path / "p.safetensors") == distribution
    with pytest.raises(InputError, match=r"holds a policy for actions \[0.8, 1.0, 1.25\]"):
        saved.into(other, actions=[0.5, 1.0, 1.5])


def test_files_that_are_not_there_or_something_else(tmp_path, distribution):
    with pytest.raises(MissingError, match="expected a PADS policy"):
        load_policy(tmp_path / "no.safetensors")
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(InputError, match="junk cannot be read"):
        load_distribution(tmp_path / "junk")
    save_distribution(tmp_path / "d.safetensors", distribution)
    with pytest.raises(InputError, match="holds PADS distribution; expected a PADS policy"):
        load_policy(tmp_path / "d.safetensors")
    save_file({"w": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="holds something else"):
        load_policy(tmp_path / "other.safetensors")
    policy = Policy(7, 5)
    torch.nn.init.constant_(policy.action.bias, torch.nan)
    save_policy(tmp_path / "nan.safetensors", policy, distribution)
    with pytest.raises(InputError, match=r"not finite, in action\.bias"):
        load_policy(tmp_path / "nan.safetensors")


def test_a_history_comes_back_and_is_small(tmp_path):
    kept = history(50)
    kept.save(tmp_path / "h.npz")
    loaded = History.load(tmp_path / "h.npz")
    for name, array in kept.arrays().items():
        assert np.array_equal(loaded.arrays()[name], array, equal_nan=True)
        assert loaded.arrays()[name].dtype == array.dtype
    assert (kept.p.dtype, kept.p.shape, len(kept)) == (np.float32, (51, 5), 51)
    first = (tmp_path / "h.npz").read_bytes()
    kept.save(tmp_path / "h.npz")
    assert (tmp_path / "h.npz").read_bytes() == first
    (tmp_path / "h.npz").write_bytes(first[: len(first) // 2])
    with pytest.raises(StoreError, match="damaged"):
        History.load(tmp_path / "h.npz")
    with pytest.raises(MissingError, match="no history"):
        History.load(tmp_path / "none.npz")


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_the_picture_shows_each_distribution_at_its_steps(tmp_path, calls):
    kept = history(calls)
    draw_history(tmp_path / "p.png", kept)
    picture = cv2.imread(str(tmp_path / "p.png"))
    assert picture.shape[0] > 400
    assert picture.std() > 10
    (mesh,) = history_figure(kept).axes[1].collections
    assert np.asarray(mesh.get_array()).T.reshape(len(kept), 5) == pytest.approx(kept.p)
    corners = mesh.get_coordinates()
    assert corners[0, :-1, 0].tolist() == kept.step.tolist()
    assert corners[:, 0, 1].tolist() == pytest.approx(kept.edges.tolist())
