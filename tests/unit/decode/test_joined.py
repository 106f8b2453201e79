"""Texts are joined alike by compiled code and by Python."""

from random import Random

import numpy as np
import pytest

from ch_sink.decode.framing import _surely
from ch_sink.decode.native import library as native
from ch_sink.decode.native.library import Joined, joined


@pytest.fixture(params=[True, False], ids=["compiled", "python"])
def _join(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(native, "joiner", lambda: None)
    elif native.joiner() is None:
        pytest.skip("the library is not compiled")


def drawn(seed: int) -> list[bytes]:
    rnd = Random(seed)
    return [rnd.randbytes(rnd.choice([0, 1, 7, 8, 400, 70_000])) for _ in range(rnd.randint(0, 90))]


@pytest.mark.usefixtures("_join")
@pytest.mark.parametrize("seed", range(20))
def test_texts_are_one_behind_the_other(seed: int) -> None:
    texts = drawn(seed)
    together = joined(texts)
    assert together.data == b"".join(texts)
    assert together.lengths.tolist() == [len(text) for text in texts]
    assert together.ends.tolist() == np.cumsum([len(text) for text in texts]).tolist()
    assert together == texts
    assert joined(together) is together


@pytest.mark.usefixtures("_join")
@pytest.mark.parametrize("wrong", [None, "text", 5])
def test_what_is_no_bytes_object_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError):
        assert Joined([b"a", wrong, b"b"]).data  # type: ignore[list-item]


@pytest.mark.parametrize(
    "head", [b'{"', b'{"s', b'{"p', b'{"x', b"{", b"", b'["a', b'{ "', b'{"a":1}', b'{"schema":1}']
)
@pytest.mark.parametrize("place", [0, 30, 79])
def test_only_values_that_cannot_be_envelopes_are_surely_none(head: bytes, place: int) -> None:
    if native.library() is None:
        pytest.skip("the library is not compiled")
    values = [b'{"id":1}'] * 80
    assert _surely(Joined(values))
    values[place] = head
    assert _surely(Joined(values)) == (len(head) > 2 and head[:2] == b'{"' and head[2:3] not in b"sp")
