"""What `make test` keeps of a table whose whole `make prove` runs."""

from __future__ import annotations

import pytest

from support.proofs import some_of
from via.kinds import KINDS


@pytest.mark.parametrize("share", [2, 3])
def test_every_value_is_kept_in_one_of_the_turns_and_every_turn_keeps_some(share):
    kept = [
        [one for one in some_of(KINDS, turn, share=share) if isinstance(one, str)]
        for turn in range(share)
    ]
    assert sorted(one for turn in kept for one in turn) == sorted(KINDS)
    assert all(kept)
    for turn in range(share):
        values = [one if isinstance(one, str) else one.values[0] for one in some_of(KINDS, turn)]
        assert values == list(KINDS)
