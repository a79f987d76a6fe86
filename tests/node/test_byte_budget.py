"""The budget of all requests survives callers that are cancelled while they wait."""

from __future__ import annotations

import asyncio

from tierlog.node.byte_budget import ByteBudget


async def cancel_waiting() -> None:
    """Cancel a caller that waits, and release before it runs again."""
    budget = ByteBudget(100)
    held = await budget.acquire(100)
    cancelled = asyncio.create_task(budget.acquire(60))
    patient = asyncio.create_task(budget.acquire(80))
    await asyncio.sleep(0)
    assert budget.waiting_count == 2
    cancelled.cancel()
    budget.release(held)
    assert await patient == 80
    assert cancelled.cancelled()
    budget.release(80)
    assert (budget.held_bytes, budget.waiting_count) == (0, 0)


def test_a_cancelled_caller_gets_nothing() -> None:
    asyncio.run(cancel_waiting())


async def cancel_admitted() -> None:
    """Cancel a caller that was admitted and has not run since."""
    budget = ByteBudget(100)
    held = await budget.acquire(100)
    admitted = asyncio.create_task(budget.acquire(60))
    await asyncio.sleep(0)
    budget.release(held)
    assert budget.held_bytes == 60
    admitted.cancel()
    assert await asyncio.gather(admitted, return_exceptions=True)
    assert (budget.held_bytes, budget.waiting_count) == (0, 0)


def test_a_caller_that_is_cancelled_when_admitted_gives_back() -> None:
    asyncio.run(cancel_admitted())
