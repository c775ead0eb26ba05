"""The one exception of this package."""

from __future__ import annotations


class CorporaError(RuntimeError):
    """Something went wrong that the user can act on; the message says what to do.

    `failures` holds one line per corpus or package that failed, so that a caller which asked for
    many can show them one by one.
    """

    def __init__(self, message: str, failures: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures or (message,)
