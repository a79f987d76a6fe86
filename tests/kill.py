"""kill -9 in a child process, for tests of what a crash leaves behind."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable

__all__ = ["dies"]


def dies(arm: Callable[[], object], work: Callable[[], object]) -> bool:
    """Whether a child process, once it was armed, was killed at `work`; False when it came to its
    end. An AssertionError when it ended in another way."""
    child = os.fork()
    if not child:
        code = 1
        # Garbage that was there before is its parent's, and so is what its finalizers do.
        gc.disable()
        try:
            arm()
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False
