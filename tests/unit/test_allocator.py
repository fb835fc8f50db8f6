"""The allocator of CUDA memory: what reaches torch through the environment, and what is refused."""

from __future__ import annotations

import sys

import pytest

from burnish.errors import UserError
from burnish.serve.allocator import BACKENDS, OLD, VARIABLE, check, choose


@pytest.fixture
def before_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("native", "backend:native"),
        ("expandable", "backend:native,expandable_segments:True"),
        ("async", "backend:cudaMallocAsync"),
    ],
)
def test_the_environment_says_it(before_torch: None, name: str, setting: str) -> None:
    environment: dict[str, str] = {}
    choose(name, environment)
    choose(name, environment)
    assert environment == {VARIABLE: setting}
    check(name, BACKENDS[name])


@pytest.mark.parametrize("variable", [VARIABLE, OLD])
def test_another_setting_is_not_overruled(before_torch: None, variable: str) -> None:
    with pytest.raises(UserError, match=f"--allocator async: {variable} is max_split_size_mb:32 already"):
        choose("async", {variable: "max_split_size_mb:32"})


def test_too_late_unknown_and_not_taken_are_refused() -> None:
    import torch  # noqa: F401

    with pytest.raises(UserError, match="torch is loaded already; set PYTORCH_ALLOC_CONF=backend:cudaMallocAsync"):
        choose("async", {})
    with pytest.raises(UserError, match="--allocator slab: use native, expandable, async"):
        choose("slab", {})
    with pytest.raises(UserError, match="torch took native in place of cudaMallocAsync"):
        check("async", "native")
