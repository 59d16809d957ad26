"""What kind of failure an error is, and how long a server asks to wait; without importing the library that raised it.

`kinds` holds the sixteen categories, `signs` reads exceptions, `words` reads text, `waits` reads `Retry-After`.
They look at exceptions only through `looking`: nothing that an exception does when it is read makes them raise.
"""

from __future__ import annotations

from holdfast.category.kinds import ErrorCategory
from holdfast.category.signs import classify, of_rpc
from holdfast.category.waits import retry_after

__all__ = ["ErrorCategory", "classify", "of_rpc", "retry_after"]
