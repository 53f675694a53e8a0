"""The signature of a call: guards of tensors, by torch's own and by ours, and what they find."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from layoutconv.ops import call_cache
from layoutconv.ops.call_cache import CallCache
from layoutconv.ops.guard import guard_of, is_watched


@pytest.fixture(autouse=True, params=["torch's", "ours"])
def kind(request) -> None:
    if request.param == "ours":
        request.getfixturevalue("guards_in_python")


class Own(torch.Tensor):
    pass


class Noted(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


X, W = torch.randn(4, 6), torch.randn(3, 6)
NUMBERS = (3, (1, 1), "relu", 0.5)
NEGATED = torch.complex(X, -X).conj().imag


def inference_tensor() -> Tensor:
    with torch.inference_mode():
        return X + 0


OTHERS: dict[str, Any] = {
    "shape": X[:3], "modes": X[None], "stride": X.T.contiguous().T, "gap": torch.randn(4, 7)[:, :6],
    "dtype": X.double(), "meta": X.to("meta"), "gradient": X.clone().requires_grad_(),
    "parameter": torch.nn.Parameter(X, requires_grad=False), "subclass": X.as_subclass(Own),
    "negated": NEGATED, "of inference": inference_tensor(), "array": X.numpy(), "number": 1.0,
    "none": None, "sparse": X.to_sparse(), "fake": FakeTensorMode().from_tensor(X),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_guard_knows_tensors_from_others(name):
    alike, other = guard_of(X, W), OTHERS[name]
    if name == "negated":
        assert other.is_neg()
        alike = guard_of(torch.empty_strided(other.shape, other.stride()), W)
    assert not alike(other, W)
    assert alike(torch.empty_strided(other.shape, other.stride()) if name == "negated" else X, W)


def test_a_guard_holds_for_other_data_and_where_gradients_are_off():
    alike = guard_of(X, W)
    assert alike(X + 1, W[:])
    with torch.no_grad():
        assert alike(X.clone(), W)


def test_a_tensor_may_be_there_twice():
    twice, once = guard_of(X, X), guard_of(X, X.clone())
    assert twice(X, X)
    assert twice(X, X + 1)
    assert once(X, X + 1)
    assert not twice(X, W)


def never() -> None:
    raise AssertionError("a call is made that nobody keeps")


def found_by(inside: Callable[[Callable[[], None]], Any]) -> list[Any]:
    """Return what lookups ``inside`` find for a call that was kept outside."""
    signatures, found = signatures_of(2), []
    call = NUMBERS, None, X, W
    signatures.keep(lambda: "call", *call)

    def look() -> None:
        found.append(signatures.find(*call))
        assert is_watched()
        signatures.keep(never, *call)

    inside(look)
    assert signatures.find(*call) == "call"
    return found


def looking(look: Callable[[], None]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        look()
        return x * 2

    return function


def within(context: Any) -> Callable[[Callable[[], None]], None]:
    def inside(look: Callable[[], None]) -> None:
        with context():
            look()

    return inside


@pytest.mark.parametrize(
    "inside",
    [
        within(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
        within(Noted), within(FakeTensorMode), within(lambda: torch.device("cpu")),
        within(forward_ad.dual_level),
        lambda look: torch.vmap(looking(look))(X),
        lambda look: torch.func.grad(lambda x: looking(look)(x).sum())(X),
        lambda look: torch.func.jvp(looking(look), (X,), (X,)),
        lambda look: torch.func.functionalize(looking(look))(X),
        lambda look: make_fx(looking(look))(X),
        lambda look: torch.jit.trace(looking(look), (X,), check_trace=False),
    ],
    ids=["autocast", "mode", "fake", "functions", "dual", "vmap", "grad", "jvp", "functionalize",
         "make_fx", "trace"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_is_found_where_torch_looks(inside):
    found = found_by(inside)
    assert found
    assert not any(found)


def test_inference_mode_is_another_signature():
    alike = guard_of(X, W)
    with torch.inference_mode():
        assert not alike(X, W)
        within_it = guard_of(X, W)
        assert within_it(X, W)
    assert not within_it(X, W)


def signatures_of(entries: int) -> CallCache:
    return CallCache("", entries=entries, nbytes=1 << 20)


def test_what_was_kept_is_found_for_its_signature_alone():
    signatures, bias = signatures_of(32), torch.ones(3)
    calls: dict[str, tuple[Any, ...]] = {
        "alone": (NUMBERS, None, X, W, None, None, None),
        "another number": ((3, (1, 2), "relu", 0.5), None, X, W, None, None, None),
        "another type": ((3, (1, True), "relu", 0.5), None, X, W, None, None, None),
        "dtype": (NUMBERS, torch.int8, X, W, None, None, None),
        "bias": (NUMBERS, None, X, W, bias, None, None),
        "column": (NUMBERS, None, X, W, None, bias, None),
        "number": (NUMBERS, None, X, W, None, 1, None),
        "number of another type": (NUMBERS, None, X, W, None, 1.0, None),
        "residual": (NUMBERS, None, X, W, None, None, X),
        "both": (NUMBERS, None, X, W, bias, bias, None),
        "in double": (NUMBERS, None, X.double(), W.double(), None, None, None),
        "wanted": (NUMBERS, None, X, W.clone().requires_grad_(), None, None, None),
        "wanted of a bias": (NUMBERS, None, X, W, bias.clone().requires_grad_(), None, None),
    }
    for name, call in calls.items():
        assert signatures.find(*call) is None
        signatures.keep(partial(str, name), *call)
    assert {signatures.find(*call) for call in calls.values()} == set(calls)
    with torch.no_grad():
        assert not any(signatures.find(*call) for call in calls.values())
    assert signatures.find(NUMBERS, "torch.int8", X, W) is None
    assert signatures.find(NUMBERS, None, X, W, None, True) is None
    for unwritable in (object(), torch.Size((1, 1)), [object()]):
        assert signatures.find((3, unwritable), None, X, W) is None
        signatures.keep(never, (3, unwritable), None, X, W)


def test_there_is_an_end_to_what_is_kept():
    signatures = signatures_of(6)
    for size in range(1, 20):
        signatures.keep(partial(int, size), (size,), None, X, W)
        assert signatures.find((size,), None, X, W) == size
        assert len(signatures) <= 6
    signatures = signatures_of(100)
    for size in range(1, 100):  # of one key: as many elements each
        x = torch.empty_strided((4, 6), (6 * size, 1))
        signatures.keep(partial(int, size), NUMBERS, None, x, W)
        assert signatures.find(NUMBERS, None, x, W) == size
        [entries] = signatures.values()
        assert len(entries) == signatures.usage().entries == min(size, call_cache._FEW)


def test_what_was_used_last_stays():
    """Half of the entries at least, in whatever order they were made; the others make room."""
    signatures = signatures_of(8)
    calls = [((number,), None, X, W) for number in range(40)]
    for number, call in enumerate(calls):
        signatures.keep(partial(int, number), *call)
        assert signatures.find(*calls[0]) == 0  # since it is asked for all the time
        recent = calls[max(0, number - 2) : number + 1]
        assert [signatures.find(*call) for call in recent] == [call[0][0] for call in recent]
    assert signatures.find(*calls[5]) is None


def test_large_entries_are_fewer():
    signatures = CallCache("", entries=1000, nbytes=400_000)
    for number in range(40):
        signatures.keep(partial(torch.empty, 5000), (number,), None, X, W)  # of 20 kB
        assert signatures.usage().nbytes <= 400_000
    assert 5 <= len(signatures) <= 19
    signatures.keep(partial(torch.empty, 100_000), ("large",), None, X, W)
    assert signatures.find(("large",), None, X, W) is None
    assert signatures.find((39,), None, X, W) is not None


def test_threads_find_their_own():
    signatures, wrong = signatures_of(8), []

    def run(number: int) -> None:
        for i in range(300):
            x = torch.empty_strided((4, 6), (6 + (number + i) % 5, 1))
            call = (number % 3,), None, x, W
            found = signatures.find(*call)
            if found is None:
                signatures.keep(partial(tuple, (number % 3, x.stride())), *call)
            elif found != (number % 3, x.stride()):
                wrong.append(found)

    threads = [Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
