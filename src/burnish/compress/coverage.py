"""Coverage: which experts no calibration token reached, so that nothing is known of what they read."""

from __future__ import annotations

from typing import Any

NAMED = 8  # experts


def told(table: Any) -> tuple[str, ...]:
    """What a person should know of a search's table (`layers`, of `matrices` with a name and the experts `unseen`).

    An expert that reads nothing has no error to minimise: it gets no scale and no clip, and is rounded to nearest. More text
    reaches more of them; that each is reached is no promise that it is reached often.
    """
    idle = sorted(
        {
            (number, expert)
            for number, layer in enumerate(getattr(table, "layers", ()))
            for row in getattr(layer, "matrices", ())
            for expert in row.unseen
        }
    )
    if not idle:
        return ()
    some = ", ".join(f"layers.{layer} expert {expert}" for layer, expert in idle[:NAMED])
    more = f" and {len(idle) - NAMED} more" if len(idle) > NAMED else ""
    return (
        f"no calibration token reached {len(idle)} experts, which are rounded to nearest: {some}{more}; "
        "calibrate on more text, or on text more like what will be read",
    )
