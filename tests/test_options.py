import pytest

from hardmine.errors import HardmineError, InputError, UnknownNameError
from hardmine.options import Options, apply_override, check
from hardmine.registry import Registry


class Inner(Options):
    depth: int = 1


class Outer(Options):
    inner: Inner = Inner()
    maybe: Inner | None = None
    rate: float = 0.5


def test_an_unknown_key_names_the_nearest_one():
    with pytest.raises(UnknownNameError, match=r"'rat'.*Did you mean 'rate'"):
        check(Outer, {"rat": 1}, "here")


def test_an_unknown_key_inside_a_section_names_the_nearest_one_with_its_path():
    with pytest.raises(UnknownNameError, match=r"'inner.dept'.*Did you mean 'inner.depth'"):
        check(Outer, {"inner": {"dept": 1}}, "here")
    with pytest.raises(UnknownNameError, match=r"Did you mean 'maybe.depth'"):
        check(Outer, {"maybe": {"dept": 1}}, "here")


def test_a_value_that_does_not_fit_names_the_key_and_the_value():
    with pytest.raises(InputError, match=r"here: inner.depth: .*given: 'deep'"):
        check(Outer, {"inner": {"depth": "deep"}}, "here")


@pytest.mark.parametrize(
    ("override", "tree"),
    [
        ("a=1", {"a": 1}),
        ("a.b=[1, 2]", {"a": {"b": [1, 2]}}),
        ("a.b=true", {"a": {"b": True}}),
        ("a.b=1e-3", {"a": {"b": 0.001}}),
        ("a.b=some/path.store", {"a": {"b": "some/path.store"}}),
        ("a.b='x=y'", {"a": {"b": "x=y"}}),
    ],
)
def test_an_override_is_a_toml_value_or_a_bare_word(override, tree):
    found = {}
    apply_override(found, override)
    assert found == tree


@pytest.mark.parametrize("override", ["a", "=1", ""])
def test_an_override_without_key_or_value_is_refused(override):
    with pytest.raises(InputError, match=r"expected section\.key=value"):
        apply_override({}, override)


def test_an_override_into_a_value_is_refused():
    with pytest.raises(InputError, match="'a' is not a section"):
        apply_override({"a": 1}, "a.b=2")


def test_a_registry_finds_by_name_and_names_the_nearest():
    registry = Registry("thing", "hardmine.metrics")
    registry.register("alpha")(object)
    assert registry.get("alpha") is object
    with pytest.raises(UnknownNameError, match=r"unknown thing 'alpa'. Did you mean 'alpha'"):
        registry.get("alpa")
    with pytest.raises(InputError, match="registered twice"):
        registry.register("alpha")(object)


def test_errors_are_builtins_too():
    assert issubclass(UnknownNameError, KeyError)
    assert issubclass(UnknownNameError, ValueError)
    assert issubclass(UnknownNameError, HardmineError)
    assert str(UnknownNameError("thing", "x", [])) == "unknown thing 'x'. Known: none."
