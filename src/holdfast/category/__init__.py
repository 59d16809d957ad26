"""What kind of failure an error is, and how long the other side asks to wait; without importing anybody's library.

`kinds` holds the sixteen categories, `signs` reads exceptions, `words` reads text, `waits` reads `Retry-After`.
They look at exceptions through `looking` alone: nothing that an exception does when it is looked at makes them raise.
"""

from __future__ import annotations

from holdfast.category.kinds import ErrorCategory
from holdfast.category.signs import classify, of_rpc
from holdfast.category.waits import retry_after

__all__ = ["ErrorCategory", "classify", "of_rpc", "retry_after"]
