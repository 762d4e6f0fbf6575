# SPDX-License-Identifier: Apache-2.0
"""What the gradient tensor of a parameter has, and what may become of it."""
import enum


class Held(enum.IntEnum):
    """Of a record; the program may have set `.grad` to memory of its own beside it."""

    NONE = 0   # no gradient
    SUM = 1    # that of the contributions since the last one was dropped
    SPENT = 2  # one that an update has consumed, whose uses are refused


class Event(enum.IntEnum):
    """What happens to it."""

    ADDED = 0     # a contribution
    CONSUMED = 1  # by an update
    WRITTEN = 2   # all of it, by the program
    DROPPED = 3   # by zero_grad(), or since nothing was added after all


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
