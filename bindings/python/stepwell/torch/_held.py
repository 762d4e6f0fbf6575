# SPDX-License-Identifier: Apache-2.0
"""The states of a parameter's gradient tensor, and the transitions between them."""
import enum


class Held(enum.IntEnum):
    """What the tensor holds. `.grad` in plain memory of the program is not part of it."""

    NONE = 0   # no gradient
    SUM = 1    # the sum of the contributions since the last gradient was dropped
    SPENT = 2  # a gradient that an update has consumed; every use of it is refused


class Event(enum.IntEnum):
    """What happens to a gradient."""

    ADDED = 0     # a contribution was added
    CONSUMED = 1  # an update has used it up
    WRITTEN = 2   # the program has written all of it
    DROPPED = 3   # zero_grad() has dropped it, or nothing was added after all


_NEXT = {
    (Held.NONE, Event.ADDED): Held.SUM,
    (Held.NONE, Event.WRITTEN): Held.NONE,  # through an object of one that was dropped
    (Held.NONE, Event.DROPPED): Held.NONE,
    (Held.SUM, Event.ADDED): Held.SUM,
    (Held.SUM, Event.CONSUMED): Held.SPENT,
    (Held.SUM, Event.WRITTEN): Held.SUM,
    (Held.SUM, Event.DROPPED): Held.NONE,
    (Held.SPENT, Event.ADDED): Held.SPENT,  # a sum with values that are gone
    (Held.SPENT, Event.WRITTEN): Held.SUM,
    (Held.SPENT, Event.DROPPED): Held.NONE,
}


def after(held: Held, event: Event) -> Held:
    """The state after the event. A pair that is not in the table is a fault of this package."""
    found = _NEXT.get((held, event))
    assert found is not None, f"a gradient in the state {held.name} was {event.name}"
    return found
