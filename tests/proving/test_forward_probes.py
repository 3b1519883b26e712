"""How long a drill says that another stream waited while a receiver was in trouble."""

from __future__ import annotations

from proving.faults.forward import Processors, others_share


def test_what_other_programs_took_of_the_processors_does_not_count_but_what_the_forwarding_took_does() -> None:
    before = Processors(waited=10.0, forwarded=2.0)
    assert others_share(before, Processors(13.0, 2.0)) == 3.0
    assert others_share(before, Processors(13.0, 4.5)) == 0.5
    assert others_share(before, Processors(13.0, 9.0)) == 0.0
    assert others_share(before, Processors(13.0, 0.0)) == 3.0  # it was killed: its figures begin again
